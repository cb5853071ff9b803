"""Whether one window of a sequence is in flight or several, by what each of the two ways has taken here. No I/O.

What windows take says which way is faster (`pipe_depth.py`), but it depends on the way. Where a draft computes on the
cores of stages, for instance, drafting ahead makes both slower. With one window in flight they never compute at the
same time. So each way has times of its own, and its speed is told from them.

                  several promise MIN_GAIN, or a trial of several: their times are unknown or old
        ┌────────────────────────────────────────────────────────────────────────────────────┐
        │                                                                                    ▼
    ONE WINDOW                                                                            SEVERAL
        ▲                                                                                    │
        └────────────────────────────────────────────────────────────────────────────────────┘
                  several do not promise MIN_GAIN, or a trial of one window: its times are old

A trial lasts until NUM_ROUNDS rounds of its way have landed. Then their times are believed until the way is used again.
There is none of several windows where they would not gain even by the times of one window, so without sharing any core.
One under way waits then, and ends after MAX_TRIED rounds in all, without a word about its way.
Trials together cost about SHARE of the time.

Why times, and not tokens a second: these vary with the text by a factor of 2 and more, so that hundreds of rounds would
have to be compared. Times vary by a few per cent, and what the text does, its acceptance tells of both ways.

The times of stages, links and drafts leave out what nobody measures: windows queue behind those on refused tokens, a
draft that was taken back is prefilled again, or a hub that runs ahead has the next draft at once. So each way also
knows how much longer it is from one verdict to the next than its times say: its *slip*.

The acceptance leaves things out, too: a token right behind a draft that ended in doubt is guessed worse than others,
and a draft that did not end is right more often. So each way also knows its *yield*: the tokens that its windows
brought, over those that its times promise at the acceptance that these windows turned out to have.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Final

import numpy as np

from starspec.policy.estimators import DecayedMean, DecayedRatio
from starspec.policy.pipe_depth import ONE_WINDOW, PipePlan, PipeTimes, Promise, Traversed, WindowGap, WindowTimes
from starspec.policy.traversal import expected_tokens

MIN_GAIN: Final = 1.05  # of several windows over the best synchronous rounds, as they cost computing
NUM_ROUNDS: Final = 8  # of a trial
NUM_FIRST: Final = 3  # of one window before the first trial: the first of them has a draft of one token
MAX_TRIED: Final = 4 * NUM_ROUNDS  # rounds of both ways after which it ends anyway: it may show nothing here or now
SHARE: Final = 0.007  # of the time: what trials may cost
MIN_LOSS: Final = 0.05  # a trial costs at least this share of its time, as it may show nothing new
WEIGHT: Final = 1 / 16  # of the newest proposal
GAP_FADE: Final = 15 / 16  # of all gaps, with each newer one
YIELD_FADE: Final = 63 / 64  # of what windows brought, with each newer one
NUM_PROMISED: Final = 8.0  # windows that bring just what is promised: the weight of a yield of 1
MAX_ALPHA: Final = 0.99  # no acceptance is certain
# acceptances for which promises are added up; those between them are interpolated
ALPHAS: Final = (0.0, 0.2, 0.4, 0.6, 0.7, 0.8, 0.85, 0.9, 0.94, 0.97, MAX_ALPHA)
LONGEST_GAP: Final = 4.0  # times what it should be, as which a longer one counts: something else came between


class Drafting:
    """From a request to its proposal: what the hub works for each token, and all else."""

    def __init__(self) -> None:
        self.token_s, self.other_s = DecayedMean(WEIGHT), DecayedMean(WEIGHT)

    def add(self, num_tokens: int, seconds: float, service_s: float) -> None:
        """A proposal has come. Args: seconds: since it was asked for. service_s: of them, the hub's work."""
        service_s = min(service_s, seconds)
        self.other_s.add(seconds - service_s)
        if service_s:  # else the hub had it already
            self.token_s.add(service_s / num_tokens)


