"""How many tokens to ask for: fewer for a request that accepts few, none for one that accepts none, with probes."""

from __future__ import annotations

from typing import Final

WEIGHT: Final = 0.2  # of the newest draft in the mean
WORTHLESS: Final = 0.3  # accepted tokens of a draft, below which drafting costs more than it gives
PROBE_EVERY: Final = 16  # steps without a draft until one is tried again
PROBE_TOKENS: Final = 2


class DraftLength:
    """How long one request's next draft is to be.

    Args:
        max_tokens: longest draft.
        is_fixed: always ask for the longest.
    """

    def __init__(self, max_tokens: int, is_fixed: bool = False) -> None:
        self._max_tokens = max_tokens
        self._is_fixed = is_fixed
        self._mean_accepted = float(max_tokens)
        self._num_idle_steps = 0

    def choose(self) -> int:
        """Tokens to ask for in this step."""
        if self._is_fixed:
            return self._max_tokens
        if self._mean_accepted >= WORTHLESS:
            return min(self._max_tokens, 1 + round(2 * self._mean_accepted))
        self._num_idle_steps += 1
        if self._num_idle_steps < PROBE_EVERY:
            return 0
        self._num_idle_steps = 0
        return min(self._max_tokens, PROBE_TOKENS)

    def note(self, num_drafted: int, num_accepted: int) -> None:
        """A draft of so many tokens was verified. One that was accepted whole might have been longer."""
        if num_drafted:
            worth = num_accepted + (num_accepted == num_drafted)
            self._mean_accepted += WEIGHT * (worth - self._mean_accepted)
