"""Which sequences a step admits, prefills and decodes, and how much of their drafts: pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple, Protocol

from starspec.ids import RequestKey


class Candidate(NamedTuple):
    """One sequence, as a scheduler sees it."""

    key: RequestKey
    num_tokens: int = 0  # committed
    num_passed_over: int = 0  # consecutive steps that chose others, although it was ready
    is_in_flight: bool = False  # it is being verified or prefilled, or its draft is on its way: it is not ready


@dataclass(frozen=True, slots=True)
class ScheduleSnapshot:
    """The target's sequences; those of one connection are oldest first."""

    waiting: tuple[Candidate, ...]
    prefilling: tuple[Candidate, ...]  # in the order in which they are to get chunks
    running: tuple[Candidate, ...]
    num_free_rows: int
    depth: int = 1  # rounds that should be in flight


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What one step does, in the order of the fields."""

    admit: tuple[RequestKey, ...]  # give these a cache row and a tag at the hub
    prefill: RequestKey | None  # forward one chunk of this prompt
    decode: tuple[RequestKey, ...]  # run one round over these


class Scheduler(Protocol):
    """Plans steps. Implementations hold configuration only."""

    def choose(self, snapshot: ScheduleSnapshot) -> StepPlan: ...


@dataclass(frozen=True, slots=True)
class Continuous:
    """First come, first served. A step runs one prefill chunk and one round, so long prompts delay others little."""

    def choose(self, snapshot: ScheduleSnapshot) -> StepPlan:
        admit = keys_of(snapshot.waiting[: snapshot.num_free_rows])
        return StepPlan(admit, first_prefill(snapshot, admit), next_group(snapshot))


@dataclass(frozen=True, slots=True)
class FixedBatches:
    """Static batches (algorithm 2 of the paper): all begin together, and none joins until all have ended."""

    def choose(self, snapshot: ScheduleSnapshot) -> StepPlan:
        is_over = not snapshot.prefilling and not snapshot.running
        admit = keys_of(snapshot.waiting[: snapshot.num_free_rows]) if is_over else ()
        is_prefilling = bool(admit or snapshot.prefilling)
        return StepPlan(admit, first_prefill(snapshot, admit), () if is_prefilling else next_group(snapshot))


@dataclass(frozen=True, slots=True)
class PromptsFirst:
    """Wraps another scheduler: no round runs while a prompt is prefilled, so rounds are as full as rows allow.

    For offline work, where throughput counts. Running sequences wait for the whole prompts of others. With one chunk a
    round instead, prompts that are longer than answers would each be ready too late for the batch of the one before.
    """

    scheduler: Scheduler

    def choose(self, snapshot: ScheduleSnapshot) -> StepPlan:
        plan = self.scheduler.choose(snapshot)
        return replace(plan, decode=()) if plan.admit or snapshot.prefilling else plan


def keys_of(candidates: tuple[Candidate, ...]) -> tuple[RequestKey, ...]:
    return tuple(each.key for each in candidates)


def first_prefill(snapshot: ScheduleSnapshot, admit: tuple[RequestKey, ...]) -> RequestKey | None:
    """The next prompt to prefill: one that has a row, else the first of those that are admitted now."""
    started = (each.key for each in snapshot.prefilling if not each.is_in_flight)
    entering = (each for each in keys_of(snapshot.waiting) if each in admit)
    return next(chain(started, entering), None)


def next_group(snapshot: ScheduleSnapshot) -> tuple[RequestKey, ...]:
    """The sequences of the next round: so many that `depth` rounds have all of them, those that wait longest first."""
    candidates = ready(snapshot.running)
    if snapshot.depth > 1:
        size = math.ceil(len(snapshot.running) / snapshot.depth)
        candidates = tuple(sorted(candidates, key=lambda each: -each.num_passed_over)[:size])
    return keys_of(candidates)


def ready(candidates: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
    return tuple(each for each in candidates if not each.is_in_flight)


def longest_draft(wanted: Sequence[int], max_tokens: int) -> int:
    """How long a draft may be in a round of these windows, so that they have at most so many tokens together.

    Long drafts are cut before short ones: the last tokens of a long draft are the least likely to be accepted.

    Args:
        wanted: draft tokens of each window, which has its root besides.
    """
    room = max_tokens - len(wanted)
    for num_left, num_tokens in zip(range(len(wanted), 0, -1), sorted(wanted), strict=True):
        if num_left * num_tokens > room:
            return max(0, room) // num_left
        room -= num_tokens
    return max(wanted, default=0)


def passed_over(snapshot: ScheduleSnapshot, plan: StepPlan) -> tuple[list[RequestKey], list[RequestKey]]:
    """The sequences that a plan passes over.

    Returns: those that still wait although a later one gets a row; and those that could be in the round and are not.
    """
    admitted, decoded = set(plan.admit), set(plan.decode)
    waiting = keys_of(snapshot.waiting)
    num_before_last = max((index for index, each in enumerate(waiting) if each in admitted), default=0)
    overtaken = [each for each in waiting[:num_before_last] if each not in admitted]
    left_out = [each.key for each in ready(snapshot.running) if each.key not in decoded] if plan.decode else []
    return overtaken, left_out
