"""Whether a chain that is there in part is worth waiting for: a layer takes time, and the target could be verifying."""

from __future__ import annotations

from starspec.speculation.stats import Mean

MEMORY = 0.97  # weight of a round, one round later
SUPPOSED_TESTED, SUPPOSED_ACCEPTED = 4.0, 3.0  # before anything is known


class Pace:
    """How the rounds of one session went: what was accepted, and how long the target was away."""

    def __init__(self) -> None:
        self._tested = SUPPOSED_TESTED
        self._accepted = SUPPOSED_ACCEPTED
        self._return = Mean()  # Z, seconds

    def add_round(self, num_proposed: int, num_accepted: int, return_s: float) -> None:
        """A verdict came `return_s` after a chain of `num_proposed` tokens was handed over."""
        self._tested = MEMORY * self._tested + min(num_proposed, num_accepted + 1)
        self._accepted = MEMORY * self._accepted + num_accepted
        self._return.add(return_s)

    def pays_to_wait(self, num_tokens: int, layer_s: float, waited_s: float) -> bool:
        """Whether one more token is worth a layer, to a target that has waited and could have this many now.

        A round emits 1 + a + ... + a**n tokens in Z + w seconds. One more token adds a**(n + 1) for t_s seconds; it is
        worth them if that is no worse a rate.
        """
        if not self._return.count:
            return True
        likely = self._accepted / self._tested
        emitted = sum(likely**depth for depth in range(num_tokens + 1))
        return likely ** (num_tokens + 1) * (self._return.value + waited_s) >= emitted * layer_s
