"""How many windows a target in stages should have in flight, and how long their drafts should be. No I/O.

Sequences that are in different windows fill the pipe without any risk. Windows of one sequence follow one another along
its draft, and those behind a refused token are dropped: that pays only if most windows are accepted whole.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import ceil, fsum
from typing import Final, NamedTuple

from starspec.policy.estimators import DecayedMean
from starspec.policy.traversal import Pipeline, StageTime, expected_tokens

MIN_GAIN: Final = 1.05  # of windows in flight over the best synchronous rounds, as they cost computing; else depth 1
MAX_DEPTH: Final = 32  # windows of one sequence
MAX_ROUNDS: Final = 4  # each has its share of the sequences, and drafts for few cost a hub as much as for many
NUM_RECENT: Final = 32  # traversals
WEIGHT: Final = 1 / 16  # of the newest stage times


class PipePlan(NamedTuple):
    """What each sequence should do."""

    num_draft_tokens: int  # of a window
    depth: int  # windows in flight; 1 = each round waits for the one before
    interval_s: float = 0.0  # between two launches of windows that stand on one another; faster ones would only queue


ONE_WINDOW: Final = PipePlan(0, 1)


def plan_windows(
    pipeline: Pipeline,
    alpha: float,
    draft_s: float,
    max_draft_tokens: int,
    max_depth: int,
    num_sequences: int = 1,
    *,
    ask_s: float = 0.0,
) -> PipePlan:
    """The fastest length and depth.

    Args:
        pipeline: as measured.
        alpha: probability that a draft token is accepted, below 1.
        draft_s: of one draft token.
        ask_s: of a draft, whatever its length: messages and waits.
        max_draft_tokens: of one window.
        max_depth: windows in flight of one sequence, as many as the draft can feed.
        num_sequences: that share the pipe. Synchronous rounds have all of them in one forward. With windows in flight,
            each goes on at a time of its own, so each window is a forward of its own.
    Returns: depth 1 unless more depth gains much. No draft tokens: plain decoding. Before anything is measured, one
        draft token, which shows the acceptance.
    """
    if not pipeline.bottleneck_s(1):
        return PipePlan(min(1, max_draft_tokens), 1)
    lengths = range(max_draft_tokens + 1)
    synchronous = max(_synchronous(pipeline, alpha, draft_s, ask_s, each) for each in lengths)
    if max_depth == 1:
        return synchronous.plan
    ahead = max(_in_flight(pipeline, alpha, draft_s, ask_s, each, max_depth, num_sequences) for each in lengths)
    return (ahead if ahead.tokens_per_s >= MIN_GAIN * synchronous.tokens_per_s else synchronous).plan


class _Candidate(NamedTuple):
    tokens_per_s: float
    plan: PipePlan


def _synchronous(pipeline: Pipeline, alpha: float, draft_s: float, ask_s: float, num: int) -> _Candidate:
    drafting_s = num * draft_s + ask_s if num else 0.0
    return _Candidate(pipeline.tokens_per_s(alpha, num, 1, drafting_s), PipePlan(num, 1))


def _in_flight(
    pipeline: Pipeline, alpha: float, draft_s: float, ask_s: float, num: int, max_depth: int, num_sequences: int
) -> _Candidate:
    interval_s = max(num_sequences * pipeline.bottleneck_s(num + 1), (num + 1) * draft_s + ask_s)
    round_s = pipeline.round_s(num, num * draft_s + ask_s)
    depth = max(1, min(max_depth, ceil(round_s / interval_s - 1e-9)))
    goes_on = alpha ** (num + 1)
    a_window_s = goes_on * max(interval_s, round_s / depth) + (1.0 - goes_on) * round_s
    return _Candidate(expected_tokens(alpha, num) / a_window_s, PipePlan(num, depth, interval_s))


class PipeTimes:
    """What traversals have taken.

    Args:
        num_stages: of the pipe.
    """

    def __init__(self, num_stages: int) -> None:
        self._stages = [DecayedMean(WEIGHT) for _ in range(num_stages)]
        self._traversals: deque[float] = deque(maxlen=NUM_RECENT)

    def note(self, traversal_s: float, stage_s: Sequence[float]) -> None:
        """A traversal has landed. Args: stage_s: computing of each stage."""
        self._traversals.append(traversal_s)
        for mean, seconds in zip(self._stages, stage_s, strict=True):
            mean.add(seconds)

    @property
    def pipeline(self) -> Pipeline:
        """All time that is not computing is put on the way back. Of recent traversals the shortest waited least."""
        stages = [StageTime(one_s=each.value) for each in self._stages]
        links_s = min(self._traversals, default=0.0) - fsum(each.one_s for each in stages)
        return Pipeline(stages=stages, hops_s=[0.0] * (len(stages) - 1), return_s=max(0.0, links_s))

    @property
    def num_rounds(self) -> int:
        """Rounds of different sequences in flight with which the slowest stage is just never idle; 1 at first.

        It is rounded to the nearest, since it is measured while so many are in flight: any queue makes a traversal
        longer, and a number that is rounded up would grow without end.
        """
        pipeline = self.pipeline
        slowest_s = pipeline.bottleneck_s(1)
        if not slowest_s:
            return 1
        return min(MAX_ROUNDS, max(1, round(pipeline.traversal_s(1) / slowest_s)))
