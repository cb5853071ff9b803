"""Whether requests are worth a hub's reading: what drafts would save until their ends, and what reading costs vLLM.

A hub of its own reads while vLLM decodes, which costs vLLM a wait and no more; one on the same cores slows vLLM down
for as long as it reads. So what counts is not how long the hub reads but what vLLM loses, in two parts: what it waits
for when it tells of texts, and the time that its steps take beyond the usual, by the tokens that are read.
"""

from __future__ import annotations

from typing import Final

FIRST_ANSWER: Final = 128.0  # tokens that a request has, before any was seen to end
WEIGHT: Final = 0.2  # of a new measurement among those before it,
WEIGHT_IF_LESS: Final = 0.5  # if it is less than they were: what is thought dear is seldom tried again
MAX_RATIO: Final = 2.0  # of a measurement to what was known: one interrupted reading says little
UNREAD: Final = 2.0  # a text that was told in vain counts as half read at most: it would have taken longer
PROBE_SHARE: Final = 0.05  # of the time since the hub read last, at most, that reading for a probe may cost


class ReadingCost:
    """Learnt from what was read.

    Before anything was, reading is thought to cost nothing: it has to be tried.
    """

    def __init__(self) -> None:
        self._answer_len = FIRST_ANSWER
        self.forget_hub()

    def forget_hub(self) -> None:
        """What the one before cost says nothing of the next."""
        self._wait_s = _Learnt()
        self._token_s = _Learnt()
        self._num_told = self._num_read = 0  # since it last had nothing to read
        self._slowed_s = 0.0  # likewise
        self._ended_s: float | None = None

    @property
    def is_going_on(self) -> bool:
        """Whether the hub has something to read."""
        return self._num_told > 0

    def note_told(self, num_tokens: int, waited_s: float) -> None:
        """A step told the hub of texts of so many tokens, and waited so much longer than for drafts alone."""
        self._num_told += num_tokens
        self._wait_s.note(max(0.0, waited_s))

    def note_answered(self, num_read: int, num_refused: int) -> None:
        """It has read texts of so many tokens, and refused others, which it has not read."""
        self._num_read += num_read
        self._num_told = max(0, self._num_told - num_refused)
        if not self._num_told:
            self._num_read, self._slowed_s = 0, 0.0

    def note_slowed(self, seconds: float) -> None:
        """A step of vLLM beside it took so much longer than usual; shorter, where it is negative."""
        self._slowed_s += seconds

    def note_end(self, now: float) -> None:
        """What was going on has ended; what it was told and has not answered to, nobody wants any more."""
        self._token_s.note(self._slowed_token_s)
        self._num_told, self._num_read, self._slowed_s, self._ended_s = 0, 0, 0.0, now

    def note_answer(self, num_tokens: int) -> None:
        """A request ended after so many tokens."""
        self._answer_len += WEIGHT * (num_tokens - self._answer_len)

    def seconds(self, num_tokens: int) -> float:
        """That vLLM loses if the hub is told of so many tokens.

        What is being read may already have cost more than usual.
        """
        token_s = max(self._token_s.seconds, self._slowed_token_s if self._num_told else 0.0)
        return self._wait_s.seconds + num_tokens * token_s

    def is_worth(self, num_tokens: int, now_s: float, then_s: float) -> bool:
        """Whether to have so many tokens read.

        How many tokens a request has had says little of how many follow, so as many are expected as requests have in
        all. Drafts come for those that are left when the texts are read.

        Args:
            now_s: in which every request gains one token,
            then_s: and in which it will, once they are read.
        """
        cost_s = self.seconds(num_tokens)
        return (now_s - then_s) * (self._answer_len - cost_s / now_s) > cost_s

    def is_worth_a_probe(self, num_tokens: int, now: float) -> bool:
        """Whether to have so many tokens read for the sake of knowing whether drafts pay."""
        return self._ended_s is None or self.seconds(num_tokens) <= PROBE_SHARE * (now - self._ended_s)

    @property
    def _slowed_token_s(self) -> float:
        return max(0.0, self._slowed_s) / max(self._num_read, self._num_told / UNREAD)


class _Learnt:
    """Seconds, after the last measurements; none before the first."""

    def __init__(self) -> None:
        self._known: float | None = None

    @property
    def seconds(self) -> float:
        return self._known or 0.0

    def note(self, seconds: float) -> None:
        if not self._known:
            self._known = seconds
            return
        weight = WEIGHT if seconds > self._known else WEIGHT_IF_LESS
        self._known += weight * (min(seconds, MAX_RATIO * self._known) - self._known)
