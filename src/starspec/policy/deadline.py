"""How long a round may wait for proposals: never so long that a client sees its tokens stall (ADR 5)."""

from __future__ import annotations

from typing import Final

from starspec.stats import Mean

MIN_S: Final = 0.050
FIRST_S: Final = 1.0  # before any round has been measured
MAX_GAP_S: Final = 0.250  # a client may always wait so long for a token; only rounds of over half of it may take longer
GAP_SHARE: Final = 0.8  # of the longest gap: the rest is for what happens between two rounds


class Deadline:
    """Seconds, such that even a round that waits in vain ends within two recent rounds, or MAX_GAP_S.

    Nor does it wait for longer than a proposal can save: recent rounds contain their waits, so a hub that is always as
    late would otherwise be waited for as long for ever.

    Args:
        fixed_s: the operator's own; None = follows recent rounds.
    """

    def __init__(self, fixed_s: float | None = None) -> None:
        self._fixed_s = fixed_s
        self._round, self._verify = Mean(), Mean()  # seconds of recent rounds

    def seconds(self, num_steps: int) -> float:
        """For the next wait.

        Args:
            num_steps: tokens that a proposal can give at most; each spares a forward.
        """
        if self._fixed_s is not None:
            return self._fixed_s
        if not self._round.count:
            return FIRST_S
        plain_s = (1 + num_steps) * self._verify.value  # what as many tokens take without the hub
        longest_s = GAP_SHARE * max(MAX_GAP_S, min(2.0 * self._round.value, plain_s))
        return max(MIN_S, longest_s - self._verify.value)

    def note_round(self, round_s: float, verify_s: float) -> None:
        """A round took so long, and so much of it its forward."""
        self._round.add(round_s)
        self._verify.add(verify_s)
