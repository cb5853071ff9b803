"""Whether a chain that is there in part is worth waiting for: a draft step takes time, and the target could be
verifying.
"""

from __future__ import annotations

MEMORY = 0.97  # weight of a round, one round later
SUPPOSED_TESTED, SUPPOSED_ACCEPTED = 4.0, 3.0  # before anything is known


class Pace:
    """What was accepted of one sequence's chains."""

    def __init__(self) -> None:
        self._tested = SUPPOSED_TESTED
        self._accepted = SUPPOSED_ACCEPTED

    def add_verdict(self, num_proposed: int, num_accepted: int) -> None:
        """So much of a chain of `num_proposed` tokens was accepted; there may be none."""
        if num_proposed:
            self._tested = MEMORY * self._tested + min(num_proposed, num_accepted + 1)
            self._accepted = MEMORY * self._accepted + min(num_proposed, num_accepted)

    def emitted(self, num_tokens: int) -> float:
        """Tokens that a round with a chain of so many is likely to emit: 1 + a + ... + a**n."""
        return sum(self._likely**depth for depth in range(num_tokens + 1))

    def pays_to_wait(self, num_tokens: int, step_s: float, away_s: float) -> bool:
        """Whether one more token is worth a draft step, to a target that could have this many now.

        A round emits 1 + a + ... + a**n tokens in Z + w seconds. One more token adds a**(n + 1) for t_s seconds; it is
        worth them if that is no worse a rate.

        Args:
            away_s: Z + w: how long the target takes to answer, and how long it has waited.
        """
        return self._likely ** (num_tokens + 1) * away_s >= self.emitted(num_tokens) * step_s

    @property
    def _likely(self) -> float:
        return self._accepted / self._tested
