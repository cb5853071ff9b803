"""One sequence's round: a proposal is requested, made and in verification until its verdict comes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from starspec.errors import OurBug
from starspec.policy.draft_batch import SPARED_STEPS, TagKey
from starspec.policy.run_ahead import AheadChoice
from starspec.policy.send_or_wait import SendOrWait
from starspec.speculation.budget import NO_DRAFT, DraftBudget
from starspec.speculation.tree import ROOT, DraftTree
from starspec.wire.messages import Proposal


@dataclass(slots=True)
class ProposalRequest:
    """A proposal that the hub owes."""

    budget: DraftBudget
    arrived_s: float
    began_s: float | None = None  # start of its round: when the proposal before was made; None if none was verified
    follows_skipped: bool = False  # the target skipped the request before this one: the round begins with this one
    started_s: float | None = None  # start of its first draft step
    has_prefill: bool = False  # one of its draft steps also prefilled a prompt, its own or another one
    num_steps: int = 0  # draft steps so far
    num_since_prefill: int = 0  # of these, after the last one with such a prefill
    is_urgent: bool = False  # the target misses its latency objective

    def keep_steps(self, skipped: ProposalRequest, num_known: int) -> None:
        """Count the draft steps of a skipped request whose tokens are of use to this one."""
        self.num_steps = min(skipped.num_steps, num_known)

    def start_step(self, now: float, *, has_prefill: bool) -> None:
        """Count a draft step for this request that starts now."""
        self.started_s = now if self.started_s is None else self.started_s
        self.has_prefill |= has_prefill
        self.num_steps += 1
        self.num_since_prefill = 0 if has_prefill else self.num_since_prefill + 1

    @property
    def is_delayed(self) -> bool:
        """Whether a prompt has delayed it, and another one must not do so yet."""
        return self.has_prefill and self.num_since_prefill < SPARED_STEPS

    def times(self, now: float) -> tuple[float, float]:
        """Seconds in the queue and seconds of service, if the proposal is made now."""
        started_s = now if self.started_s is None else self.started_s
        return max(0.0, started_s - self.arrived_s), max(0.0, now - started_s)


class EarlyProposal(NamedTuple):
    """A proposal that was sent before the hub handled the verdict that it answers (ADR 22)."""

    proposal: Proposal
    made_s: float
    num_forwarded: int  # nodes of the tree below its root, then


class MadeProposal(NamedTuple):
    """A proposal that was made, with the times and draft steps behind it."""

    key: TagKey
    num_draft_tokens: int
    arrived_s: float  # the request
    made_s: float
    queue_s: float
    service_s: float
    has_service: bool  # at least one draft step was run for it
    has_prefill: bool  # one of those also prefilled a prompt
    num_steps: int
    num_spared: int  # further draft steps that it would have needed without running ahead
    round_s: float | None  # since the proposal before, or since the target skipped one; None: no round ends with it


class ProposalInVerification(NamedTuple):
    """A proposal whose verdict has not come yet."""

    budget: DraftBudget
    tree: DraftTree
    nodes: Sequence[int]  # the nodes of `tree`, as the growing tree numbers them
    num_forwarded: int  # nodes that were forwarded when it was made; nodes forwarded later were drafted ahead
    since_s: float

    def is_judged_by(self, token_ids: Sequence[int], arrived_s: float) -> bool:
        """Whether these committed tokens can be the verdict on this proposal.

        A verdict commits accepted draft tokens and then one token that the proposal does not have there. Other tokens
        mean that the target decoded without this proposal: it came too late, or the round had no drafts. vLLM also
        reports several rounds without drafts at once. One such round that commits a single unproposed token cannot be
        told from a proposal that was rejected at its first token.
        """
        if arrived_s < self.since_s:
            return False
        *accepted, last = token_ids
        node = ROOT
        for token_id in accepted:
            child = self.tree.children.get((node, token_id))
            if child is None:
                return False
            node = child
        return self.tree.num_draft_tokens > 0 and (node, last) not in self.tree.children


class VerifiedProposal(NamedTuple):
    """The verdict was on the proposal in verification."""

    num_tokens: int  # committed by the verdict
    proposed_s: float


class SkippedRequest(NamedTuple):
    """The target went on without the proposal that it had requested."""

    began_s: float  # start of that round


class DraftRound:
    """Where one sequence is in its round. Only methods of this class change it.

        ask ──> request ── mark_proposed ──> in_verification ── judge ──> ask ...

    Args:
        ahead_choice: decides from round to round whether the sequence is drafted ahead, and how.
    """

    def __init__(self, key: TagKey, ahead_choice: AheadChoice) -> None:
        self.ahead_choice: Final = ahead_choice
        self._key = key
        self._send_or_wait = SendOrWait()
        self.request: ProposalRequest | None = None
        self.in_verification: ProposalInVerification | None = None
        self.early_proposal: EarlyProposal | None = None
        self._verified_since_s: float | None = None  # when the proposal was made that the last verdict was on
        self._is_skipping = False  # the last verdict skipped a request

    @property
    def budget(self) -> DraftBudget:
        """Budget of the owed proposal, within the drafter's limits; `NO_DRAFT` if none is owed."""
        return NO_DRAFT if self.request is None else self.request.budget

    @property
    def has_started(self) -> bool:
        """Whether at least one draft step was run for the owed proposal."""
        return self.request is not None and self.request.started_s is not None

    @property
    def is_urgent(self) -> bool:
        """Whether the target waits for a proposal and misses its latency objective."""
        return self.request is not None and self.request.is_urgent

    @property
    def runs_ahead(self) -> bool:
        """Whether the sequence is drafted ahead in this round."""
        return self.ahead_choice.mode != "off"

    def is_asking(self, since_s: float) -> bool:
        """Whether the target wants drafts: a proposal is owed, or was made since then and is in verification."""
        proposal = self.in_verification
        return self.request is not None or (proposal is not None and proposal.since_s >= since_s)

    def ask(self, budget: DraftBudget | None, now: float, *, is_urgent: bool) -> None:
        """Owe a proposal from now on; None: owe nothing. Replaces the request before."""
        self.request = None
        if budget is not None:
            self.request = ProposalRequest(budget, now, self._verified_since_s, self._is_skipping, is_urgent=is_urgent)
        self.in_verification, self._verified_since_s, self._is_skipping = None, None, False

    def pays_in_part(self, num_known: int, now: float, step_s: float, return_s: float | None, running_s: float) -> bool:
        """Whether to send the first `num_known` tokens of the owed chain now, instead of waiting for more of them.

        Only for a sequence that runs ahead. Args: as for `DraftSequence.pays_in_part`.
        """
        if self.request is None:
            return False
        away_s = None if return_s is None else return_s + now - self.request.arrived_s
        return self._send_or_wait.pays_to_send(num_known, step_s, running_s, away_s, self.ahead_choice.mode)

    def charge(self, seconds: float) -> None:
        """Another target waited so long for a draft step that ran ahead for this sequence."""
        self.ahead_choice.charge(seconds)

    def answer_early(self, early: EarlyProposal) -> None:
        """Note that this proposal was sent before its verdict was handled."""
        self.early_proposal = early

    def mark_proposed(
        self, proposed: DraftTree, nodes: Sequence[int], num_forwarded: int, num_kept_ahead: int, now: float
    ) -> MadeProposal:
        """The owed proposal was made at `now`, and is in verification from then on.

        Args:
            nodes: what the sequence's tree would propose; `proposed` is the beginning of it.
            num_forwarded: nodes of the sequence's tree that were forwarded.
            num_kept_ahead: nodes that were forwarded ahead of the last verdict and are still true.
        Raises: OurBug if no proposal is owed.
        Effects: `ahead_choice` learns from the round that ends with this proposal.
        """
        request, early = self.request, self.early_proposal
        if request is None:
            raise OurBug(f"{self._key} is owed no proposal")
        made = self._made(request, proposed, num_kept_ahead, now)
        self._learn_from(request, made)
        if early is not None:  # the nodes that came after the early answer were drafted ahead
            num_forwarded, nodes = early.num_forwarded, nodes[: proposed.num_draft_tokens]
        self.in_verification = ProposalInVerification(request.budget, proposed, nodes, num_forwarded, now)
        self.request = self.early_proposal = None
        return made

    def judge(self, token_ids: Sequence[int], now: float) -> VerifiedProposal | SkippedRequest | None:
        """Find out what a verdict answers.

        Returns: None if it answers no proposal in verification and skips no request.
        Effects: the acceptance of chains is learnt from a verdict on a chain.
        """
        self._is_skipping = self.request is not None
        proposal = self.in_verification
        if proposal is not None and proposal.is_judged_by(token_ids, now):
            self._verified_since_s = proposal.since_s
            if proposal.budget.is_chain:
                self._send_or_wait.add_verdict(proposal.tree.num_draft_tokens, len(token_ids) - 1)
            return VerifiedProposal(len(token_ids), proposal.since_s)
        if self.request is not None:
            return SkippedRequest(self.request.arrived_s if self.request.began_s is None else self.request.began_s)
        return None

    def _made(self, request: ProposalRequest, proposed: DraftTree, num_kept_ahead: int, now: float) -> MadeProposal:
        began_s = request.arrived_s if request.follows_skipped else request.began_s
        num_spared = 0
        if num_kept_ahead and proposed.num_draft_tokens:  # each draft step expands at least one node
            num_spared = max(0, min(max(proposed.depths) - request.num_steps, num_kept_ahead))
        queue_s, service_s = request.times(now)
        return MadeProposal(
            self._key,
            proposed.num_draft_tokens,
            request.arrived_s,
            now,
            queue_s,
            service_s,
            has_service=request.started_s is not None,
            has_prefill=request.has_prefill,
            num_steps=request.num_steps,
            num_spared=num_spared,
            round_s=None if began_s is None or not proposed.num_draft_tokens else now - began_s,
        )

    def _learn_from(self, request: ProposalRequest, made: MadeProposal) -> None:
        if request.began_s is None or not made.num_draft_tokens or made.has_prefill:
            return
        if self.ahead_choice.is_learning:
            num_emitted = self._send_or_wait.emitted(made.num_draft_tokens) if request.budget.is_chain else 1.0
            self.ahead_choice.add_round(num_emitted, made.made_s - request.began_s)
