"""A verifier whose verdicts land late, as those of a target on other machines do."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from starspec.windows.local import LocalVerifier
from starspec.windows.verifier import Landed, Ticket
from starspec.windows.window import Window

LANDINGS = (None, (1, 1), (3, 3), (5, 2))
"""Ways to land, for tests that hold for all of them: at once, or late by so many polls, at such a depth."""


class LateVerifier:
    """Implements Verifier. Every launch computes at once, and its answer is told late.

    Args:
        num_polls: so many polls after a launch return without it.
        depth: as of a Verifier.
        num_each: windows of one sequence that may be in flight.
    """

    def __init__(self, verifier: LocalVerifier, num_polls: int, depth: int, num_each: int = 1) -> None:
        self.runner, self.info, self.cache = verifier.runner, verifier.info, verifier.cache
        self.max_tokens, self.refusal, self.pipe = verifier.max_tokens, verifier.refusal, verifier.pipe
        self.depth = depth
        self.most_in_flight = 0
        self._num_each = num_each
        self._verifier = verifier
        self._num_late = num_polls
        self._num_polls = 0
        self._held: deque[tuple[int, Landed]] = deque()  # (polls at the launch, its answer), oldest first

    def num_windows(self, num_running: int, num_wanted: int) -> int:
        return self._num_each

    def launch(self, windows: Sequence[Window], feature_layers: Sequence[int] = ()) -> Ticket:
        ticket = self._verifier.launch(windows, feature_layers)
        (landed,) = self._verifier.poll(0.0)
        self._held.append((self._num_polls, landed))
        self.most_in_flight = max(self.most_in_flight, len(self._held))
        return ticket

    def poll(self, timeout_s: float) -> list[Landed]:
        self._num_polls += 1
        landed = []
        while self._held and self._num_polls - self._held[0][0] > self._num_late:
            landed.append(self._held.popleft()[1])
        return landed

    def close(self) -> None:
        pass
