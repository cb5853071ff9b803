"""Which sequences a step works on: pure functions of a snapshot, so that a simulator can use the same ones."""

from __future__ import annotations

from dataclasses import dataclass

from starspec.ids import RequestId


@dataclass(frozen=True, slots=True)
class ScheduleSnapshot:
    """The target's sequences, each list oldest first."""

    waiting: tuple[RequestId, ...]
    prefilling: tuple[RequestId, ...]
    running: tuple[RequestId, ...]
    num_free_rows: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What one step does, in this order."""

    admit: tuple[RequestId, ...]  # get a cache row and a tag at the hub
    prefill: RequestId | None  # forward one chunk of this prompt
    decode: tuple[RequestId, ...]  # one round over these


def choose_step(snapshot: ScheduleSnapshot) -> StepPlan:
    """First come, first served; one prefill chunk beside each round, so that a long prompt delays others little."""
    admit = snapshot.waiting[: snapshot.num_free_rows]
    prefilling = (*snapshot.prefilling, *admit)
    return StepPlan(admit, prefilling[0] if prefilling else None, snapshot.running)