class _Yield:
    """Tokens that windows of one way brought, over those that were promised.

    A way is chosen while the acceptance looks good for it, so by chance its windows bring less than that acceptance
    promises. So the promise is made with the acceptance that they turn out to have. That is known only afterwards, so
    what windows promise is added up for several acceptances.
    """

    def __init__(self) -> None:
        self._accepted = DecayedRatio(YIELD_FADE)  # of tested draft tokens
        self._num_tokens = self._num_windows = 0.0  # old ones count less
        self._num_promised = [0.0] * len(ALPHAS)  # tokens

    def add(self, gap: WindowGap, promised_per_s: Sequence[float], should_be_s: float) -> None:
        """A window has landed.

        Args:
            promised_per_s: tokens a second that the times of its way promise, for each of ALPHAS.
            should_be_s: what the gap before it should have taken, by these times.
        """
        num_accepted = gap.num_tokens - 1
        self._accepted.add(num_accepted, num_accepted + (num_accepted < gap.num_draft_tokens))
        self._num_tokens = YIELD_FADE * self._num_tokens + gap.num_tokens
        self._num_windows = YIELD_FADE * self._num_windows + 1.0
        pairs = zip(self._num_promised, promised_per_s, strict=True)
        self._num_promised = [YIELD_FADE * sum_ + should_be_s * each for sum_, each in pairs]

    @property
    def value(self) -> float:
        """The ratio; near to 1 while few windows were seen."""
        if not self._num_windows:
            return 1.0
        over_promise = self._num_tokens / float(np.interp(self._accepted.value, ALPHAS, self._num_promised))
        return (self._num_windows * over_promise + NUM_PROMISED) / (self._num_windows + NUM_PROMISED)


class _Way:
    """What windows take in one way, and bring."""

    def __init__(self, brought: _Yield) -> None:
        self.num_rounds = 0
        self.drafting = Drafting()
        self.brought = brought
        self._pipe = PipeTimes(0)
        self._gaps = DecayedRatio(GAP_FADE)

    def again(self) -> _Way:
        """The same way, with other times. The yield is learnt too slowly for a trial to begin it anew."""
        return _Way(self.brought)

    def add_round(self, took: Traversed) -> None:
        if not self.num_rounds:
            self._pipe = PipeTimes(len(took.stage_s))
        self.num_rounds += 1
        self._pipe.note(took)

    def add_gap(self, seconds: float, should_be_s: float) -> None:
        self._gaps.add(min(seconds, LONGEST_GAP * should_be_s), should_be_s)

    def slip(self, unknown: float = 1.0) -> float:
        """Args: unknown: what it is before the first gap."""
        return self._gaps.value or unknown

    def times(self, other: _Way) -> WindowTimes:
        """Args: other: the way that tells what is not known of this one."""
        pipe = self._pipe if self.num_rounds else other._pipe
        own, others = self.drafting, other.drafting
        token_s, other_s = (
            (mine if mine.count else yours).value
            for mine, yours in ((own.token_s, others.token_s), (own.other_s, others.other_s))
        )
        return WindowTimes(pipe.pipeline, token_s, other_s)


