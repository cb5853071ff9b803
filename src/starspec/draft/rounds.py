"""What each round of each session was like, told to all who learn from it: statistics, targets, sessions.

proposal ── Z ──> verdict ── queue, layers ──> proposal
    what the hub drafts ahead meanwhile is of use to the one who asks, or in somebody's way
"""

from __future__ import annotations

from collections.abc import Sequence

from starspec.draft.ledger import Ledger
from starspec.draft.session import DraftRequest, DraftSession
from starspec.draft.spokes import Spokes
from starspec.speculation.stats import HubStats
from starspec.speculation.tree import DraftTree
from starspec.tracing import Tracer


class Rounds:
    """Follows the rounds of all sessions.

    Args:
        stats, ledger, spokes: the hub's; they are told.
        trace: also gets every round, on a track for each target, if given: of a vLLM server there is no other.
    """

    def __init__(self, stats: HubStats, ledger: Ledger, spokes: Spokes, trace: Tracer | None = None) -> None:
        self._stats = stats
        self._ledger = ledger
        self._spokes = spokes
        self._trace = trace
        self._ahead: Sequence[DraftSession] = ()  # sessions of the last layer that ran ahead
        self._ahead_until_s = float("-inf")  # its end

    def add_verdict(self, session: DraftSession, num_tokens: int, now: float) -> None:
        """With so many tokens, before they are committed. Of a proposal that was not waited for there is none."""
        proposal = session.in_verification
        if proposal is not None and proposal.is_judged_by(num_tokens):
            spoke = self._spokes[session.key.session_id]
            spoke.add_round(proposal.num_tokens, num_tokens, now - proposal.since_s)
            if self._trace:
                self._trace.slice(
                    spoke.track, "verdict", proposal.since_s, now, tag=session.key.tag, emitted=num_tokens
                )
            session.pace.add_verdict(proposal.num_tokens, num_tokens - 1)

    def add_layer_ahead(self, sessions: Sequence[DraftSession], num_nodes: int, start_s: float, end_s: float) -> None:
        """One was drafted while nobody waited."""
        self._ahead, self._ahead_until_s = sessions, end_s
        self._ledger.add_ahead(start_s, end_s, len(sessions), num_nodes)

    def add_wait(self, arrived_s: float) -> None:
        """A request came then, and nothing was ready. If a layer ahead was running, its sessions are charged."""
        waited_s = self._ahead_until_s - arrived_s
        for session in self._ahead if waited_s > 0.0 else ():
            session.ahead.charge(waited_s / len(self._ahead))

    def add_proposal(self, session: DraftSession, request: DraftRequest, tree: DraftTree, now: float) -> None:
        """It answers the request now, and ends the round that the last proposal began."""
        queue_s, service_s = request.times(now)
        spoke = self._spokes[session.key.session_id]
        self._ledger.add_proposal(now, tree.num_draft_tokens)
        if request.started_s is not None:
            self._ledger.add_service(queue_s, service_s, request.has_prefill)
            spoke.add_wait(queue_s)
        spoke.add_proposal(tree.num_draft_tokens)
        if self._trace:
            told: dict[str, str | float] = {
                "tag": session.key.tag,
                "tokens": tree.num_draft_tokens,
                "queue_ms": queue_s * 1e3,
            }
            self._trace.slice(spoke.track, "proposal", request.arrived_s, now, **told)
        if request.has_prefill or session.is_rationed:
            return
        round_s = None if request.began_s is None else now - request.began_s
        num_spared = max(0, max(tree.depths, default=0) - request.num_layers) if session.ahead.mode != "off" else 0
        self._stats.saved_s += num_spared * self._stats.t_s.value
        # were there more targets, nothing would run ahead, and these layers would be waited for
        spoke.add_service(request.num_layers + num_spared, round_s)
        if round_s is not None:
            num_emitted = session.pace.emitted(session.num_known) if request.budget.is_chain else 1.0
            session.ahead.add_round(num_emitted, round_s)
