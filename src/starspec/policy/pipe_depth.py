"""How many windows a target in stages should have in flight, and how long their drafts should be. No I/O.

Sequences that are in different windows fill the pipe without any risk. Windows of one sequence follow one another along
its draft, and those behind a refused token are dropped: that pays only if most windows are accepted whole.
"""

from __future__ import annotations

from collections import deque
from math import sqrt
from typing import Final, NamedTuple

from starspec.policy.estimators import DecayedMean
from starspec.policy.traversal import Pipeline, StageTime, expected_tokens

MAX_DEPTH: Final = 32  # windows of one sequence
DEPTHS: Final = (2, 3, 4, 6, 8, 12, 16, 24, MAX_DEPTH)  # that are tried
SHORTEST_S: Final = 1e-9  # of a run and of a gap: stages may say that they take no time at all
NEAR_BEST: Final = 0.99  # of the best speed: the least depth that comes so near, since what is refused costs computing
MAX_ROUNDS: Final = 4  # each has its share of the sequences, and drafts for few cost a hub as much as for many
NUM_RECENT: Final = 32  # traversals
WEIGHT: Final = 1 / 16  # of the newest stage times


class PipePlan(NamedTuple):
    """What each sequence should do."""

    num_draft_tokens: int  # of a window
    depth: int  # windows in flight; 1 = each round waits for the one before


ONE_WINDOW: Final = PipePlan(0, 1)


class Promise(NamedTuple):
    """What a plan brings, as far as is known."""

    tokens_per_s: float  # of one sequence
    plan: PipePlan

    def scaled(self, factor: float) -> Promise:
        """The same plan, `factor` times as fast."""
        return Promise(self.tokens_per_s * factor, self.plan)


class WindowGap(NamedTuple):
    """From one verdict of a sequence to the next, while as many windows were in flight as before."""

    seconds: float
    num_draft_tokens: int  # of the window that has landed
    stands: bool  # the one before was as presumed, so this one stood on it, or could have
    num_tokens: int  # that its verdict gave


class WindowTimes(NamedTuple):
    """What windows take.

    Args:
        draft_s: of one draft token.
        ask_s: of a draft, whatever its length: messages and waits.
    """

    pipeline: Pipeline
    draft_s: float
    ask_s: float = 0.0

    def synchronous(self, alpha: float, max_draft_tokens: int) -> Promise:
        """The fastest length of rounds that wait for the one before; no draft tokens: plain decoding.

        Args:
            alpha: probability that a draft token is accepted, below 1.
            max_draft_tokens: of one window.
        """
        return max(each.in_flight(1, 1) for each in self._lengths(alpha, max_draft_tokens))

    def ahead(self, alpha: float, max_draft_tokens: int, num_sequences: int = 1) -> Promise:
        """The fastest length and depth, of at least two windows of one sequence in flight.

        Args:
            num_sequences: that share the pipe. Synchronous rounds have all of them in one forward. With windows in
                flight, each goes on at a time of its own, so each window is a forward of its own.
        """
        lengths = self._lengths(alpha, max_draft_tokens)
        promises = [each.in_flight(depth, num_sequences) for each in lengths for depth in DEPTHS]
        best = max(each.tokens_per_s for each in promises)
        near_best = [each for each in promises if each.tokens_per_s >= NEAR_BEST * best]
        return min(near_best, key=lambda each: (each.plan.depth, -each.tokens_per_s))

    def promise(self, alpha: float, plan: PipePlan, num_sequences: int = 1) -> Promise:
        """What this plan promises. Args: alpha, num_sequences: as ahead."""
        return _Length.of(self, alpha, plan.num_draft_tokens).in_flight(plan.depth, num_sequences)

    def gap_s(self, alpha: float, gap: WindowGap, depth: int, num_sequences: int = 1) -> float:
        """What a gap should take, by these times. Args: depth: windows of each sequence in flight; others: as ahead."""
        gap_s = _Length.of(self, alpha, gap.num_draft_tokens).gap_s(depth, num_sequences, stands=gap.stands)
        return max(gap_s, SHORTEST_S)

    def _lengths(self, alpha: float, max_draft_tokens: int) -> list[_Length]:
        return [_Length.of(self, alpha, num) for num in range(max_draft_tokens + 1)]


