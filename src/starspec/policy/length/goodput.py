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
from math import log2
from typing import Final

from starspec.policy.length.expected_speed import ChosenLengths
from starspec.policy.length.snapshot import OFF, PLAIN_TRIAL, Choice, RoundSnapshot
from starspec.policy.length.trials import Trials
from starspec.policy.length.weighed_round import WeighedRound
from starspec.speculation.budget import DraftBudget

MIN_GAIN: Final = 1.03  # times the speed without drafts, to begin drafting: costs are known to a few per cent ...
MIN_GAIN_ON: Final = 0.99  # ... and to go on, so that a small change decides nothing
GROWTH: Final = 2  # a round may be so many times as deep as the deepest one before, and as large as the largest
DOUBTFUL_GAIN: Final = 1.6  # above it no round is tried without drafts: they could not be so much quicker than thought
HOPED_GAIN: Final = 1.05  # times the speed of what seems best, to try what was never measured
HOPED_ERRORS: Final = 1.5  # standard errors by which acceptance may be higher than it seems, to go on trying drafts ...
SURE_ERRORS: Final = 1.0  # ... and by which it may be lower, to begin drafting
PLAIN_EVERY: Final = 64  # rounds, after which the time of a plain round is not known any more
PROBE_STEPS: Final = 2
MOST_HALVED: Final = 4  # times that the probability at which drafts end is halved: drafts misjudge unlikely paths
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
        return _Decision(self.budget, snapshot).choices() if snapshot.sequences else []