class WindowChoice:
    """How many windows of each sequence should be in flight, and how long their drafts should be.

    It is about one drafter: another one may compute elsewhere.
    """

    def __init__(self) -> None:
        self.plan = ONE_WINDOW
        self._one, self._several = _Way(_Yield()), _Way(_Yield())
        self._trial: _Way | None = None  # replaces what is known of its way when it is over
        self._is_of_several = False  # the trial
        self._num_tried = 0  # rounds since it began, of both ways
        self._alpha, self._num_sequences = 0.0, 1  # of the last choice
        self._settled_s = inf  # seconds of rounds since the last trial

    def add_round(self, took: Traversed, seconds: float, *, is_ahead: bool, gaps: Sequence[WindowGap] = ()) -> None:
        """A round has landed.

        Args:
            seconds: its traversal's share of the time, as others may have been in flight.
            is_ahead: whether other windows could stand on its windows.
            gaps: before its windows.
        """
        self._settled_s += seconds
        way = self._way(is_ahead=is_ahead)
        way.add_round(took)
        if is_ahead == (self.plan.depth > 1):
            self._add_gaps(way, way.times(self._one if is_ahead else self._several), gaps)
        if self._trial is not None:
            self._num_tried += 1
            if self._trial.num_rounds >= NUM_ROUNDS or self._num_tried >= MAX_TRIED:
                self._end_trial(self._trial)

    def _add_gaps(self, way: _Way, times: WindowTimes, gaps: Sequence[WindowGap]) -> None:
        num_sequences = self._num_sequences if self.plan.depth > 1 else 1  # as `_chosen` asks for promises
        promised_per_s = [times.promise(each, self.plan, num_sequences).tokens_per_s for each in ALPHAS] if gaps else []
        for gap in gaps:
            should_be_s = times.gap_s(self._alpha, gap, self.plan.depth, self._num_sequences)
            way.add_gap(gap.seconds, should_be_s)
            way.brought.add(gap, promised_per_s, should_be_s)

    def add_draft(self, num_tokens: int, seconds: float, service_s: float, *, is_ahead: bool) -> None:
        """A proposal has come, as `Drafting.add`. Args: is_ahead: windows of its sequence are in flight."""
        if is_ahead == (self.plan.depth > 1):  # behind a refusal, stages still compute what stood on it
            self._way(is_ahead=is_ahead).drafting.add(num_tokens, seconds, service_s)

    def choose(self, alpha: float, max_draft_tokens: int, num_sequences: int) -> PipePlan:
        """The plan from now on. Before any round has landed, one draft token, which shows the acceptance.

        Args:
            alpha: probability that a draft token is accepted, below 1.
            max_draft_tokens: of one window.
            num_sequences: that share the pipe.
        """
        self._alpha, self._num_sequences = alpha, num_sequences
        self.plan = self._chosen(alpha, max_draft_tokens, num_sequences)
        return self.plan

    def _chosen(self, alpha: float, most: int, num_sequences: int) -> PipePlan:
        if not most or not self._one.num_rounds:
            return PipePlan(min(1, most), 1)
        one, several = self._one.times(self._several), self._several.times(self._one)
        elsewhere = max(1.0, self._one.slip())  # slip of several windows that share nothing, as far as is known
        synchronous = one.synchronous(alpha, most).scaled(self._one.brought.value / self._one.slip())
        factor = self._several.brought.value / self._several.slip(elsewhere)
        ahead = several.ahead(alpha, most, num_sequences).scaled(factor)
        is_known, is_faster = self._several.num_rounds > 0, _gains(ahead, synchronous)
        free = one.ahead(alpha, most, num_sequences).scaled(1.0 / elsewhere)
        may_gain = is_faster or _gains(free, synchronous)
        is_settled_ahead = is_known and is_faster
        best, other = (ahead, synchronous) if is_settled_ahead else (synchronous, ahead)
        can_compare = is_known or self._one.num_rounds >= NUM_FIRST
        if self._trial is None and may_gain and can_compare and self._can_afford(other, best, alpha):
            self._is_of_several, self._num_tried = other is ahead, 0
            self._trial = (self._several if self._is_of_several else self._one).again()
        goes_ahead = is_settled_ahead if self._trial is None else self._is_of_several and may_gain
        return ahead.plan if goes_ahead else synchronous.plan

    def _can_afford(self, tried: Promise, best: Promise, alpha: float) -> bool:
        """Whether a trial is expected to cost no more than SHARE of the time since the last one."""
        trial_s = NUM_ROUNDS * expected_tokens(alpha, tried.plan.num_draft_tokens) / tried.tokens_per_s
        return trial_s * self._loss(tried, best) <= SHARE * self._settled_s

    def _loss(self, tried: Promise, best: Promise) -> float:
        """The share of a trial's time that it is expected to lose."""
        if not self._several.num_rounds:
            return 1.0
        is_hardly_known = tried.plan.depth == 1 and self._one.num_rounds < NUM_ROUNDS  # the first may have been slow
        return MIN_LOSS if is_hardly_known else max(MIN_LOSS, 1.0 - tried.tokens_per_s / best.tokens_per_s)

    def _end_trial(self, trial: _Way) -> None:
        is_under_way = self._is_of_several == (self.plan.depth > 1)  # else several may not gain any more, and it waited
        if trial.num_rounds >= (1 if is_under_way else NUM_ROUNDS):
            if self._is_of_several:
                self._several = trial
            else:
                self._one = trial
        self._trial, self._settled_s = None, 0.0

    def _way(self, *, is_ahead: bool) -> _Way:
        """That which learns from windows of this kind."""
        if self._trial is not None and self._is_of_several == is_ahead:
            return self._trial
        return self._several if is_ahead else self._one


def _gains(ahead: Promise, synchronous: Promise) -> bool:
    return ahead.tokens_per_s >= MIN_GAIN * synchronous.tokens_per_s
