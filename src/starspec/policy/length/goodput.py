"""Lengths by expected tokens per second: for all sequences of a round together, from live estimates of costs.

For each sequence, the acceptance of its drafts so far says how likely each further draft token is worth its place. The
costs say what it takes: its part of the target's step, and of the wait for the proposals (StarSD, equations 3, 5, 6 and
10, as they are measured). `expected_speed.py` weighs both. A sequence that a hub would have to prefill first is drafted
for only if that pays until its end. What cannot be known without trying is tried by trials that are cheap
(`trials.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from starspec.policy.length.acceptance import Acceptance
from starspec.policy.length.costs import Costs
from starspec.policy.length.expected_speed import Candidates, ChosenLengths, fastest_lengths
from starspec.policy.length.node_gains import with_worthy_nodes
from starspec.policy.length.snapshot import OFF, PLAIN_TRIAL, Choice, RoundSnapshot
from starspec.policy.length.trials import Trials
from starspec.speculation.budget import DraftBudget

MIN_GAIN: Final = 1.03  # times the speed without drafts, to begin drafting: costs are known to a few per cent ...
MIN_GAIN_ON: Final = 0.99  # ... and to go on, so that a small change decides nothing
FIRST_STEPS: Final = 2  # depth of the first drafts
GROWTH: Final = 2  # a round may be so many times as deep as the deepest one before, and as large as the largest
DOUBTFUL_GAIN: Final = 1.6  # above it no round is tried without drafts: they could not be so much quicker than thought
HOPED_GAIN: Final = 1.05  # times the speed of what seems best, for a step of a size that was never measured
PLAIN_EVERY: Final = 64  # rounds, after which the time of a plain round is not known any more
PROBE_STEPS: Final = 2
MAX_DEFERRED: Final = 4  # rounds in a row for which prompts wait for the measurement of a plain round


@dataclass(frozen=True, slots=True)
class Goodput:
    """Chains or trees for the sequences that gain by them.

    What is learnt is in `RoundSnapshot.costs` and `SequenceSnapshot.acceptance`; the account of what is tried, in
    `RoundSnapshot.trials`. A request's own depth is kept, whatever it costs; it counts when the others are weighed.

    Args:
        budget: the most to ask for. A tree keeps its width, and becomes less deep or has fewer nodes. `p_min` is for a
            sequence that drafts alone: sequences share a draft step, so it is divided among those that draft.
    """

    budget: DraftBudget

    def choose(self, snapshot: RoundSnapshot) -> list[Choice]:
        """As LengthPolicy. Call it once a round. Effects: on `snapshot.trials`."""
        return _Round(self.budget, snapshot).choices() if snapshot.sequences else []


class _Round:
    """The sequences of one round, at least one, and what is known about them."""

    def __init__(self, budget: DraftBudget, snapshot: RoundSnapshot) -> None:
        self._sequences = snapshot.sequences
        self._costs = snapshot.costs or Costs()
        self._trials = snapshot.trials or Trials()
        self._now_s = snapshot.now_s
        self._num_others = max(0, snapshot.num_sequences - len(self._sequences))
        self._num = len(self._sequences) + self._num_others
        if snapshot.nodes is not None:
            budget = with_worthy_nodes(budget, snapshot.nodes, self._num, self._costs)
        self._budget = budget
        self._are_asked = [each.num_steps_asked is not None for each in self._sequences]
        self._budgets = [  # the most for each
            each.fitting(budget if each.num_steps_asked is None else budget.with_steps(each.num_steps_asked))
            for each in self._sequences
        ]
        self._limits = [each.num_steps for each in self._budgets]
        self._nodes = [0, *(_num_nodes(budget, depth) for depth in range(1, max(self._limits) + 1))]  # by depth
        self._acceptances = [each.acceptance or Acceptance() for each in self._sequences]
        self._rates = [each.rate for each in self._acceptances]
        self._reaches = [each.reach for each in self._acceptances]
        self._gains = [each.gain for each in self._acceptances]
        self._tried: Collection[int] = ()  # indices of the sequences that take part in a trial
        # trials of the last round that may go on
        self._growing_to, self._trials.growing_to = self._trials.growing_to, 0
        self._num_probing, self._trials.num_probing = self._trials.num_probing, 0

    def choices(self) -> list[Choice]:
        """What to ask for, for each sequence."""
        lengths = self._lengths()
        self._trials.deepest = max(self._trials.deepest, *lengths)
        choices = [self._choice_of(index, length) for index, length in enumerate(lengths)]
        return _sharing_doubt(choices, sum(map(bool, lengths))) if self._budget.p_min else choices

    def _choice_of(self, index: int, length: int) -> Choice:
        if self._are_asked[index]:
            return Choice.of(self._budgets[index])
        if not length:
            return PLAIN_TRIAL if index in self._tried else OFF
        budget = self._budgets[index]
        budget = self._sequences[index].fitting(budget.with_steps(length)) if length < budget.num_steps else budget
        return Choice(budget, "probe" if index in self._tried else "cap" if length == self._limits[index] else "cost")

    def _lengths(self) -> list[int]:
        """Draft steps of each sequence."""
        self._trials.pass_time(self._plain_s() if self._costs.steps else 0.0, self._now_s)
        self._trials.note_sequences(self._num)
        if not self._costs.steps:
            return self._first_lengths()
        if not self._num_others:
            self._trials.settle(self._plain_s(), self._now_s)
        min_gain = MIN_GAIN_ON if self._trials.was_drafting else MIN_GAIN
        limits, chosen = self._worth_prefill(min_gain)
        is_deferring = bool(self._tried)  # probes would spoil the measurement that prompts wait for
        known, is_hoping = self._deepest(1), False
        if self._no_deeper_than(known, chosen.lengths) != chosen.lengths:  # what that costs is only hoped for
            reached = self._no_deeper_than(self._deepest(GROWTH), chosen.lengths)
            chosen = self._weigh(self._no_deeper_than(known, limits), min_gain)
            if self._may_grow(reached, chosen.lengths):
                self._tried = [index for index, length in enumerate(reached) if length]
                return reached
            is_hoping = True  # probes would use up what it needs
        is_drafting = chosen.lengths != self._without_drafts()
        if not self._num_others:
            self._trials.was_drafting = is_drafting
        if is_drafting and self._is_plain_due(chosen):
            self._tried = [index for index, length in enumerate(chosen.lengths) if length]
            return self._without_drafts()
        if is_hoping or is_deferring:
            return chosen.lengths
        finer = self._between(limits, chosen) if is_drafting else None
        return finer or self._with_probes(chosen.lengths)

    def _first_lengths(self) -> list[int]:
        """Before any step was measured."""
        lengths = self._no_deeper_than(self._deepest_wait(GROWTH), self._limits)
        return self._deferred(lengths) if self._num_to_prefill(lengths) and self._has_to_defer() else lengths

    def _weigh(self, limits: Sequence[int], min_gain: float, *, is_hopeful: bool = False) -> ChosenLengths:
        candidates = Candidates(
            self._rates,
            limits,
            self._reaches,
            self._gains,
            self._are_asked if any(self._are_asked) else None,
            None if self._budget.is_chain else np.diff(self._nodes).tolist(),
            self._num_others,
        )
        steps, wait = self._costs.steps, self._costs.rounds.cost
        return fastest_lengths(candidates, steps, wait, min_gain, is_hopeful=is_hopeful)

    def _without_drafts(self) -> list[int]:
        """But those that requests asked for."""
        return self._no_deeper_than(0, self._limits)

    def _no_deeper_than(self, depth: int, lengths: Sequence[int]) -> list[int]:
        pairs = zip(lengths, self._are_asked, strict=True)
        return [length if is_asked else min(length, depth) for length, is_asked in pairs]

    # ---------------------------------------------------------------- prefill

    def _worth_prefill(self, min_gain: float) -> tuple[list[int], ChosenLengths]:
        """The limits, but 0 for sequences whose prefill does not pay or has to wait, and what is best within them.

        A hub should prefill sequences only if their drafts save more time, until the requests end, than prefill costs.
        The first decision is about all sequences that need prefill together. If their prefill does not pay, the next
        decision is about the shorter half of them, and so on.
        """
        limits = most = self._without_newcomers(self._limits)
        chosen = self._weigh(limits, min_gain)
        if not self._unheld(chosen.lengths):
            return limits, chosen
        held_limits = self._deferred(limits)
        held = self._weigh(held_limits, min_gain)
        if self._has_to_defer():
            self._tried = self._unheld(chosen.lengths)
            return held_limits, held
        unheld = sorted(self._unheld(limits), key=lambda index: self._sequences[index].num_to_prefill)
        if not self._pays_prefill(self._sequences[unheld[0]].num_to_prefill, chosen, held):
            return held_limits, held  # not even if the shortest one gained as much as all
        while num_tokens := self._num_to_prefill(chosen.lengths):
            if self._pays_prefill(num_tokens, chosen, held):
                break
            unheld = unheld[: len(unheld) // 2]
            limits = [limit if index in unheld else held_limits[index] for index, limit in enumerate(most)]
            chosen = self._weigh(limits, min_gain) if unheld else held
        return limits, chosen

    def _without_newcomers(self, limits: list[int]) -> list[int]:
        """The limits, but 0 for sequences in their first round, if rounds were larger lately and prefill is dear.

        Requests that are sent together begin within a few rounds of each other. Prefill that pays for the first of them
        may not pay in the batch that they make, and one round without drafts costs less.
        """
        newcomers = [index for index in self._unheld(limits) if self._sequences[index].is_new]
        prefill_s = self._costs.prefill.seconds(sum(self._sequences[index].num_to_prefill for index in newcomers))
        if self._num >= round(self._trials.num_lately) or prefill_s <= self._plain_s():
            return limits
        return [0 if index in newcomers else limit for index, limit in enumerate(limits)]

    def _unheld(self, lengths: Sequence[int]) -> list[int]:
        """Indices of the sequences with drafts that a hub would have to prefill, and that did not ask for drafts."""
        triples = zip(self._sequences, lengths, self._are_asked, strict=True)
        return [
            index
            for index, (each, length, is_asked) in enumerate(triples)
            if length and each.num_to_prefill and not is_asked
        ]

    def _deferred(self, lengths: Sequence[int]) -> list[int]:
        """The lengths, without drafts for what a hub would have to prefill."""
        unheld = set(self._unheld(lengths))
        return [0 if index in unheld else length for index, length in enumerate(lengths)]

    def _num_to_prefill(self, lengths: Sequence[int]) -> int:
        return sum(self._sequences[index].num_to_prefill for index in self._unheld(lengths))

    def _num_behind(self, lengths: Sequence[int]) -> int:
        """Tokens that a hub which holds the sequences has to catch up with first."""
        return sum(each.num_behind for each, length in zip(self._sequences, lengths, strict=True) if length)

    def _has_to_defer(self) -> bool:
        """Whether prompts wait for the measurement of a round of as many sequences, to compare with while they are
        prefilled. Effects: counts such rounds."""
        is_useless = self._costs.steps.covers(self._num) or self._costs.prefill.is_going_on
        return self._trials.defers(MAX_DEFERRED, is_useless=is_useless)

    def _pays_prefill(self, num_tokens: int, chosen: ChosenLengths, held: ChosenLengths) -> bool:
        """Whether the chosen drafts are worth a prefill, compared with drafts only for what the hub holds."""
        assert held.tokens_per_s is not None
        assert chosen.tokens_per_s is not None
        before_s, after_s = self._num / held.tokens_per_s, self._num / chosen.tokens_per_s
        to_come = [self._sequences[index].max_remaining_tokens for index in self._unheld(chosen.lengths)]
        return self._costs.pays_prefill(num_tokens, before_s, after_s, sum(to_come) / max(1, len(to_come)))

    # ---------------------------------------------------------------- trials

    def _may_grow(self, reached: Sequence[int], instead_of: Sequence[int]) -> bool:
        """Whether a round may be deeper or larger than any before. It goes on in the next round, if its drafts have
        not come. Effects: if so, spends what it costs."""
        depth, growing_to = max(reached), self._growing_to
        if self._costs.prefill.is_going_on or not depth:
            return False
        is_going_on = depth == growing_to
        if not self._is_allowed(reached, instead_of, is_going_on=is_going_on):
            return False
        self._trials.growing_to = 0 if is_going_on else depth
        return True

    def _is_plain_due(self, chosen: ChosenLengths) -> bool:
        """Whether this round goes without drafts, to learn what that takes. Effects: spends what it costs."""
        is_measured = not (any(self._without_drafts()) or self._num_others or self._costs.prefill.is_going_on)
        if not is_measured or self._costs.steps.is_known(self._num, PLAIN_EVERY) or chosen.tokens_per_s is None:
            return False
        plain_s = self._plain_s()
        cost_s = plain_s - self._num / chosen.tokens_per_s
        is_doubtful = chosen.tokens_per_s * plain_s <= DOUBTFUL_GAIN * self._num
        return is_doubtful and self._trials.make(cost_s, plain_s, self._now_s)

    def _between(self, limits: Sequence[int], chosen: ChosenLengths) -> list[int] | None:
        """Lengths that make a step of a size between measured ones, if that might be much quicker and may be tried.

        Effects: if so, spends what it costs.
        """
        if self._num_others or chosen.tokens_per_s is None or self._costs.prefill.is_going_on:
            return None
        hoped = self._weigh(self._no_deeper_than(self._deepest(1), limits), MIN_GAIN, is_hopeful=True)
        is_better = hoped.tokens_per_s is not None and hoped.tokens_per_s > HOPED_GAIN * chosen.tokens_per_s
        if not is_better or not any(hoped.lengths) or not self._is_allowed(hoped.lengths, chosen.lengths):
            return None
        self._tried = [index for index, length in enumerate(hoped.lengths) if length]
        return hoped.lengths

    def _with_probes(self, lengths: list[int]) -> list[int]:
        """Drafts for sequences that had none for long, as many as trials allow.

        If the hub holds no sequence, only the shortest one probes, because the prefill for a probe may cost more than
        all drafts of a request would save. The others are then judged by what this one achieves. A probe goes on in the
        next round, if its draft has not come: a hub that has to prefill or to catch up first may take longer.
        """
        probing = self._idle(lengths)
        if probing and not self._num_probing:
            cheapest = self._probes_of(probing[:1], lengths)
            probing = probing if self._is_affordable(cheapest, lengths) else []  # in most rounds it is not
        while probing:
            tried = self._probes_of(probing, lengths)
            is_going_on = len(probing) <= self._num_probing
            if self._is_allowed(tried, lengths, is_going_on=is_going_on):
                self._trials.num_probing = 0 if is_going_on else len(probing)
                self._tried = [*self._tried, *probing]
                return tried
            probing = probing[: len(probing) // 2]
        return lengths

    def _probes_of(self, probing: Collection[int], lengths: Sequence[int]) -> list[int]:
        """The lengths, with probes of those sequences. All have the depth that costs least for what it may gain: where
        the way to the hub takes long, a deeper probe is cheaper, and shows more."""

        def with_probes(depth: int) -> list[int]:
            pairs = zip(lengths, self._limits, strict=True)
            return [min(depth, most) if index in probing else each for index, (each, most) in enumerate(pairs)]

        deepest = self._deepest(1)
        depths = {PROBE_STEPS, *(each for each in (2 * PROBE_STEPS, deepest) if PROBE_STEPS < each <= deepest)}
        return min(map(with_probes, sorted(depths)), key=self._cost_of)

    def _idle(self, lengths: Sequence[int]) -> list[int]:
        """Indices of the sequences that may probe, from the one that had no draft for longest."""
        held = [index for index, each in enumerate(self._sequences) if self._limits[index] and each.is_held]
        is_drafting = any(lengths)
        idle = [
            index
            for index, acceptance in enumerate(self._acceptances)
            if self._limits[index]
            and not lengths[index]
            and not self._are_asked[index]
            and (acceptance.is_idle or (acceptance.num_idle_rounds and not is_drafting))
        ]
        if idle and not held:
            return [min(idle, key=lambda index: self._sequences[index].num_tokens)]
        idle = [index for index in idle if self._sequences[index].is_held]
        return sorted(idle, key=lambda index: -self._acceptances[index].num_idle_rounds)

    def _deepest(self, growth: int) -> int:
        """How deep drafts may be, so that wait and step are at most so many times as long as the longest before."""
        in_wait = self._deepest_wait(growth)
        num_nodes = growth * self._costs.steps.largest - self._num
        if num_nodes >= len(self._sequences) * self._nodes[-1]:
            return in_wait
        depths = np.arange(len(self._nodes) - 1)
        expected = (np.array(self._reaches)[:, None] ** depths).sum(axis=0) * np.diff(self._nodes)
        in_step = int((np.cumsum(expected) <= num_nodes).sum())
        return min(in_wait, in_step if growth == 1 else max(FIRST_STEPS, in_step))

    def _deepest_wait(self, growth: int) -> int:
        deepest = growth * max(self._trials.deepest, self._costs.rounds.cost.deepest)
        return deepest if growth == 1 else max(FIRST_STEPS, deepest)

    def _is_allowed(self, lengths: Sequence[int], instead_of: Sequence[int], *, is_going_on: bool = False) -> bool:
        """Whether a trial may be made. Effects: if so, spends what it costs."""
        round_s, prefill_s = self._trial_s(lengths, instead_of)
        return self._trials.make(
            round_s + prefill_s, self._plain_s(), self._now_s, at_most_s=max(0.0, round_s), is_going_on=is_going_on
        )

    def _is_affordable(self, lengths: Sequence[int], instead_of: Sequence[int]) -> bool:
        """As `_is_allowed` for a trial that does not go on, without effects."""
        return self._trials.allows(sum(self._trial_s(lengths, instead_of)), self._plain_s())

    def _trial_s(self, lengths: Sequence[int], instead_of: Sequence[int]) -> tuple[float, float]:
        """Seconds that a trial costs: of its round, at most, and of the hub's prefill before it."""
        num_more = self._num_to_prefill(lengths) - self._num_to_prefill(instead_of)
        num_more += self._num_behind(lengths) - self._num_behind(instead_of)
        round_s = self._cost_of(lengths) - self._cost_of(instead_of)
        return round_s, self._costs.prefill.seconds(num_more) if num_more > 0 else 0.0

    def _plain_s(self) -> float:
        return self._costs.steps.seconds(self._num)

    def _cost_of(self, lengths: Sequence[int]) -> float:
        """Seconds of a round, at most, less what its expected tokens would take without drafts."""
        depths = np.arange(max(lengths, default=0))
        is_asked = depths < np.array(lengths)[:, None]
        drafted = is_asked * np.array(self._reaches)[:, None] ** depths
        widths = np.diff(self._nodes)[: len(depths)]
        num_nodes = float((drafted * widths).sum())
        num_steps = float(((1.0 - np.prod(1.0 - drafted, axis=0)) * widths).sum())
        gained = float((is_asked * np.array(self._rates)[:, None] * np.array(self._gains)[:, None] ** depths).sum())
        wait_s = self._costs.rounds.cost.at_most(num_steps, num_nodes) if num_nodes else 0.0
        return self._costs.steps.at_most(self._num + num_nodes) + wait_s - (1.0 + gained / self._num) * self._plain_s()


def _sharing_doubt(choices: Sequence[Choice], num_drafting: int) -> list[Choice]:
    """A draft step that is worth little to one sequence may be worth it to all that share it."""
    return [
        each._replace(budget=replace(each.budget, p_min=each.budget.p_min / num_drafting))
        if each.budget.num_draft_tokens
        else each
        for each in choices
    ]


def _num_nodes(budget: DraftBudget, depth: int) -> int:
    """Nodes of a draft that is so deep, at most."""
    return min(budget.num_draft_tokens, budget.with_steps(depth).max_nodes) if not budget.is_chain else depth
