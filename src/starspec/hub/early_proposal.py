"""Answering a verdict before it is taken in: while a layer runs ahead nothing of its sessions may move (ADR 22)."""

from __future__ import annotations

from starspec.hub.sequence import DraftSession, Promise
from starspec.wire.messages import Proposal, Verdict


def promise(
    session: DraftSession,
    verdict: Verdict,
    arrived_s: float,
    now: float,
    *,
    layer_s: float,
    return_s: float | None,
    begun_s: float,
) -> Promise | None:
    """What answers the verdict, if the tree has it and need not wait for more. Changes nothing.

    Args:
        arrived_s: when the verdict came.
        layer_s, return_s, begun_s: as for `DraftSession.is_ready`.
    Returns: None if the answer has to wait for the end of the layer.
    """
    if not (session.link.is_followed_by(verdict) and session.tree.knows_after(verdict.token_ids)):
        return None
    foreseen = session.foresee(verdict, arrived_s)
    request = foreseen.request
    if request is None or foreseen.is_asked_otherwise or not foreseen.is_ready(now, layer_s, return_s, begun_s):
        return None
    tree, prefix_len = foreseen.proposal(), len(foreseen.token_ids)
    proposal = Proposal.of(tree, verdict.tag, verdict.epoch, prefix_len, *request.times(now))
    return Promise(proposal, now, len(foreseen.tree.forwarded))
