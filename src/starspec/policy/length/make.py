"""The length policies that a speculative config names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from starspec.config import Policy, SpeculativeConfig
from starspec.policy.length.adaedl import AdaEdl
from starspec.policy.length.by_request import ByRequest
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
    """The policy that a speculative config names, and those that requests may ask for instead.

    Args:
        max_num_seqs: sequences of a round, at most; None = not known. More may hold rows and wait for their turn.
    """
    policies = {name: _named(each) for name, each in config.request_policies.items()}
    policy: LengthPolicy = ByRequest(policies[config.length.policy], policies)
    bound = config.disable_by_batch_size
    if bound is None or (max_num_seqs is not None and max_num_seqs <= bound):
        return policy
    return InSmallBatches(policy, bound)


def _named(config: SpeculativeConfig) -> LengthPolicy:
    make, budget = POLICIES[config.length.policy], config.budget
    if not config.num_speculative_tokens_per_batch_size:
        return make(budget)
    table = tuple(BatchSizes(*row) for row in config.num_speculative_tokens_per_batch_size)
    return ByBatchSize(make, budget, table)
