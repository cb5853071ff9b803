"""Lengths by expected tokens per second, from what steps, proposals and prefill were measured to take.

`expected_speed.py` weighs what is known. Here a round also decides what to find out (`experiments.py`), and whether a
sequence is worth the prefill that a hub would have to do for it first.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from starspec.policy.length.acceptance import Acceptance
from starspec.policy.length.costs import Costs
from starspec.policy.length.expected_speed import Candidates, ChosenLengths, fastest_lengths
from starspec.policy.length.experiments import PROBE_TOKENS, Experiments
from starspec.policy.length.snapshot import OFF, Choice, RoundSnapshot, SequenceSnapshot
from starspec.speculation.budget import DraftBudget

MIN_GAIN: Final = 1.1  # times the speed without drafts: if less is expected, drafts may well lose


@dataclass(frozen=True, slots=True)
class MeasuredSpeed:
    """Chains for the sequences that gain by them, and now and then probes that show whether others would gain.

    What is learnt is in `RoundSnapshot.costs` and `SequenceSnapshot.acceptance`; what is tried, in
    `RoundSnapshot.experiments`. Without them, whatever is likely enough is drafted.
    """

    max_draft_tokens: int  # of one chain

    def choose(self, snapshot: RoundSnapshot) -> list[Choice]:
        """As LengthPolicy. Call it once a round. Effects: on `snapshot.experiments`."""
        if not snapshot.sequences:
            return []
        costs, experiments = snapshot.costs or Costs(), snapshot.experiments or Experiments()
        experiments.begin_round(snapshot.probes)
        weighed = _Round(snapshot.sequences, self.max_draft_tokens, costs, experiments)
        lengths = weighed.paying_lengths()
        if any(lengths) and experiments.is_plain_due(len(lengths), costs):
            return [OFF] * len(lengths)
        has_new = any(each.is_new for each in snapshot.sequences)
        if experiments.allows_probes(is_drafting=any(lengths), has_new=has_new):
            probes = weighed.probes(snapshot.now_s)
            if any(probes) and not any(lengths):
                experiments.note_probing()
            lengths = [length or probe for length, probe in zip(lengths, probes, strict=True)]
        return [Choice.of(DraftBudget.chain(length)) for length in lengths]


class _Round:
    """The sequences of one round, at least one, and what is known about them."""

    def __init__(
        self, sequences: Sequence[SequenceSnapshot], max_draft_tokens: int, costs: Costs, experiments: Experiments
    ) -> None:
        self._sequences = sequences
        self._costs = costs
        self._experiments = experiments
        self._acceptances = [each.acceptance or Acceptance() for each in sequences]
        self._limits = [  # draft tokens of each, at most
            max(0, min(max_draft_tokens, each.max_draft_tokens, each.max_remaining_tokens - 1)) for each in sequences
        ]

    def paying_lengths(self) -> list[int]:
        """Draft tokens of each sequence.

        A hub should prefill sequences only if their drafts save more time, until the requests end, than prefill costs.
        The first decision is about all sequences that need prefill together. If their prefill does not pay, the next
        decision is about the shorter half of them, and so on.
        """
        chosen = self._weigh(self._limits)
        if not self._num_to_prefill(chosen):
            return chosen.lengths
        held = self._weigh(self._limits_without(range(len(self._sequences))))
        if self._experiments.has_to_defer(len(self._sequences), self._costs):
            return held.lengths
        unheld = [index for index, each in enumerate(self._sequences) if each.num_to_prefill]
        shortest_first = sorted(unheld, key=lambda index: self._sequences[index].num_to_prefill)
        while self._num_to_prefill(chosen) and not self._pays_prefill(chosen, held):
            shortest_first = shortest_first[: len(shortest_first) // 2]
            chosen = self._weigh(self._limits_without(set(unheld) - set(shortest_first)))
        return chosen.lengths

    def probes(self, now_s: float) -> list[int]:
        """Draft tokens with which each idle sequence may probe.

        If the hub holds no sequence, only the shortest one probes, because the prefill for a probe may cost more than
        all drafts of a request would save. The others are then judged by what this one achieves: if its drafts pay, all
        get drafts.
        """
        indices = range(len(self._sequences))
        idle = [index for index in indices if self._limits[index] and self._acceptances[index].is_idle]
        if not idle:
            return [0 for _ in indices]
        held = {index for index in indices if self._limits[index] and self._sequences[index].is_held}
        probing = held.intersection(idle)
        if not held:
            shortest = min(idle, key=lambda index: self._sequences[index].num_tokens)
            if self._costs.prefill.pays_for_probe(self._sequences[shortest].num_tokens, now_s):
                probing = {shortest}
        return [min(PROBE_TOKENS, self._limits[index]) if index in probing else 0 for index in indices]

    def _weigh(self, limits: Sequence[int]) -> ChosenLengths:
        rates, reaches = [each.rate for each in self._acceptances], [each.reach for each in self._acceptances]
        return fastest_lengths(Candidates(rates, limits, reaches), self._costs.steps, self._costs.rounds.cost, MIN_GAIN)

    def _limits_without(self, excluded: Collection[int]) -> list[int]:
        """The limits without drafts for excluded sequences that need prefill."""
        return [
            0 if index in excluded and self._sequences[index].num_to_prefill else limit
            for index, limit in enumerate(self._limits)
        ]

    def _num_to_prefill(self, chosen: ChosenLengths) -> int:
        """Tokens that a hub has to prefill for these drafts."""
        pairs = zip(self._sequences, chosen.lengths, strict=True)
        return sum(sequence.num_to_prefill for sequence, length in pairs if length)

    def _pays_prefill(self, chosen: ChosenLengths, held: ChosenLengths) -> bool:
        """Whether the chosen drafts are worth their prefill, compared with drafts only for what the hub holds."""
        before, after = held.tokens_per_s, chosen.tokens_per_s
        if before is None or after is None:
            return True
        num = len(self._sequences)
        return self._costs.pays_prefill(self._num_to_prefill(chosen), num / before, num / after)
