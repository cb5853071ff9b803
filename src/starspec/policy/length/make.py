"""The length policy that a speculative config names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from starspec.config import Policy, SpeculativeConfig
from starspec.policy.length.adaedl import AdaEdl
from starspec.policy.length.dsde import Dsde
from starspec.policy.length.fixed import BatchSizes, ByBatchSize, FixedLength, InSmallBatches
from starspec.policy.length.goodput import Goodput
from starspec.policy.length.snapshot import LengthPolicy
from starspec.speculation.budget import DraftBudget

POLICIES: Final[Mapping[Policy, Callable[[DraftBudget], LengthPolicy]]] = {
    "goodput": Goodput,
    "fixed": FixedLength,
    "confidence": FixedLength,  # the budget has the least probability, and the hub ends drafts by it
    "adaedl": AdaEdl,
    "dsde": Dsde,
}


def make_policy(config: SpeculativeConfig, max_num_seqs: int | None = None) -> LengthPolicy:
    """The policy that a speculative config names.

    Args:
        max_num_seqs: sequences of a round, at most; None = not known. More may hold rows and wait for their turn.
    """
    make, budget = POLICIES[config.length.policy], config.budget
    policy = make(budget)
    if config.num_speculative_tokens_per_batch_size:
        table = tuple(BatchSizes(*row) for row in config.num_speculative_tokens_per_batch_size)
        policy = ByBatchSize(make, budget, table)
    bound = config.disable_by_batch_size
    if bound is None or (max_num_seqs is not None and max_num_seqs <= bound):
        return policy
    return InSmallBatches(policy, bound)
