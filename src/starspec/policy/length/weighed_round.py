"""The sequences of one round, and what drafts of any lengths for them would bring and cost.

Nothing here decides or changes anything: `goodput.py` asks, decides, and tries.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from starspec.policy.length.acceptance import Acceptance
from starspec.policy.length.costs import Costs
from starspec.policy.length.expected_speed import Candidates, ChosenLengths, fastest_lengths
from starspec.policy.length.node_gains import with_worthy_nodes
from starspec.policy.length.snapshot import RoundSnapshot
from starspec.policy.length.trials import Trial
from starspec.speculation.budget import DraftBudget

FIRST_STEPS: Final = 2  # depth of the first drafts
MOST_HOPED: Final = 0.98  # acceptance that is hoped for, at most


class WeighedRound:
    """A round with at least one sequence. Lengths are draft steps of each of its sequences, in order.

    Args:
        budget: as Goodput.
    """

    def __init__(self, budget: DraftBudget, snapshot: RoundSnapshot) -> None:
        self.sequences = snapshot.sequences
        self.costs = snapshot.costs or Costs()
        self.num_others = max(0, snapshot.num_sequences - len(self.sequences))  # whose lengths are not chosen now
        self.num = len(self.sequences) + self.num_others
        if snapshot.nodes is not None:
            budget = with_worthy_nodes(budget, snapshot.nodes, self.num, self.costs)
        self.budget = budget
        self.are_asked = [each.num_steps_asked is not None for each in self.sequences]  # for depths of their own
        self.budgets = [  # the most for each
            each.fitting(budget if each.num_steps_asked is None else budget.with_steps(each.num_steps_asked))
            for each in self.sequences
        ]
        self.limits = [each.num_steps for each in self.budgets]
        self._nodes = [0, *(_num_nodes(budget, depth) for depth in range(1, max(self.limits) + 1))]  # by depth
        self.acceptances = [each.acceptance or Acceptance() for each in self.sequences]
        self._rates = [each.rate for each in self.acceptances]
        self._reaches = [each.reach for each in self.acceptances]
        self._gains = [each.gain for each in self.acceptances]
        self._now_s, self._num_emitted = snapshot.now_s, snapshot.num_emitted
        self._deepest_asked = 0 if snapshot.trials is None else snapshot.trials.deepest

    def weigh(
        self, limits: Sequence[int], min_gain: float, *, is_hopeful: bool = False, num_errors: float = 0.0
    ) -> ChosenLengths:
        """As `fastest_lengths`, within these limits.

        Args:
            num_errors: standard errors by which acceptance is taken to be higher than it seems; below 0, lower.
        """
        rates, gains = self._rates, self._gains
        if num_errors:
            rates = [_shifted(each, num_errors) for each in self.acceptances]
            pairs = zip(gains, rates, self._rates, strict=True)
            gains = [min(1.0, gain * rate / known) if known else gain for gain, rate, known in pairs]
        candidates = Candidates(
            rates,
            limits,
            self._reaches,
            gains,
            self.are_asked if any(self.are_asked) else None,
            None if self.budget.is_chain else np.diff(self._nodes).tolist(),
            self.num_others,
        )
        steps, wait = self.costs.steps, self.costs.rounds.cost
        return fastest_lengths(candidates, steps, wait, min_gain, is_hopeful=is_hopeful)

    def without_drafts(self) -> list[int]:
        """No drafts, but those that requests asked for."""
        return self.no_deeper_than(0, self.limits)

    def no_deeper_than(self, depth: int, lengths: Sequence[int]) -> list[int]:
        """The lengths, cut to this depth; but what requests asked for is kept."""
        pairs = zip(lengths, self.are_asked, strict=True)
        return [length if is_asked else min(length, depth) for length, is_asked in pairs]

    def unasked(self, lengths: Sequence[int]) -> list[int]:
        """Indices of the sequences with drafts that no request asked for."""
        pairs = zip(lengths, self.are_asked, strict=True)
        return [index for index, (length, is_asked) in enumerate(pairs) if length and not is_asked]

    def deepest(self, growth: int) -> int:
        """How deep drafts may be, so that wait and step are at most so many times as long as the longest before."""
        in_wait = self.deepest_wait(growth)
        num_nodes = growth * self.costs.steps.largest - self.num
        if num_nodes >= len(self.sequences) * self._nodes[-1]:
            return in_wait
        depths = np.arange(len(self._nodes) - 1)
        expected = (np.array(self._reaches)[:, None] ** depths).sum(axis=0) * np.diff(self._nodes)
        in_step = int((np.cumsum(expected) <= num_nodes).sum())
        return min(in_wait, in_step if growth == 1 else max(FIRST_STEPS, in_step))

    def deepest_wait(self, growth: int) -> int:
        """As `deepest`, by the wait alone."""
        deepest = growth * max(self._deepest_asked, self.costs.rounds.cost.deepest)
        return deepest if growth == 1 else max(FIRST_STEPS, deepest)

    def idle(self, lengths: Sequence[int]) -> list[int]:
        """Indices of the sequences that may probe, from the one that had no draft for longest."""
        held = [index for index, each in enumerate(self.sequences) if self.limits[index] and each.is_held]
        is_drafting = any(lengths)
        idle = [
            index
            for index, acceptance in enumerate(self.acceptances)
            if self.limits[index]
            and not lengths[index]
            and not self.are_asked[index]
            and (acceptance.is_idle or (acceptance.num_idle_rounds and not is_drafting))
        ]
        if idle and not held:
            return [min(idle, key=lambda index: self.sequences[index].num_tokens)]
        idle = [index for index in idle if self.sequences[index].is_held]
        return sorted(idle, key=lambda index: -self.acceptances[index].num_idle_rounds)

    # ---------------------------------------------------------------- prefill

    def unheld(self, lengths: Sequence[int]) -> list[int]:
        """Indices of the sequences with drafts that a hub would have to prefill, and that did not ask for drafts."""
        return [index for index in self.unasked(lengths) if self.sequences[index].num_to_prefill]

    def deferred(self, lengths: Sequence[int]) -> list[int]:
        """The lengths, without drafts for what a hub would have to prefill."""
        unheld = set(self.unheld(lengths))
        return [0 if index in unheld else length for index, length in enumerate(lengths)]

    def num_to_prefill(self, lengths: Sequence[int]) -> int:
        """Tokens that a hub has to prefill before it can draft so."""
        return sum(self.sequences[index].num_to_prefill for index in self.unheld(lengths))

    def _num_behind(self, lengths: Sequence[int]) -> int:
        """Tokens that a hub which holds the sequences has to catch up with first."""
        return sum(each.num_behind for each, length in zip(self.sequences, lengths, strict=True) if length)

    def pays_prefill(self, num_tokens: int, chosen: ChosenLengths, held: ChosenLengths) -> bool:
        """Whether the chosen drafts are worth a prefill, compared with drafts only for what the hub holds."""
        assert held.tokens_per_s is not None
        assert chosen.tokens_per_s is not None
        before_s, after_s = self.num / held.tokens_per_s, self.num / chosen.tokens_per_s
        to_come = [self.sequences[index].max_remaining_tokens for index in self.unheld(chosen.lengths)]
        return self.costs.pays_prefill(num_tokens, before_s, after_s, sum(to_come) / max(1, len(to_come)))

    # ---------------------------------------------------------------- costs

    @property
    def plain_s(self) -> float:
        """Seconds of a round without drafts."""
        return self.costs.steps.seconds(self.num)

    def _speedup_of(self, lengths: Sequence[int]) -> float:
        """Expected tokens per second over those without drafts, less than 1 only where requests asked for drafts."""
        round_s, tokens_s = self._expected(lengths)
        return tokens_s / round_s if any(self.without_drafts()) else max(1.0, tokens_s / round_s)

    def cheapest_test(self, tests: Iterable[list[int]], instead_of: Sequence[int]) -> list[int]:
        """Of these lengths, those that cost least for each draft token that they are expected to test.

        Args:
            instead_of: what seems best, with fewer drafts than each of the tests.
        """
        best_round_s, best_tokens_s = self._expected(instead_of)
        speedup = self._speedup_of(instead_of)

        def cost_s(lengths: Sequence[int]) -> float:
            round_s, tokens_s = self._expected(lengths)
            num_drafts = sum(map(bool, lengths)) - sum(map(bool, instead_of))
            num_accepted = (tokens_s - best_tokens_s) / self.plain_s * self.num
            num_tested = num_drafts + num_accepted  # each draft also shows whether the token behind these is right
            return (round_s - tokens_s / speedup - best_round_s + best_tokens_s / speedup) / num_tested

        return min(tests, key=cost_s)

    def trial_of(self, lengths: Sequence[int], instead_of: Sequence[int], *, are_sure: bool = False) -> Trial:
        """What is expected of a trial that begins now.

        Args:
            instead_of: what seems best.
            are_sure: its round takes as long as if no draft ended in doubt.
        """
        round_s, tokens_s = self._expected(lengths, are_sure=are_sure)
        speedup = self._speedup_of(instead_of)
        num_more = self.num_to_prefill(lengths) - self.num_to_prefill(instead_of)
        num_more += self._num_behind(lengths) - self._num_behind(instead_of)
        prefill_s = self.costs.prefill.seconds(num_more) if num_more > 0 else 0.0
        return Trial(
            round_s=round_s,
            tokens_s=tokens_s / speedup,
            speedup=speedup,
            beside_s=prefill_s,
            started_s=self._now_s,
            num_sequences=self.num,
            num_emitted=None if self.num_others else self._num_emitted,
        )

    def break_even(self, lengths: Sequence[int], tokens_per_s: float) -> list[float]:
        """For each sequence, the probability of a path behind which the next draft step takes as long as it saves.

        Args:
            lengths: what is drafted, of at least one sequence. 1 for all while it is not known what that takes.
            tokens_per_s: of what seems best.
        """
        steps, wait = self.costs.steps, self.costs.rounds.cost
        if not steps or not wait.deepest:
            return [1.0] * len(lengths)
        num_nodes = sum(self._nodes[length] for length in lengths)
        node_s = wait.token_s + steps.seconds(self.num + num_nodes + 1) - steps.seconds(self.num + num_nodes)
        step_s = (wait.step_s / sum(map(bool, lengths)) + node_s) * num_nodes / sum(lengths)  # of all its nodes
        return [tokens_per_s * step_s / rate if rate > 0.0 else 1.0 for rate in self._rates]

    def _expected(self, lengths: Sequence[int], *, are_sure: bool = False) -> tuple[float, float]:
        """Seconds of a round, at most, and what its expected tokens would take without drafts."""
        depths = np.arange(max(lengths, default=0))
        is_asked = depths < np.array(lengths)[:, None]
        drafted = is_asked * (1.0 if are_sure else np.array(self._reaches)[:, None] ** depths)
        widths = np.diff(self._nodes)[: len(depths)]
        num_nodes = float((drafted * widths).sum())
        num_steps = float(((1.0 - np.prod(1.0 - drafted, axis=0)) * widths).sum())
        gained = float((is_asked * np.array(self._rates)[:, None] * np.array(self._gains)[:, None] ** depths).sum())
        wait_s = self.costs.rounds.cost.at_most(num_steps, num_nodes) if num_nodes else 0.0
        return self.costs.steps.at_most(self.num + num_nodes) + wait_s, (1.0 + gained / self.num) * self.plain_s


def _num_nodes(budget: DraftBudget, depth: int) -> int:
    """Nodes of a draft that is so deep, at most."""
    return min(budget.num_draft_tokens, budget.with_steps(depth).max_nodes) if not budget.is_chain else depth


def _shifted(acceptance: Acceptance, num_errors: float) -> float:
    """Its rate, moved by so many standard errors, but not up beyond MOST_HOPED."""
    rate = acceptance.rate
    return max(0.0, min(max(rate, MOST_HOPED), rate + num_errors * acceptance.error))
