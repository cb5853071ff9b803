"""Whether requests are worth a hub's reading: what drafts would save until their ends, and what reading costs vLLM.

A hub of its own reads while vLLM decodes, which costs vLLM a wait and no more; one on the same cores slows vLLM down
for as long as it reads. So what counts is not how long the hub reads but what vLLM loses, in two parts: what it waits
for when it tells of texts, and the time that its steps take beyond the usual, by the tokens that are read.
"""

from __future__ import annotations

from typing import Final

from starspec.policy.estimators import DecayedMean, DecayedRatio

FIRST_ANSWER: Final = 128.0  # tokens that a request has, before any was seen to end
WEIGHT: Final = 0.2  # of a new wait, or length of an answer, among those before it
FADING: Final = 0.8  # of what readings cost, with each that follows
MAX_SLOWED: Final = 1.0  # of a step's usual time: two who share cores lose no more; an interrupted step says little
UNREAD: Final = 2.0  # a text that was told in vain counts as half read at most: it would have taken longer
PROBE_SHARE: Final = 0.05  # of the time since the hub read last, at most, that reading for a probe may cost


class PrefillCost:
    """Learnt from what was read.

    Before anything was, reading is thought to cost nothing: it has to be tried.
    """

    def __init__(self) -> None:
        self._answer_len = DecayedMean(WEIGHT, FIRST_ANSWER)
        self.forget_hub()

    def forget_hub(self) -> None:
        """What the one before cost says nothing of the next."""
        self._wait_s: DecayedMean | None = None
        self._token_s = DecayedRatio(FADING)  # seconds lost by tokens read
        self._ended_s: float | None = None
        self._begin()

    def _begin(self) -> None:
        self._num_told = self._num_read = 0  # since it last had nothing to read
        self._num_beside = self._num_compared = 0  # steps, likewise
        self._slowed_s = 0.0  # of the compared ones

    @property
    def is_going_on(self) -> bool:
        """Whether the hub has something to read."""
        return self._num_told > 0

    def note_told(self, num_tokens: int, waited_s: float | None) -> None:
        """A step told the hub of texts of so many tokens, and waited so much longer than for drafts alone.

        Args:
            waited_s: None = they were not waited for.
        """
        self._num_told += num_tokens
        if waited_s is None:
            return
        if self._wait_s is None:
            self._wait_s = DecayedMean(WEIGHT, max(0.0, waited_s))
        else:
            self._wait_s.add(max(0.0, waited_s))

    def note_answered(self, num_read: int, num_refused: int) -> None:
        """It has read texts of so many tokens, and refused others, which it has not read."""
        self._num_read += num_read
        self._num_told = max(0, self._num_told - num_refused)
        if not self._num_told:
            self._begin()

    def note_step(self, seconds: float, usual_s: float | None) -> None:
        """A step of vLLM's beside it.

        Args:
            usual_s: what such a step takes alone; None = not known.
        """
        self._num_beside += 1
        if usual_s is not None:
            self._num_compared += 1
            self._slowed_s += min(seconds - usual_s, MAX_SLOWED * usual_s)

    def note_end(self, now: float) -> None:
        """What was going on has ended; what it was told and has not answered to, nobody wants any more."""
        if self._num_compared:
            self._token_s.add(self._lost_s, self._num_at_least)
        self._ended_s = now
        self._begin()

    def note_answer(self, num_tokens: int) -> None:
        """A request ended after so many tokens."""
        self._answer_len.add(num_tokens)

    def seconds(self, num_tokens: int) -> float:
        """That vLLM loses if the hub is told of so many tokens.

        What is being read may already have cost more than usual.
        """
        token_s = self._token_s.value
        if self._num_told:
            token_s = max(token_s, self._lost_s / self._num_at_least)
        return (self._wait_s.value if self._wait_s else 0.0) + num_tokens * token_s

    def is_worth(self, num_tokens: int, now_s: float, then_s: float) -> bool:
        """Whether to have so many tokens read.

        How many tokens a request has had says little of how many follow, so as many are expected as requests have in
        all. Drafts come for those that are left when the texts are read.

        Args:
            now_s: in which every request gains one token,
            then_s: and in which it will, once they are read.
        """
        cost_s = self.seconds(num_tokens)
        return (now_s - then_s) * (self._answer_len.value - cost_s / now_s) > cost_s

    def is_worth_a_probe(self, num_tokens: int, now: float) -> bool:
        """Whether to have so many tokens read for the sake of knowing whether drafts pay."""
        return self._ended_s is None or self.seconds(num_tokens) <= PROBE_SHARE * (now - self._ended_s)

    @property
    def _lost_s(self) -> float:
        """So far: the steps that could not be compared are thought to have lost as much as the others."""
        return max(0.0, self._slowed_s) * self._num_beside / max(1, self._num_compared)

    @property
    def _num_at_least(self) -> float:
        """Tokens that it has read."""
        return max(self._num_read, self._num_told / UNREAD)
