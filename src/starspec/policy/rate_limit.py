"""How much a target may have drafted: a token bucket, in draft tokens."""

from __future__ import annotations

from typing import Final

BURST_S: Final = 1.0  # what was not used for so long may be used at once


class TokenBucket:
    """Fills at a rate; may go below empty by what is asked for while it is not.

    Args:
        tokens_per_s: above 0.
    """

    def __init__(self, tokens_per_s: float) -> None:
        self._tokens_per_s = tokens_per_s
        self._level = tokens_per_s * BURST_S
        self._filled_s: float | None = None

    def has_tokens(self, now: float, num_reserved: int = 0) -> bool:
        """Whether a proposal may be drafted, if so many tokens of others are to be taken before."""
        since_s = 0.0 if self._filled_s is None else max(0.0, now - self._filled_s)
        self._level = min(self._tokens_per_s * BURST_S, self._level + self._tokens_per_s * since_s)
        self._filled_s = now if self._filled_s is None else max(now, self._filled_s)
        return self._level > num_reserved

    def take(self, num_tokens: int) -> None:
        """They have been proposed."""
        self._level -= num_tokens
