"""What each round of each session was like, told to all who learn from it: statistics, targets, sessions.

proposal ── Z ──> verdict ── queue, layers ──> proposal
    what the hub drafts ahead meanwhile is of use to the one who asks, or in somebody's way
"""

from __future__ import annotations

from collections.abc import Sequence

from starspec.hub.ledger import Ledger
from starspec.hub.sequence import DraftRequest, DraftSession, InVerification
from starspec.hub.target_records import Spokes
from starspec.speculation.tree import DraftTree
from starspec.stats import HubStats
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

    def add_verdict(self, session: DraftSession, proposal: InVerification, num_tokens: int, now: float) -> None:
        """On this proposal, with so many tokens."""
        spoke = self._spokes[session.key.session_id]
        spoke.add_verdict(num_tokens, now - proposal.since_s)
        if proposal.budget.is_chain:
            session.pace.add_verdict(proposal.tree.num_draft_tokens, num_tokens - 1)
        if self._trace:
            tag = session.key.tag
            self._trace.slice(spoke.track, "verdict", proposal.since_s, now, tag=tag, emitted=num_tokens)

    def add_layer_ahead(self, sessions: Sequence[DraftSession], num_nodes: int, start_s: float, end_s: float) -> None:
        """One was drafted while nobody waited."""
        self._ahead, self._ahead_until_s = sessions, end_s
        self._ledger.add_ahead(start_s, end_s, len(sessions), num_nodes)

    def add_wait(self, asking: DraftSession, arrived_s: float) -> None:
        """A request came then. If it waited for the end of a layer ahead, the layer's other sessions are charged."""
        waited_s = self._ahead_until_s - arrived_s
        for session in self._ahead if waited_s > 0.0 else ():
            if session is not asking:  # his own round shows it
                session.ahead_choice.charge(waited_s / len(self._ahead))

    def add_overtaken(self, session: DraftSession, request: DraftRequest, now: float) -> None:
        """The target went on without the proposal that it had asked for: a round nevertheless."""
        began_s = request.arrived_s if request.began_s is None else request.began_s
        self._spokes[session.key.session_id].add_round(now - began_s)

    def add_proposal(self, session: DraftSession, request: DraftRequest, tree: DraftTree, now: float) -> None:
        """It answers the request now, and ends the round that the last proposal began, or a verdict without one."""
        queue_s, service_s = request.times(now)
        spoke = self._spokes[session.key.session_id]
        self._ledger.add_proposal(now, session.key.session_id, tree.num_draft_tokens)
        if request.started_s is not None:
            self._ledger.add_service(queue_s, service_s, request.has_prefill)
            spoke.add_wait(queue_s)
        spoke.add_proposal(tree.num_draft_tokens)
        if self._trace:
            num_tokens, tag = tree.num_draft_tokens, session.key.tag
            self._trace.slice(
                spoke.track, "proposal", request.arrived_s, now, tag=tag, tokens=num_tokens, queue_ms=queue_s * 1e3
            )
        if not tree.num_draft_tokens:
            return
        began_s = request.arrived_s if request.overtakes else request.began_s
        if began_s is not None:
            spoke.add_round(now - began_s)
        if request.has_prefill:
            return
        # a layer has a node at least; what else was there already was drafted for the proposal before, and waited for
        num_spared = 0
        if session.num_kept_ahead:
            num_spared = max(0, min(max(tree.depths) - request.num_layers, session.num_kept_ahead))
        self._stats.saved_s += num_spared * self._stats.t_s.value
        # were there more targets, nothing would run ahead, and these layers would be waited for
        spoke.add_layers(request.num_layers + num_spared)
        if request.began_s is not None and session.ahead_choice.is_learning:
            num_emitted = session.pace.emitted(tree.num_draft_tokens) if request.budget.is_chain else 1.0
            session.ahead_choice.add_round(num_emitted, now - request.began_s)
