"""A target with rounds in flight does not stand still for a proposal: other rounds go first, and land meanwhile."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import pytest
from late import LateVerifier
from toy_hub import Star, VirtualClock

from starspec.windows.local import LocalVerifier
from starspec.windows.verifier import Landed, Ticket, Verifier
from starspec.windows.window import Window

TRAVERSAL_S = 0.1
NUM_TOKENS = 50
NUM_ROUNDS = NUM_TOKENS // 5  # of one sequence, if all four draft tokens are always accepted


class FarVerifier(LateVerifier):
    """Its verdicts land a traversal after their launch."""

    def __init__(self, verifier: LocalVerifier, clock: VirtualClock, depth: int) -> None:
        super().__init__(verifier, 0, depth)
        self._clock = clock
        self._flying: deque[tuple[float, Landed]] = deque()

    def launch(self, windows: Sequence[Window], feature_layers: Sequence[int] = ()) -> Ticket:
        ticket = super().launch(windows, feature_layers)
        self._flying.append((self._clock.now + TRAVERSAL_S, self._held.pop()[1]))
        return ticket

    def poll(self, timeout_s: float) -> list[Landed]:
        if self._flying:
            self._clock.now = max(self._clock.now, min(self._flying[0][0], self._clock.now + timeout_s))
        landed = []
        while self._flying and self._flying[0][0] <= self._clock.now:
            landed.append(self._flying.popleft()[1])
        return landed


class FarStar(Star):
    def make_verifier(self) -> Verifier:
        return FarVerifier(LocalVerifier(self.make_runner()), self.clock, depth=3)


def far_star(busy_s: float) -> FarStar:
    star = FarStar()
    star.hub.busy_s = busy_s
    for name in "ab":
        star.submit(name, [1, ord(name) % 60], NUM_TOKENS)
    return star


@pytest.mark.parametrize("busy_s", [0.0, 0.03])
def test_each_round_gets_its_proposal_and_the_other_sequence_does_not_wait_for_it(busy_s: float) -> None:
    star = far_star(busy_s)
    started_s = star.clock.now
    star.finish()
    assert star.stats.num_late_rounds == 0
    assert star.stats.num_rounds <= 2 * (NUM_ROUNDS + 2)
    assert star.clock.now - started_s < (NUM_ROUNDS + 2) * (TRAVERSAL_S + busy_s + 0.03)


def test_who_waits_in_vain_is_held_back_for_one_deadline() -> None:
    star = far_star(0.0)
    while star.stats.num_rounds < 6:
        star.step()
    star.hub.mood = "mute"
    star.finish()
    assert star.stats.num_late_rounds > 0
    assert star.longest_gap_s < 0.3
