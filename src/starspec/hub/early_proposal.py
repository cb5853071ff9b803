"""Answering a verdict before it is taken in: while a draft step runs ahead nothing of its sequences may move (ADR
22).
"""

from __future__ import annotations

from starspec.hub.sequence import DraftSequence, EarlyProposal
from starspec.wire.messages import Proposal, Verdict


def early_proposal(
    sequence: DraftSequence,
    verdict: Verdict,
    arrived_s: float,
    now: float,
    *,
    step_s: float,
    return_s: float | None,
    begun_s: float,
) -> EarlyProposal | None:
    """What answers the verdict, if the tree has it and need not wait for more. Changes nothing.

    Args:
        arrived_s: when the verdict came.
        step_s, return_s, begun_s: as for `DraftSequence.is_ready`.
    Returns: None if the answer has to wait for the end of the draft step.
    """
    if not (sequence.session.is_followed_by(verdict) and sequence.tree.knows_after(verdict.token_ids)):
        return None
    expected_order = sequence.after_verdict(verdict, arrived_s)
    request = expected_order.request
    if (
        request is None
        or expected_order.is_asked_otherwise
        or not expected_order.is_ready(now, step_s, return_s, begun_s)
    ):
        return None
    tree, prefix_len = expected_order.proposal(), len(expected_order.token_ids)
    proposal = Proposal.of(tree, verdict.tag, verdict.epoch, prefix_len, *request.times(now))
    return EarlyProposal(proposal, now, len(expected_order.tree.forwarded))
