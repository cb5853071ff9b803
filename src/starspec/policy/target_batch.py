"""Which sequences a step works on: pure functions of a snapshot."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from typing import Protocol

from starspec.ids import RequestKey


@dataclass(frozen=True, slots=True)
class Candidate:
    """One sequence, as a scheduler sees it."""

    key: RequestKey
    num_tokens: int = 0  # committed
    num_passed_over: int = 0  # steps in a row that took others instead, although it could have been taken


@dataclass(frozen=True, slots=True)
class ScheduleSnapshot:
    """The target's sequences, each list oldest first."""

    waiting: tuple[Candidate, ...]
    prefilling: tuple[Candidate, ...]  # in the order in which they got their rows
    running: tuple[Candidate, ...]
    num_free_rows: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What one step does, in this order."""

    admit: tuple[RequestKey, ...]  # get a cache row and a tag at the hub
    prefill: RequestKey | None  # forward one chunk of this prompt
    decode: tuple[RequestKey, ...]  # one round over these


class Scheduler(Protocol):
    """Chooses steps. Implementations hold configuration only."""

    def choose(self, snapshot: ScheduleSnapshot) -> StepPlan: ...


@dataclass(frozen=True, slots=True)
class Continuous:
    """First come, first served; one prefill chunk beside each round, so that a long prompt delays others little."""

    def choose(self, snapshot: ScheduleSnapshot) -> StepPlan:
        admit = keys_of(snapshot.waiting[: snapshot.num_free_rows])
        return StepPlan(admit, first_prefill(snapshot, admit), keys_of(snapshot.running))


@dataclass(frozen=True, slots=True)
class FixedBatches:
    """The batches of the paper's algorithm 2: all of a batch begin together, and nobody joins until all have ended."""

    def choose(self, snapshot: ScheduleSnapshot) -> StepPlan:
        is_over = not snapshot.prefilling and not snapshot.running
        admit = keys_of(snapshot.waiting[: snapshot.num_free_rows]) if is_over else ()
        prefill = first_prefill(snapshot, admit)
        return StepPlan(admit, prefill, () if prefill else keys_of(snapshot.running))


@dataclass(frozen=True, slots=True)
class PromptsFirst:
    """Another scheduler's steps, but no round while a prompt is read: rounds are as full as rows allow.

    For work that is there all at once, of which throughput counts. Who runs waits for whole prompts of others; beside
    rounds, prompts longer than answers would come one after the other, each too late for the batch of the one before.
    """

    scheduler: Scheduler

    def choose(self, snapshot: ScheduleSnapshot) -> StepPlan:
        plan = self.scheduler.choose(snapshot)
        return plan if plan.prefill is None else replace(plan, decode=())


def keys_of(candidates: tuple[Candidate, ...]) -> tuple[RequestKey, ...]:
    return tuple(each.key for each in candidates)


def first_prefill(snapshot: ScheduleSnapshot, admit: tuple[RequestKey, ...]) -> RequestKey | None:
    """The prompt whose turn it is: one that was begun is read to its end; of those that enter together, the oldest."""
    entering = (each for each in keys_of(snapshot.waiting) if each in admit)
    return next(chain(keys_of(snapshot.prefilling), entering), None)


def passed_over(snapshot: ScheduleSnapshot, plan: StepPlan) -> tuple[list[RequestKey], list[RequestKey]]:
    """In whose place a plan takes others.

    Returns: those who wait on although one that arrived later gets a row; and those who could be in the plan's
        round and are not.
    """
    admitted, decoded = set(plan.admit), set(plan.decode)
    waiting = keys_of(snapshot.waiting)
    num_before_last = max((place for place, each in enumerate(waiting) if each in admitted), default=0)
    overtaken = [each for each in waiting[:num_before_last] if each not in admitted]
    left_out = [each for each in keys_of(snapshot.running) if each not in decoded] if plan.decode else []
    return overtaken, left_out
