"""Lengths by expected tokens per second: for all sequences of a round together, from live estimates of costs.

For each sequence, the acceptance of its drafts so far says how likely each further draft token is worth its place. The
costs say what it takes: its part of the target's step, and of the wait for the proposals (StarSD, equations 3, 5, 6 and
10, as they are measured). `expected_speed.py` weighs both. What cannot be known without trying is tried by trials that
are cheap (`trials.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from starspec.policy.length.acceptance import Acceptance
from starspec.policy.length.costs import Costs
from starspec.policy.length.expected_speed import ChosenLengths, fastest_lengths
from starspec.policy.length.snapshot import Choice, RoundSnapshot, SequenceSnapshot
from starspec.policy.length.trials import Trials
from starspec.speculation.budget import DraftBudget

MIN_GAIN: Final = 1.0  # times the speed without drafts, to begin drafting ...
MIN_GAIN_ON: Final = 0.93  # ... and to go on: acceptance is not known so well that less would be a reason to stop
FIRST_STEPS: Final = 2  # depth before any wait was measured
GROWTH: Final = 2  # a round may be so many times as deep as the deepest one that was measured, and as large
DOUBTFUL_GAIN: Final = 1.6  # above it no round is tried without drafts: they could not be so much quicker than thought
PLAIN_EVERY: Final = 64  # rounds, after which the time of a plain round is not known any more
PROBE_STEPS: Final = 2


@dataclass(frozen=True, slots=True)
class Goodput:
    """Chains or trees for the sequences that gain by them.

    Args:
        budget: the most to ask for.
    """

    budget: DraftBudget

    def choose(self, snapshot: RoundSnapshot) -> list[Choice]:
        """As LengthPolicy. A request's own depth is kept. Call it once a round. Effects: on `snapshot.trials`."""
        if not snapshot.sequences:
            return []
        weighed = _Round(self.budget, snapshot)
        triples = zip(snapshot.sequences, weighed.lengths(), weighed.limits, strict=True)
        return [self._choice_of(*each) for each in triples]

    def _choice_of(self, sequence: SequenceSnapshot, length: int, limit: int) -> Choice:
        if sequence.num_steps_asked is not None:
            return Choice.of(sequence.fitting(self.budget.with_steps(sequence.num_steps_asked)))
        return Choice.of(self.budget.with_steps(length), "cap" if length == limit else "cost")


class _Round:
    """The sequences of one round, at least one, and what is known about them."""

    def __init__(self, budget: DraftBudget, snapshot: RoundSnapshot) -> None:
        self._snapshot = snapshot
        self._sequences = snapshot.sequences
        self._costs = snapshot.costs or Costs()
        self._trials = snapshot.trials or Trials()
        acceptances = [each.acceptance or Acceptance() for each in self._sequences]
        self._acceptances = acceptances
        self._rates = [each.rate for each in acceptances]
        self._reaches = [each.reach for each in acceptances]
        self.limits = [  # 0 where the request decides
            min(budget.num_steps, each.limit) if each.num_steps_asked is None else 0 for each in self._sequences
        ]

    def lengths(self) -> list[int]:
        """Draft tokens of each sequence."""
        num, trials = len(self._sequences), self._trials
        if not self._costs.steps:
            return [min(FIRST_STEPS, each) for each in self.limits]
        min_gain = MIN_GAIN_ON if trials.was_drafting else MIN_GAIN
        chosen, reach = self._weigh(self.limits, min_gain), self._reach()
        if max(chosen.lengths) > reach:  # what it costs to go so far is only hoped for
            capped = [min(each, reach) for each in chosen.lengths]
            if self._is_allowed(capped, [0] * num):
                return capped
            chosen = self._weigh([min(each, reach) for each in self.limits], min_gain)
        trials.was_drafting = any(chosen.lengths)
        if trials.was_drafting:
            return [0] * num if self._is_plain_due(chosen) else self._with_probes(chosen.lengths)
        return self._with_probes(chosen.lengths)

    def _weigh(self, limits: Sequence[int], min_gain: float) -> ChosenLengths:
        return fastest_lengths(
            self._rates, limits, self._costs.steps, self._costs.rounds.cost, self._reaches, min_gain=min_gain
        )

    def _plain_s(self) -> float:
        return float(self._costs.steps.predict(np.array([float(len(self._sequences))]))[0])

    def _is_plain_due(self, chosen: ChosenLengths) -> bool:
        """Whether this round goes without drafts, to learn what that takes. Effects: spends what it costs."""
        num, plain_s = len(self._sequences), self._plain_s()
        if self._costs.steps.is_known(num, PLAIN_EVERY) or chosen.tokens_per_s is None:
            return False
        gain = chosen.tokens_per_s * plain_s / num
        cost_s = plain_s - num / chosen.tokens_per_s
        if gain > DOUBTFUL_GAIN or not self._trials.allows(cost_s, plain_s, self._snapshot.now_s):
            return False
        self._trials.spend(cost_s)
        return True

    def _with_probes(self, lengths: list[int]) -> list[int]:
        """Short drafts for sequences that had none for long, as many as trials allow."""
        idle = [
            index
            for index, length in enumerate(lengths)
            if not length and self.limits[index] and (self._acceptances[index].is_idle or not any(lengths))
        ]
        idle.sort(key=lambda index: -self._acceptances[index].num_idle_rounds)
        while idle:
            tried = list(lengths)
            for index in idle:
                tried[index] = min(PROBE_STEPS, self.limits[index])
            if self._is_allowed(tried, lengths):
                return tried
            idle = idle[: len(idle) // 2]
        return lengths

    def _reach(self) -> int:
        """How deep drafts may be, so that neither the wait nor the step is much longer than a measured one."""
        num, most = len(self._sequences), GROWTH * self._costs.steps.largest
        deepest = max(FIRST_STEPS, GROWTH * self._costs.rounds.cost.deepest)
        return max(1, min(deepest, (most - num) // num))

    def _is_allowed(self, lengths: Sequence[int], instead_of: Sequence[int]) -> bool:
        """Whether a trial may be made. Effects: if so, spends what it costs."""
        cost_s = self._cost_of(lengths) - self._cost_of(instead_of)
        is_allowed = self._trials.allows(cost_s, self._plain_s(), self._snapshot.now_s)
        if is_allowed:
            self._trials.spend(cost_s)
        return is_allowed

    def _cost_of(self, lengths: Sequence[int]) -> float:
        """Seconds of a round, less what its expected tokens would take without drafts."""
        num, plain_s = len(lengths), self._plain_s()
        size = np.array([float(num + sum(lengths))])
        wait_s = self._costs.rounds.cost.seconds_of(lengths) if any(lengths) else 0.0
        pairs = zip(self._rates, lengths, strict=True)
        gained = sum(sum(rate**depth for depth in range(1, length + 1)) for rate, length in pairs)
        return float(self._costs.steps.predict(size)[0]) + wait_s - (1.0 + gained / num) * plain_s