class _Length(NamedTuple):
    """What windows with so many draft tokens take and bring."""

    num: int
    tokens: float  # of a window that stands on true tokens
    goes_on: float  # probability that the next window is of use: all of this one is accepted, and the guess is right
    compute_s: float  # of the slowest stage
    round_s: float  # from a refusal to the verdict of the next window
    apart_s: float  # between two windows that stand on one another

    @classmethod
    def of(cls, times: WindowTimes, alpha: float, num: int) -> _Length:
        pipeline, draft_s, ask_s = times
        compute_s = pipeline.bottleneck_s(num + 1)
        return cls(
            num=num,
            tokens=expected_tokens(alpha, num),
            goes_on=alpha ** (num + 1),
            compute_s=compute_s,
            round_s=pipeline.round_s(num, num * draft_s + ask_s if num else 0.0),
            apart_s=max(compute_s, (num + 1) * draft_s + ask_s),
        )

    def in_flight(self, depth: int, num_sequences: int) -> Promise:
        """With so many windows of each sequence in flight.

        A run begins behind a refusal, and ends with the next one. Its first `depth` windows leave one behind the other,
        and each later one when the window that is `depth` before it has landed.
        """
        num_standing = self.goes_on / (1.0 - self.goes_on)  # windows of a run, beside the first
        standing_s = num_standing * self.gap_s(depth, num_sequences, stands=True)
        run_s = self.gap_s(depth, num_sequences, stands=False) + standing_s
        return Promise(self.tokens * (1.0 + num_standing) / max(run_s, SHORTEST_S), PipePlan(self.num, depth))

    def gap_s(self, depth: int, num_sequences: int, *, stands: bool) -> float:
        """From the verdict before to this window's, on average. Args: stands: on that window, which was accepted."""
        round_s = self._among_others_s(depth, num_sequences)
        if not stands:
            return round_s
        again_s = max(self.apart_s, round_s - (depth - 1) * self.apart_s)
        share_again = self.goes_on ** (depth - 1) * (1.0 - self.goes_on) / (1.0 - self.goes_on**depth)
        return self.apart_s + share_again * (again_s - self.apart_s)

    def _among_others_s(self, depth: int, num_sequences: int) -> float:
        """A round while others have so many windows in flight. These come at any time, and queue at the slowest stage.

        The wait is that of an M/D/1 queue whose arrivals are as often as windows travel. All windows count: those on
        refused tokens are often computed before anybody knows.
        """
        others_s = (num_sequences - 1) * depth * self.compute_s
        apart = sqrt((self.round_s - others_s) ** 2 + 2.0 * others_s * self.compute_s)
        return max((self.round_s + others_s + apart) / 2.0, num_sequences * depth * self.compute_s)


class Traversed(NamedTuple):
    """What one traversal has taken, without the time for which it lay in queues of stages."""

    links_s: float  # all that was not computing
    stage_s: tuple[float, ...]  # computing of each stage


class PipeTimes:
    """What traversals have taken.

    Args:
        num_stages: of the pipe.
    """

    def __init__(self, num_stages: int) -> None:
        self._stages = [DecayedMean(WEIGHT) for _ in range(num_stages)]
        self._links_s: deque[float] = deque(maxlen=NUM_RECENT)

    def note(self, took: Traversed) -> None:
        """A traversal has landed."""
        self._links_s.append(took.links_s)
        for mean, seconds in zip(self._stages, took.stage_s, strict=True):
            mean.add(seconds)

    @property
    def pipeline(self) -> Pipeline:
        """All time that is not computing is put on the way back. Of recent traversals the shortest waited least."""
        stages = [StageTime(one_s=each.value) for each in self._stages]
        hops_s = [0.0] * (len(stages) - 1)
        return Pipeline(stages=stages, hops_s=hops_s, return_s=min(self._links_s, default=0.0))

    @property
    def num_rounds(self) -> int:
        """Rounds of different sequences in flight with which the slowest stage is just never idle; 1 at first.

        It is rounded to the nearest, since it is measured while so many are in flight: any wait that no stage tells of
        makes a traversal longer, and a number that is rounded up would grow without end.
        """
        pipeline = self.pipeline
        slowest_s = pipeline.bottleneck_s(1)
        if not slowest_s:
            return 1
        num_filling = min(float(MAX_ROUNDS), pipeline.traversal_s(1) / slowest_s)  # infinite if a stage says almost 0
        return max(1, round(num_filling))
