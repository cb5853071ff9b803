"""Costs and sequences that length policies weigh in tests."""

from __future__ import annotations

from starspec.policy.deadline import Round
from starspec.policy.length.acceptance import IDLE_ROUNDS, Acceptance
from starspec.policy.length.costs import Costs
from starspec.policy.length.snapshot import SequenceSnapshot

STEP_S = 0.1


def measured(step_s: dict[int, float] | None = None, wait_s: float = 0.01) -> Costs:
    """Costs of steps by their tokens, each measured a few times, and of waits whose whole cost is fixed."""
    costs = Costs()
    for size, seconds in (step_s or dict.fromkeys((1, 2, 4, 100), STEP_S)).items():
        for _ in range(3):
            costs.steps.add(size, seconds)
    for length in (1, 2, 3, 4):
        costs.rounds.add(Round([length], wait_s))
    return costs


def sequence(rate: float = 0.9, *, is_idle: bool = False, num_to_prefill: int = 0, room: int = 99) -> SequenceSnapshot:
    acceptance = Acceptance(rate)
    for _ in range(IDLE_ROUNDS if is_idle else 0):
        acceptance.add(0, 0)
    return SequenceSnapshot(
        max_remaining_tokens=room,
        num_tokens=num_to_prefill or 50,
        num_to_prefill=num_to_prefill,
        is_held=not num_to_prefill,
        acceptance=acceptance,
    )
