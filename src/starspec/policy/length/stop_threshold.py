"""AdaEDL's threshold of one sequence: how sure a draft model must be to go on."""

from __future__ import annotations

from typing import Final

FIRST: Final = 0.4
WANTED: Final = 0.9  # share of draft tokens that should be accepted (alpha)
RATE_KEPT: Final = 0.5  # of the mean acceptance, in each round (beta_1)
THRESHOLD_KEPT: Final = 0.9  # of the threshold (beta_2)
STEP: Final = 0.01  # (epsilon)


class StopThreshold:
    """Follows the acceptance of one sequence, from round to round."""

    def __init__(self) -> None:
        self.value = FIRST  # 0 to 1
        self._rate = WANTED  # so that the first rounds count as half

    def add_round(self, num_drafted: int, num_accepted: int) -> None:
        """A draft was verified. A round without one says nothing."""
        if not num_drafted:
            return
        self._rate = RATE_KEPT * self._rate + (1.0 - RATE_KEPT) * num_accepted / num_drafted
        moved = self.value + (STEP if self._rate < WANTED else -STEP if self._rate > WANTED else 0.0)
        self.value = min(1.0, max(0.0, THRESHOLD_KEPT * self.value + (1.0 - THRESHOLD_KEPT) * moved))
