"""When answers whose grammars take long must let others run: masks are computed between the forwards of all.

Most grammars take a tenth of a millisecond for each token. One that is made for it takes some milliseconds, and eight
answers to it would double what a round of a small model takes.
"""

from __future__ import annotations

import math
from typing import Final

FREE_S: Final = 0.0005  # of a processor, for each token of each answer
SHARE: Final = 0.1  # of a target's time, for what all grammars take beyond that while others run
BURST_S: Final = 0.1  # of waiting that may be owed, so that a long step now and then costs nobody a turn


class GrammarTurns:
    """What the grammars of one target have taken."""

    def __init__(self) -> None:
        self._paid_s = -math.inf  # when the share will have made up for what was taken

    def spend(self, seconds: float, num_tokens: int, now: float) -> bool:
        """A round of one answer brought so many tokens, and its grammar took so long.

        Returns: whether this was more than is free.
        """
        beyond_s = seconds - FREE_S * num_tokens
        if beyond_s <= 0.0:
            return False
        self._paid_s = max(self._paid_s, now) + beyond_s / SHARE
        return True

    def must_wait(self, now: float) -> bool:
        """Whether answers that take more than is free must let others run without them."""
        return self._paid_s > now + BURST_S
