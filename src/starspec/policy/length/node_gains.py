"""How many nodes of a tree are worth their rows in the target's step.

A hub proposes the likeliest nodes of the tree that it has grown. So a proposal of fewer nodes is a part of a larger
one, and it has of each accepted path what lies on its own nodes. A proposal that states the log-probabilities of its
nodes says which nodes these are. So what smaller trees would have gained is known after each verdict, exactly. What
larger ones would have gained is not: a node is taken to be accepted as often as a likelier one, until it was drafted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Final

import numpy as np
from numpy.typing import NDArray

from starspec.policy.length.costs import Costs
from starspec.policy.length.step_cost import StepCost
from starspec.speculation.budget import MAX_FORWARDED, DraftBudget

FADE: Final = 0.99  # weight of a proposal, one proposal later
UNSEEN_FADE: Final = 0.999  # the same for places that it did not have, so that they are tried again some day
NUM_PRIOR: Final = 10.0  # proposals that the place before counts as
MIN_GAIN: Final = 1.02  # times the speed of a larger tree, for a smaller one: chance decides as much


class NodeGains:
    """How often one drafter's nodes are accepted, by their places: the likeliest node of a proposal has place 0."""

    def __init__(self) -> None:
        self._num_drafted = np.zeros(MAX_FORWARDED)
        self._num_accepted = np.zeros(MAX_FORWARDED)

    def add(self, accepted: Sequence[int], num_nodes: int) -> None:
        """A tree was verified.

        Args:
            accepted: places of the accepted nodes.
            num_nodes: that it had.
        """
        for counts in (self._num_drafted, self._num_accepted):
            counts[:num_nodes] *= FADE
            counts[num_nodes:] *= UNSEEN_FADE
        self._num_drafted[:num_nodes] += 1.0
        self._num_accepted[list(accepted)] += 1.0

    def rates(self, num_nodes: int) -> NDArray[np.float64]:
        """How often the nodes of the first places are accepted, [num_nodes], from the likeliest on."""
        found, before = np.empty(num_nodes), 1.0
        pairs = zip(self._num_drafted[:num_nodes].tolist(), self._num_accepted[:num_nodes].tolist(), strict=True)
        for place, (num_drafted, num_accepted) in enumerate(pairs):
            before = found[place] = min(before, (num_accepted + NUM_PRIOR * before) / (num_drafted + NUM_PRIOR))
        return found

    def best_size(self, sizes: Sequence[int], num_sequences: int, steps: StepCost, wait_s: float) -> int:
        """The size with the most expected tokens per second. A smaller one has to gain MIN_GAIN over a larger one.

        Args:
            sizes: nodes of each tree, the largest first.
            num_sequences: that have such a tree each.
            steps: what the target's step takes. Something must have been measured.
            wait_s: of the wait for proposals. The tree is grown as deep and as wide for any number of nodes.
        """
        tokens = 1.0 + np.cumsum(self.rates(sizes[0]))

        def speed(size: int) -> float:
            return float(tokens[size - 1]) / (steps.seconds(num_sequences * (1 + size)) + wait_s)

        best = sizes[0]
        for size in sizes[1:]:
            if speed(size) > MIN_GAIN * speed(best):
                best = size
        return best


def with_worthy_nodes(budget: DraftBudget, gains: NodeGains, num_sequences: int, costs: Costs) -> DraftBudget:
    """The tree, without nodes that are not worth their rows: all of it, a half, a quarter and so on, down to a path.

    Args:
        budget: of each sequence. A chain is left as it is: its tokens are weighed one by one.
    """
    most = budget.num_draft_tokens
    if budget.is_chain or not costs.steps or most <= budget.num_steps:
        return budget
    halves = takewhile(lambda size: size > budget.num_steps, (most >> shift for shift in range(most.bit_length())))
    wait_s = float(costs.rounds.cost.seconds(most, np.array(float(num_sequences * most))))
    sizes = [*halves, budget.num_steps]
    return replace(budget, num_draft_tokens=gains.best_size(sizes, num_sequences, costs.steps, wait_s))