class _Decision:
    """What one round drafts, and what it tries."""

    def __init__(self, budget: DraftBudget, snapshot: RoundSnapshot) -> None:
        self._round = WeighedRound(budget, snapshot)
        self._costs = self._round.costs
        self._trials = snapshot.trials or Trials()
        self._now_s, self._num_emitted = snapshot.now_s, snapshot.num_emitted
        self._was_interrupted = snapshot.was_interrupted
        self._tokens_per_s = 0.0  # of what seems best
        self._tried: Collection[int] = ()  # indices of the sequences that take part in a trial
        # the trial of the last round, which may go on for those sequences whose drafts have not come
        self._growing_to, self._trials.growing_to = self._trials.growing_to, 0
        tried, self._trials.tried = self._trials.tried, ()
        self._num_tried, late = len(tried), [each for each in tried if each.num_idle_rounds]
        self._waiting = [index for index, each in enumerate(self._round.acceptances) if each in late]

    def choices(self) -> list[Choice]:
        """What to ask for, for each sequence."""
        lengths = self._lengths()
        self._trials.deepest = max(self._trials.deepest, *lengths)
        choices = [self._choice_of(index, length) for index, length in enumerate(lengths)]
        return self._doubting(choices, lengths) if self._round.budget.p_min and any(lengths) else choices

    def _choice_of(self, index: int, length: int) -> Choice:
        budget, most = self._round.budgets[index], self._round.limits[index]
        if self._round.are_asked[index]:
            return Choice.of(budget)
        if not length:
            return PLAIN_TRIAL if index in self._tried else OFF
        if length < most:
            budget = self._round.sequences[index].fitting(budget.with_steps(length))
        return Choice(budget, "probe" if index in self._tried else "cap" if length == most else "cost")

    def _doubting(self, choices: Sequence[Choice], lengths: Sequence[int]) -> list[Choice]:
        """The choices. Each draft ends where its next step would take longer than its token saves.

        `p_min`, divided by the number of sequences that draft, is the highest limit: they share a draft step, so what
        is worth little to one of them may be worth it to all.
        """
        most = self._round.budget.p_min / sum(map(bool, lengths))
        limits = [_halved(most, worth) for worth in self._round.break_even(lengths, self._tokens_per_s)]
        return [
            each._replace(budget=replace(each.budget, p_min=limit)) if each.budget.num_draft_tokens else each
            for each, limit in zip(choices, limits, strict=True)
        ]

    def _lengths(self) -> list[int]:
        """Draft steps of each sequence."""
        self._trials.pass_time(self._round.plain_s if self._costs.steps else 0.0, self._now_s)
        self._trials.note_sequences(self._round.num)
        if not self._costs.steps:
            return self._first_lengths()
        if not self._round.num_others:
            self._close_trial()
        min_gain = MIN_GAIN_ON if self._trials.was_drafting else MIN_GAIN
        limits, chosen = self._worth_prefill(min_gain)
        if not self._is_sure(limits, chosen):
            chosen = self._round.weigh(self._round.without_drafts(), min_gain)
        self._tokens_per_s = chosen.tokens_per_s or 0.0
        is_deferring = bool(self._tried)  # probes would spoil the measurement that prompts wait for
        known, is_hoping = self._round.deepest(1), False
        if self._round.no_deeper_than(known, chosen.lengths) != chosen.lengths:  # what that costs is only hoped for
            hoped, chosen = chosen, self._round.weigh(self._round.no_deeper_than(known, limits), min_gain)
            if grown := self._grown(hoped.lengths, known, chosen.lengths):
                return grown
            is_hoping = _is_better(hoped, chosen)  # probes would use up what it needs
        is_drafting = chosen.lengths != self._round.without_drafts()
        if not self._round.num_others:
            self._trials.was_drafting = is_drafting
        if is_drafting and self._is_plain_due(chosen):
            self._tried = [index for index, length in enumerate(chosen.lengths) if length]
            return self._round.without_drafts()
        if is_hoping or is_deferring:
            return chosen.lengths
        tried = self._between(limits, chosen) if is_drafting else self._promised(limits, chosen)
        return tried or self._with_probes(chosen.lengths)

    def _is_sure(self, limits: Sequence[int], chosen: ChosenLengths) -> bool:
        """Whether drafting has begun, or may begin now because it would also pay if less were accepted than it seems.

        Good luck in a few drafts would otherwise begin what does not pay. Until more is known, drafts are trials.
        """
        if self._trials.was_drafting or self._round.num_others or self._round.unheld(chosen.lengths):
            return True
        plain = self._round.without_drafts()
        return chosen.lengths == plain or self._round.weigh(limits, MIN_GAIN, num_errors=-SURE_ERRORS).lengths != plain

    def _first_lengths(self) -> list[int]:
        """Before any step was measured."""
        lengths = self._round.no_deeper_than(self._round.deepest_wait(GROWTH), self._round.limits)
        has_to_prefill = self._round.num_to_prefill(lengths) > 0
        return self._round.deferred(lengths) if has_to_prefill and self._has_to_defer() else lengths

    # ---------------------------------------------------------------- prefill

    def _worth_prefill(self, min_gain: float) -> tuple[list[int], ChosenLengths]:
        """The limits, but 0 for sequences whose prefill does not pay or has to wait, and what is best within them.

        A hub should prefill sequences only if their drafts save more time, until the requests end, than prefill costs.
        The first decision is about all sequences that need prefill together. If their prefill does not pay, the next
        decision is about the shorter half of them, and so on.
        """
        limits = most = self._without_newcomers(self._round.limits)
        chosen = self._round.weigh(limits, min_gain)
        if not self._round.unheld(chosen.lengths):
            return limits, chosen
        held_limits = self._round.deferred(limits)
        held = self._round.weigh(held_limits, min_gain)
        if self._has_to_defer():
            self._tried = self._round.unheld(chosen.lengths)
            return held_limits, held
        unheld = sorted(self._round.unheld(limits), key=lambda index: self._round.sequences[index].num_to_prefill)
        if not self._round.pays_prefill(self._round.sequences[unheld[0]].num_to_prefill, chosen, held):
            return held_limits, held  # not even if the shortest one gained as much as all
        while num_tokens := self._round.num_to_prefill(chosen.lengths):
            if self._round.pays_prefill(num_tokens, chosen, held):
                break
            unheld = unheld[: len(unheld) // 2]
            limits = [limit if index in unheld else held_limits[index] for index, limit in enumerate(most)]
            chosen = self._round.weigh(limits, min_gain) if unheld else held
        return limits, chosen

    def _without_newcomers(self, limits: list[int]) -> list[int]:
        """The limits, but 0 for sequences in their first round, if rounds were larger lately and prefill is dear.

        Requests that are sent together begin within a few rounds of each other. Prefill that pays for the first of them
        may not pay in the batch that they make, and one round without drafts costs less.
        """
        sequences = self._round.sequences
        newcomers = [index for index in self._round.unheld(limits) if sequences[index].is_new]
        prefill_s = self._costs.prefill.seconds(sum(sequences[index].num_to_prefill for index in newcomers))
        if self._round.num >= round(self._trials.num_lately) or prefill_s <= self._round.plain_s:
            return limits
        return [0 if index in newcomers else limit for index, limit in enumerate(limits)]

    def _has_to_defer(self) -> bool:
        """Whether prompts wait for the measurement of a round of as many sequences, to compare with while they are
        prefilled. Effects: counts such rounds."""
        is_useless = self._costs.steps.covers(self._round.num) or self._costs.prefill.is_going_on
        return self._trials.defers(MAX_DEFERRED, is_useless=is_useless)

    # ---------------------------------------------------------------- trials

    def _close_trial(self) -> None:
        """If the round of the last trial is over, charge it with what it took and gave."""
        trial = self._trials.open
        if trial is None:
            return
        if trial.num_emitted is None or self._was_interrupted:
            self._trials.drop()
        elif num_tokens := self._num_emitted - trial.num_emitted:  # else its round has not ended
            steps, num = self._costs.steps, trial.num_sequences
            gave_s = num_tokens / num * steps.seconds(num) / trial.speedup
            is_bound = not steps.covers(num) or bool(self._waiting)  # drafts that have not come may still bring tokens
            self._trials.close(gave_s, self._now_s, is_lower_bound=is_bound)

    def _grown(self, hoped: Sequence[int], known: int, instead_of: Sequence[int]) -> list[int] | None:
        """Lengths of a round that is deeper or larger than any before: GROWTH times, or else by one draft step.

        It goes on in the next round, if no draft has come.

        Args:
            hoped: the best lengths, if what was never measured costs as little as is hoped.
            known: the depth that drafts may have without a trial.
            instead_of: the best lengths that are no deeper.
        Returns: None if no such round may be tried now.
        Effects: if one may, spends what it is expected to cost.
        """
        if self._costs.prefill.is_going_on:
            return None
        is_going_on = self._growing_to > 0 and len(self._waiting) == self._num_tried
        depths = [self._growing_to if is_going_on else self._round.deepest(GROWTH)]
        if self._costs.steps.covers(self._round.num):  # else it is not known what drafts have to gain
            depths.append(known + 1)
        for depth in dict.fromkeys(depths):
            lengths = self._round.no_deeper_than(depth, hoped)
            are_sure = self._round.budget.p_min > 0.0 and sum(map(bool, lengths)) > 1  # they share their doubt
            if self._is_allowed(lengths, instead_of, are_sure=are_sure, is_going_on=is_going_on):
                self._note_tried(self._round.unasked(lengths), is_going_on=is_going_on)
                self._trials.growing_to = 0 if is_going_on else max(lengths)
                return lengths
        return None

    def _is_plain_due(self, chosen: ChosenLengths) -> bool:
        """Whether this round goes without drafts, to learn what that takes. Effects: spends what it costs."""
        is_plain = not (any(self._round.without_drafts()) or self._round.num_others)
        if not is_plain or self._costs.prefill.is_going_on:
            return False
        if self._costs.steps.is_known(self._round.num, PLAIN_EVERY) or chosen.tokens_per_s is None:
            return False
        plain_s = self._round.plain_s
        cost_s = plain_s - self._round.num / chosen.tokens_per_s
        is_doubtful = chosen.tokens_per_s * plain_s <= DOUBTFUL_GAIN * self._round.num
        if not is_doubtful or not self._trials.allows(cost_s, plain_s):
            return False
        self._trials.spend(cost_s)
        return True

    def _promised(self, limits: Sequence[int], chosen: ChosenLengths) -> list[int] | None:
        """Lengths that would pay if acceptance were higher by HOPED_ERRORS, if they may be tried.

        Without such trials, a few rejected tokens in the first drafts would end drafting for long. A trial goes on in
        the next round if no draft has come.

        Returns: None if none may be tried now.

        Effects: if they may be tried, spends what they are expected to cost.
        """
        if self._round.num_others or chosen.tokens_per_s is None or self._costs.prefill.is_going_on:
            return None
        most = self._round.deferred(self._round.no_deeper_than(self._round.deepest(GROWTH), limits))
        hoped = self._round.weigh(most, HOPED_GAIN, num_errors=HOPED_ERRORS)
        tried = self._round.unasked(hoped.lengths)
        # as lucky, but without what would be tried: requests' own depths may have luck, too
        without = self._round.weigh(self._round.without_drafts(), HOPED_GAIN, num_errors=HOPED_ERRORS)
        if not tried or hoped.tokens_per_s is None or without.tokens_per_s is None:
            return None
        is_going_on = set(tried) <= set(self._waiting)
        promise = hoped.tokens_per_s / without.tokens_per_s - 1.0
        if not self._is_allowed(hoped.lengths, chosen.lengths, is_going_on=is_going_on, promise=promise):
            return None
        self._note_tried(tried, is_going_on=is_going_on)
        return hoped.lengths

    def _between(self, limits: Sequence[int], chosen: ChosenLengths) -> list[int] | None:
        """Lengths that make a step of a size between measured ones, if that might be much quicker and may be tried.

        Effects: if so, spends what it costs.
        """
        if self._round.num_others or chosen.tokens_per_s is None or self._costs.prefill.is_going_on:
            return None
        hoped = self._round.weigh(self._round.no_deeper_than(self._round.deepest(1), limits), MIN_GAIN, is_hopeful=True)
        is_better = _is_better(hoped, chosen) and any(hoped.lengths)
        if not is_better or not self._is_allowed(hoped.lengths, chosen.lengths):
            return None
        self._tried = self._round.unasked(hoped.lengths)
        return hoped.lengths

    def _with_probes(self, lengths: list[int]) -> list[int]:
        """Drafts for sequences that had none for long, as many as trials allow.

        If the hub holds no sequence, only the shortest one probes, because the prefill for a probe may cost more than
        all drafts of a request would save. The others are then judged by what this one achieves. A probe goes on in the
        next round, if its draft has not come: a hub that has to prefill or to catch up first may take longer.
        """
        probing = self._round.idle(lengths)
        if probing and not self._waiting:
            cheapest = self._probes_of(probing[:1], lengths)
            probing = probing if self._is_affordable(cheapest, lengths) else []  # in most rounds it is not
        while probing:
            tried = self._probes_of(probing, lengths)
            is_going_on = set(probing) <= set(self._waiting)
            if self._is_allowed(tried, lengths, is_going_on=is_going_on):
                self._note_tried(probing, is_going_on=is_going_on)
                return tried
            probing = probing[: len(probing) // 2]
        return lengths

    def _probes_of(self, probing: Collection[int], lengths: Sequence[int]) -> list[int]:
        """The lengths, with probes of those sequences. All have the depth that costs least for each tested token: where
        the way to the hub takes long, deeper probes are cheaper, and show more."""

        def with_probes(depth: int) -> list[int]:
            pairs = zip(lengths, self._round.limits, strict=True)
            return [min(depth, most) if index in probing else each for index, (each, most) in enumerate(pairs)]

        deepest, depths = self._round.deepest(1), [PROBE_STEPS]
        while depths[-1] < deepest:
            depths.append(min(GROWTH * depths[-1], deepest))
        return self._round.cheapest_test(map(with_probes, depths), lengths)

    def _note_tried(self, indices: Sequence[int], *, is_going_on: bool) -> None:
        """These sequences take part in a trial. If their drafts do not come, it goes on in the next round, but once."""
        self._tried = indices
        self._trials.tried = () if is_going_on else [self._round.acceptances[index] for index in indices]

    def _is_allowed(
        self,
        lengths: Sequence[int],
        instead_of: Sequence[int],
        *,
        are_sure: bool = False,
        is_going_on: bool = False,
        promise: float = 0.0,
    ) -> bool:
        """Whether a trial may be made. Effects: if so, spends what it should cost.

        Args: as `WeighedRound.trial_of` and `Trials.make`.
        """
        trial = self._round.trial_of(lengths, instead_of, are_sure=are_sure)
        return self._trials.make(trial, self._round.plain_s, is_going_on=is_going_on, promise=promise)

    def _is_affordable(self, lengths: Sequence[int], instead_of: Sequence[int]) -> bool:
        """As `_is_allowed` for a trial that does not go on, without effects."""
        return self._trials.allows(self._round.trial_of(lengths, instead_of).cost_s, self._round.plain_s)


def _is_better(hoped: ChosenLengths, chosen: ChosenLengths) -> bool:
    """Whether what is hoped for is worth a trial."""
    if hoped.tokens_per_s is None or chosen.tokens_per_s is None:
        return False
    return hoped.tokens_per_s > HOPED_GAIN * chosen.tokens_per_s


def _halved(most: float, worth: float) -> float:
    """The probability `most`, halved until it is about `worth`: few different ones, since budgets are compared."""
    least = most * 0.5**MOST_HALVED
    return most * 0.5 ** round(log2(most / min(most, max(least, worth))))
