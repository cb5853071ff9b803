"""The length policy that a speculative config names."""

from __future__ import annotations

from starspec.config import SpeculativeConfig
from starspec.policy.length.fixed import FixedLength, InSmallBatches
from starspec.policy.length.snapshot import LengthPolicy


def make_policy(config: SpeculativeConfig, max_num_seqs: int | None = None) -> LengthPolicy:
    """The policy that a speculative config names.

    Args:
        max_num_seqs: sequences of a round, at most; None = not known. More may hold rows and wait for their turn.
    """
    match config.length.policy:
        case "fixed":
            policy: LengthPolicy = FixedLength(config.budget)
    bound = config.disable_by_batch_size
    if bound is None or (max_num_seqs is not None and max_num_seqs <= bound):
        return policy
    return InSmallBatches(policy, bound)
