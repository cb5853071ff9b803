"""Limits the draft tokens of a target per second: a token bucket."""

from __future__ import annotations

from typing import Final

BURST_S: Final = 1.0  # tokens of so many seconds may be saved up


class TokenBucket:
    """Fills at a rate, up to the tokens of BURST_S seconds. A proposal that is allowed may take more than there are.

    Args:
        tokens_per_s: above 0.
    """

    def __init__(self, tokens_per_s: float) -> None:
        self._tokens_per_s = tokens_per_s
        self._level = tokens_per_s * BURST_S
        self._filled_s: float | None = None

    def has_tokens(self, now: float, num_reserved: int = 0) -> bool:
        """Whether another proposal is allowed, if so many tokens are reserved for others."""
        since_s = 0.0 if self._filled_s is None else max(0.0, now - self._filled_s)
        self._level = min(self._tokens_per_s * BURST_S, self._level + self._tokens_per_s * since_s)
        self._filled_s = now if self._filled_s is None else max(now, self._filled_s)
        return self._level > num_reserved

    def take(self, num_tokens: int) -> None:
        """So many tokens were proposed."""
        self._level -= num_tokens
