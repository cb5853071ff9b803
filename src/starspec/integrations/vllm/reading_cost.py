"""Whether a request is worth a hub's reading it: what drafts would save until its end, and what reading costs vLLM.

A hub of its own reads while vLLM decodes, which costs vLLM next to nothing; one on the same cores slows vLLM down for
as long as it reads. So what counts is not how long the hub reads, but what vLLM loses: from the first text that the
hub is told to its answer to the last, the time beyond what steps and rounds take without one.
"""

from __future__ import annotations

from typing import Final

FIRST_ANSWER: Final = 128.0  # tokens that a request still gets, before any was seen to end
WEIGHT: Final = 0.2  # of a new measurement among those before it
UNREAD: Final = 2.0  # times what was lost, where it was lost for nothing
PROBE_SHARE: Final = 0.05  # of vLLM's time, at most, that reading for probes alone may cost


class ReadingCost:
    """Learnt from what was read.

    Before anything was, reading is thought to cost nothing: it has to be tried.
    """

    def __init__(self) -> None:
        self._token_s: float | None = None
        self._answer_len = FIRST_ANSWER
        self._num_told = 0  # tokens that are being read
        self._lost_s = 0.0  # since the first of them was told
        self._ended_s: float | None = None

    @property
    def is_going_on(self) -> bool:
        """Whether the hub was told of a text that it has not answered to."""
        return self._num_told > 0

    def note_told(self, num_tokens: int) -> None:
        """The hub was told of texts of so many tokens, or of none."""
        self._num_told += num_tokens

    def note_lost(self, seconds: float) -> None:
        """While it reads, vLLM took so much longer than usual."""
        self._lost_s += max(0.0, seconds)

    def note_end(self, now: float, num_read: int) -> None:
        """It reads no more. It has answered to texts of so many tokens; what it was told besides came to nothing.

        Where it answered to nothing, because all requests ended first, reading takes longer than that: twice, say.
        """
        token_s = self._lost_s / num_read if num_read else UNREAD * self._lost_s / self._num_told
        self._token_s = token_s if self._token_s is None else self._token_s + WEIGHT * (token_s - self._token_s)
        self._num_told, self._lost_s, self._ended_s = 0, 0.0, now

    def note_answer(self, num_tokens: int) -> None:
        """A request ended after so many tokens."""
        self._answer_len += WEIGHT * (num_tokens - self._answer_len)

    def seconds(self, num_tokens: int) -> float:
        """That vLLM loses while the hub reads so many tokens.

        What is being read may already have cost more than usual.
        """
        token_s = self._token_s or 0.0
        if self._num_told:
            token_s = max(token_s, self._lost_s / self._num_told)
        return num_tokens * token_s

    def is_worth(self, num_tokens: int, saved_s: float) -> bool:
        """Whether to have so many tokens read.

        Args:
            saved_s: by a token of each request, with the drafts that it allows.
        """
        return saved_s * self._answer_len > self.seconds(num_tokens)

    def is_worth_a_probe(self, num_tokens: int, now: float) -> bool:
        """Whether to have so many tokens read for the sake of knowing whether drafts pay."""
        return self._ended_s is None or self.seconds(num_tokens) <= PROBE_SHARE * (now - self._ended_s)
