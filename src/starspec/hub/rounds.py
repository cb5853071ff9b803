"""What each round of each sequence was like, told to all who learn from it: statistics, targets, sequences.

proposal ── Z ──> verdict ── queue, draft steps ──> proposal
    what the hub drafts ahead meanwhile is of use to the one who asks, or in somebody's way
"""

from __future__ import annotations

from collections.abc import Sequence

from starspec.hub.ledger import Ledger
from starspec.hub.sequence import DraftRequest, DraftSequence, InVerification
from starspec.hub.target_records import TargetRecords
from starspec.speculation.tree import DraftTree
from starspec.stats import HubStats
from starspec.tracing import Tracer


class Rounds:
    """Follows the rounds of all sequences.

    Args:
        stats, ledger, targets: the hub's; they are told.
        trace: also gets every round, on a track for each target, if given: of a vLLM server there is no other.
    """

    def __init__(self, stats: HubStats, ledger: Ledger, targets: TargetRecords, trace: Tracer | None = None) -> None:
        self._stats = stats
        self._ledger = ledger
        self._records = targets
        self._trace = trace
        self._ahead: Sequence[DraftSequence] = ()  # sequences of the last draft step that ran ahead
        self._ahead_until_s = float("-inf")  # its end

    def add_verdict(self, sequence: DraftSequence, proposal: InVerification, num_tokens: int, now: float) -> None:
        """On this proposal, with so many tokens."""
        record = self._records[sequence.key.link_id]
        record.add_verdict(num_tokens, now - proposal.since_s)
        if proposal.budget.is_chain:
            sequence.pace.add_verdict(proposal.tree.num_draft_tokens, num_tokens - 1)
        if self._trace:
            tag = sequence.key.tag
            self._trace.slice(record.track, "verdict", proposal.since_s, now, tag=tag, emitted=num_tokens)

    def add_step_ahead(self, sequences: Sequence[DraftSequence], num_nodes: int, start_s: float, end_s: float) -> None:
        """One was drafted while nobody waited."""
        self._ahead, self._ahead_until_s = sequences, end_s
        self._ledger.add_ahead(start_s, end_s, len(sequences), num_nodes)

    def add_wait(self, asking: DraftSequence, arrived_s: float) -> None:
        """A request came then. If it waited for the end of a draft step ahead, the draft step's other sequences are
        charged.
        """
        waited_s = self._ahead_until_s - arrived_s
        for sequence in self._ahead if waited_s > 0.0 else ():
            if sequence is not asking:  # his own round shows it
                sequence.ahead_choice.charge(waited_s / len(self._ahead))

    def add_overtaken(self, sequence: DraftSequence, request: DraftRequest, now: float) -> None:
        """The target went on without the proposal that it had asked for: a round nevertheless."""
        began_s = request.arrived_s if request.began_s is None else request.began_s
        self._records[sequence.key.link_id].add_round(now - began_s)

    def add_proposal(self, sequence: DraftSequence, request: DraftRequest, tree: DraftTree, now: float) -> None:
        """It answers the request now, and ends the round that the last proposal began, or a verdict without one."""
        queue_s, service_s = request.times(now)
        record = self._records[sequence.key.link_id]
        self._ledger.add_proposal(now, sequence.key.link_id, tree.num_draft_tokens)
        if request.started_s is not None:
            self._ledger.add_service(queue_s, service_s, request.has_prefill)
            record.add_wait(queue_s)
        record.add_proposal(tree.num_draft_tokens)
        if self._trace:
            num_tokens, tag = tree.num_draft_tokens, sequence.key.tag
            self._trace.slice(
                record.track, "proposal", request.arrived_s, now, tag=tag, tokens=num_tokens, queue_ms=queue_s * 1e3
            )
        if not tree.num_draft_tokens:
            return
        began_s = request.arrived_s if request.overtakes else request.began_s
        if began_s is not None:
            record.add_round(now - began_s)
        if request.has_prefill:
            return
        # a draft step has a node at least; what else was there already was drafted for the proposal before, and waited
        # for
        num_spared = 0
        if sequence.num_kept_ahead:
            num_spared = max(0, min(max(tree.depths) - request.num_steps, sequence.num_kept_ahead))
        self._stats.saved_s += num_spared * self._stats.t_s.value
        # were there more targets, nothing would run ahead, and these draft steps would be waited for
        record.add_steps(request.num_steps + num_spared)
        if request.began_s is not None and sequence.ahead_choice.is_learning:
            num_emitted = sequence.pace.emitted(tree.num_draft_tokens) if request.budget.is_chain else 1.0
            sequence.ahead_choice.add_round(num_emitted, now - request.began_s)
