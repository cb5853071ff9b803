"""How far one drafter speculates for a target's sequences. It asks the length policy, and learns from every round.

A target that drafts from a hub and, in its absence, from n-grams has two drafters. What the target's own steps cost is
the same for both. What drafts achieve, and how long they take, belongs to a drafter and is forgotten with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean
from typing import Final

import structlog

from starspec.client.pace import PacedChoices
from starspec.engine.sequence import RoundOutput, TargetSequence
from starspec.errors import outcome
from starspec.ids import RequestKey
from starspec.log_limit import LogLimit
from starspec.policy.length.acceptance import SHRUNK_FADE, Acceptance
from starspec.policy.length.costs import Costs
from starspec.policy.length.divergence import DivergenceHistory
from starspec.policy.length.hub_lessons import HubLessons
from starspec.policy.length.snapshot import OFF, Choice, LengthPolicy, RoundSnapshot, SequenceSnapshot
from starspec.policy.length.stop_threshold import StopThreshold
from starspec.policy.length.trials import Trials
from starspec.policy.pipe_depth import ONE_WINDOW, Traversed, WindowGap
from starspec.policy.window_choice import MAX_ALPHA
from starspec.speculation.budget import MAX_FORWARDED, NO_DRAFT, DraftBudget
from starspec.stats import LengthStats

NOTHING: Final[Mapping[RequestKey, int]] = {}

log = structlog.get_logger()


@dataclass(slots=True)
class _History:
    """What the drafts of one sequence achieved."""

    usual: Acceptance  # of all sequences with the same drafter
    acceptance: Acceptance
    divergence: DivergenceHistory = field(default_factory=DivergenceHistory)
    stop_threshold: StopThreshold = field(default_factory=StopThreshold)
    choice: Choice = OFF  # the last one
    is_new: bool = True  # it was in no round yet: its prompt is being prefilled, or was just now


class DraftLengths:
    """The lengths of one drafter's drafts.

    Args:
        costs: of the target's steps. Their parts about a drafter are not used.
        lessons: what was learnt about the drafter that serves now; another object = another drafter.
        stats: counts each choice.
    """

    def __init__(
        self,
        policy: LengthPolicy,
        costs: Costs,
        lessons: Callable[[], HubLessons],
        stats: LengthStats,
        clock: Callable[[], float],
    ) -> None:
        self._choices = PacedChoices(policy, clock)
        self._lessons = lessons
        self._stats = stats
        self._clock = clock
        self._log_limit = LogLimit(clock)
        self._trials = Trials()
        self._histories: dict[RequestKey, _History] = {}
        self._longest_chain = 0  # steps that the policy chose last
        self._num_beside = 0
        self._num_emitted = 0  # tokens that rounds have given its sequences
        self.plan = ONE_WINDOW  # of windows in flight
        self.costs = costs

    def note_beside(self, num_sequences: int) -> None:
        """So many sequences of the next rounds have drafts of another drafter: those rounds are larger by them."""
        self._num_beside = num_sequences

    def choose(
        self,
        sequences: Sequence[TargetSequence],
        num_sequences: int,
        *,
        max_draft_tokens: int = MAX_FORWARDED,
        to_prefill: Mapping[RequestKey, int] = NOTHING,
        behind: Mapping[RequestKey, int] = NOTHING,
    ) -> list[DraftBudget]:
        """What to ask for, for sequences whose drafts are chosen together: at most one call of the policy.

        If the policy raises, it is for no drafts: that ends no answer.

        Args:
            num_sequences: of the round that the drafts are for, without those of another drafter.
            max_draft_tokens: that the drafter gives for one sequence.
            to_prefill: tokens that the drafter would have to prefill first, of those sequences that it does not hold.
            behind: the same of sequences that it holds, but drafted nothing for in the last rounds.
        """
        if not sequences:
            return []
        lessons, histories = self._lessons(), [self._history(each) for each in sequences]
        num_in_round = num_sequences + self._num_beside

        def snapshot() -> RoundSnapshot:
            pairs = zip(sequences, histories, strict=True)
            return RoundSnapshot(
                sequences=[_snapshot(*each, max_draft_tokens, to_prefill, behind) for each in pairs],
                num_sequences=num_in_round,
                now_s=self._clock(),
                costs=self._costs_with(lessons),
                trials=self._trials,
                num_emitted=self._num_emitted,
                was_interrupted=any(each.is_new for each in self._histories.values()),
                nodes=lessons.nodes,
            )

        about = [lessons, num_in_round, max_draft_tokens, *(each.key for each in sequences)]
        chosen = outcome(partial(self._choices.choose, about, snapshot, is_urgent=bool(to_prefill)))
        if isinstance(chosen, BaseException):
            self._log_limit.log(log.error, "the length policy failed; these sequences get no drafts", exc_info=chosen)
            chosen = [OFF] * len(sequences)
        self._note_longest(sequences, chosen)
        triples = zip(sequences, histories, chosen, strict=True)
        return [self._noted(*each, max_draft_tokens) for each in triples]

    def _noted(self, sequence: TargetSequence, history: _History, choice: Choice, max_draft_tokens: int) -> DraftBudget:
        """What to ask for after a choice. Effects: notes it for the sequence, for its next time, and in the counts."""
        budget = choice.budget.limited(num_draft_tokens=max_draft_tokens, num_steps=self._most_steps(sequence))
        history.choice = choice._replace(budget=budget.stating(sequence.rule.num_stated))
        sequence.note_length(budget.num_steps, choice.reason)
        self._stats.add(budget.num_steps, choice.reason)
        return history.choice.budget

    def last(self, sequence: TargetSequence) -> DraftBudget:
        """The last choice for a sequence, as far as it can still use it; no draft before the first."""
        history = self._histories.get(sequence.key)
        budget = NO_DRAFT if history is None else history.choice.budget
        return budget.limited(num_steps=self._most_steps(sequence))

    def learn(self, sequence: TargetSequence, added: RoundOutput, num_requested: int) -> None:
        """A round is over, in which the sequence had a draft of this drafter, or could have had one.

        Args:
            added: what the round added; its draft is at most as deep as requested.
            num_requested: steps that were asked for; 0 = the sequence had no draft of this drafter.
        """
        history = self._history(sequence)
        self._num_emitted += len(added.token_ids)
        num_steps, num_accepted = (added.num_steps, added.num_accepted) if num_requested else (0, 0)
        history.acceptance.add(num_steps, num_accepted, num_requested)
        history.is_new = False
        if num_steps:
            history.usual.add(num_steps, num_accepted, num_requested)
            history.divergence.add_round(added.divergences, num_accepted)
            history.stop_threshold.add_round(num_steps, num_accepted)
            if added.accepted_places is not None:
                self._lessons().nodes.add(added.accepted_places, added.num_draft_tokens)

    def end_round(self, num_tokens: int, verify_s: float) -> None:
        """The target's step over so many tokens took `verify_s`."""
        costs = self._costs_with(self._lessons())
        costs.add_step(num_tokens, verify_s)
        costs.end_step()

    def _note_longest(self, sequences: Sequence[TargetSequence], chosen: Sequence[Choice]) -> None:
        """Note the longest chain that the policy wants. Where an answer ends soon, it may want less than pays."""
        lengths = [
            choice.budget.num_steps
            for sequence, choice in zip(sequences, chosen, strict=True)
            if choice.budget.is_chain and choice.budget.num_steps < sequence.num_unplanned - 1
        ]
        self._longest_chain = max(lengths, default=self._longest_chain)

    def plan_windows(
        self, took: Traversed | None, seconds: float, num_running: int, *, is_ahead: bool, gaps: Sequence[WindowGap]
    ) -> None:
        """Choose how many windows of one sequence should be in flight, and how long their drafts should be at most.

        Args:
            took: the traversal of the round that has landed just now; None = the target is not in stages.
            seconds: its traversal's share of the time, as others may have been in flight.
            num_running: sequences that share the stages.
            is_ahead: whether other windows could stand on those of the round.
            gaps: before its windows.
        """
        if took is None:
            return
        lessons = self._lessons()
        # of the sequences that run now, since texts differ
        rates = [each.acceptance.rate for each in self._histories.values() if each.usual is lessons.acceptance]
        alpha = min(MAX_ALPHA, fmean(rates) if rates else lessons.acceptance.rate)
        lessons.windows.add_round(took, seconds, is_ahead=is_ahead, gaps=gaps)
        self.plan = lessons.windows.choose(alpha, self._longest_chain, num_running)

    def _most_steps(self, sequence: TargetSequence) -> int:
        """Steps that a draft of the sequence may have. Behind presumed tokens the first one is only a guess."""
        most = sequence.num_unplanned - 1
        if self.plan.depth > 1:
            most = min(most, max(1, self.plan.num_draft_tokens) + bool(sequence.flights))
        return most

    def forget(self, sequence: TargetSequence) -> None:
        """The sequence has ended."""
        if self._histories.pop(sequence.key, None) is not None:
            self.costs.add_finished(sequence.num_output_tokens)

    def _costs_with(self, lessons: HubLessons) -> Costs:
        """The costs of the target's steps, and of the drafter that serves now."""
        return replace(self.costs, rounds=lessons.rounds, prefill=lessons.prefill)

    def _history(self, sequence: TargetSequence) -> _History:
        usual, known = self._lessons().acceptance, self._histories.get(sequence.key)
        if known is None or known.usual is not usual:  # what another drafter achieved says nothing about this one
            known = _History(usual, Acceptance(usual=usual, fade=SHRUNK_FADE))
            self._histories[sequence.key] = known
        return known


def _snapshot(
    sequence: TargetSequence,
    history: _History,
    max_draft_tokens: int,
    to_prefill: Mapping[RequestKey, int],
    behind: Mapping[RequestKey, int],
) -> SequenceSnapshot:
    return SequenceSnapshot(
        max_remaining_tokens=sequence.num_unplanned,
        num_steps_asked=sequence.spec.num_draft_tokens,
        policy_asked=sequence.spec.length_policy,
        max_draft_tokens=max_draft_tokens,
        num_tokens=len(sequence.token_ids),
        num_to_prefill=to_prefill.get(sequence.key, 0),
        num_behind=behind.get(sequence.key, 0),
        is_held=sequence.key not in to_prefill,
        is_new=history.is_new,
        acceptance=history.acceptance,
        divergence=history.divergence,
        stop_threshold=history.stop_threshold,
    )
