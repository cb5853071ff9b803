"""One tag at the hub: the tokens that its target committed, the tree behind them, and the proposal that is owed."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Final

from torch import Tensor

from starspec.cache.features import FeatureTail
from starspec.errors import OurBug
from starspec.hub.committed import CommittedTokens, DraftLimits
from starspec.hub.growing_tree import GrowingTree
from starspec.hub.law_timer import LawTimer
from starspec.hub.round import DraftRound, EarlyProposal, MadeProposal, SkippedRequest, VerifiedProposal
from starspec.hub.tree_nodes import Children, Survivors
from starspec.policy.draft_batch import TagKey
from starspec.policy.run_ahead import AheadChoice
from starspec.speculation.acceptance import RULES
from starspec.speculation.budget import NO_DRAFT, DraftBudget
from starspec.speculation.tree import DraftTree
from starspec.wire.messages import Open, Proposal, Verdict
from starspec.wire.session import TagSession, TagState


class DraftSequence:
    """One tag's sequence: committed tokens, then the tree that grows from the last of them.

        committed            tree
        t0  t1  t2  t3   |   a   b   c   d   e
        └── K/V in the cache row ────┘   └───┴ drafted, not forwarded

    The tree stays after it has been proposed: the verdict tells how much of it, and of its K/V, remains true.

    Only methods of this class change its state; others read it. Drafters hand it rows and children, the hub hands it
    requests and committed tokens. One part is not its own: the hub moves `session`, which it also keeps for tags
    without a sequence.

    Args:
        ahead_choice: decides from round to round whether this sequence is drafted ahead, and how.
        law_timer: of its target.
    """

    def __init__(
        self,
        key: TagKey,
        opened: Open,
        session: TagSession,
        limits: DraftLimits,
        now: float,
        ahead_choice: AheadChoice,
        law_timer: LawTimer,
    ) -> None:
        self.key: Final = key
        self.session: Final = session
        self.sampling: Final = opened.sampling
        self.is_plain_argmax: Final = opened.sampling.is_plain_argmax
        self.is_drawn: Final = RULES[opened.method].needs_drawn and not opened.sampling.is_greedy  # children are drawn
        self.law_timer: Final = law_timer
        self.can_share: Final = limits.prefix_salt is not None  # prefixes with other sequences
        self.target_vocab_size: Final = limits.target_vocab_size  # token ids below it may be proposed
        self.committed = CommittedTokens(opened, limits, is_drawn=self.is_drawn)
        self.token_ids: Sequence[int] = self.committed.token_ids
        self.tree = GrowingTree(opened.sampling.end_token_ids, is_drawn=self.is_drawn)  # behind the committed tokens
        self.features = FeatureTail(limits.feature_window)  # the target's hidden states, as far as they are known
        self.round = DraftRound(key, ahead_choice)  # the request that is owed, or the proposal in verification
        self.row: int | None = None  # of the cache
        self.is_prefilled = False  # the row has held the K/V of all tokens that were committed then
        self.is_rate_limited = False  # the target's rate limit leaves the last request without draft tokens
        self.num_wasted = 0  # nodes drafted ahead that the last verdict ruled out
        self.top_k_spec = NO_DRAFT.top_k_spec  # what the drafter is asked about each node
        self.last_used_s = now  # when the last request came or the last proposal was made
        self._method = opened.method
        self._limits = limits
        self._is_exhausted = False  # the drafter has nothing to add to the tree
        self._num_kept_ahead = 0  # nodes drafted ahead that the last verdict left true

    # ---- committed tokens

    @property
    def room(self) -> int:
        """Draft tokens that may follow the committed ones on one path, at most."""
        return self.committed.room

    def is_continued_by(self, message: Open) -> bool:
        """Whether a new Open only adds tokens to the committed ones."""
        if (message.sampling, message.method) != (self.sampling, self._method):
            return False
        return message.token_ids[: len(self.token_ids)] == self.token_ids

    def commit(self, token_ids: Sequence[int]) -> Survivors:
        """Append committed tokens. Does not touch the row.

        Returns: the part of the tree's K/V that is still true.
        """
        num_forwarded, proposal = len(self.tree.forwarded), self.round.in_verification
        survivors = self.tree.reroot(token_ids)
        first_ahead = num_forwarded if proposal is None else proposal.num_forwarded
        self._num_kept_ahead = sum(slot >= first_ahead for slot in (*survivors.path, *survivors.kept))
        self.num_wasted = max(0, num_forwarded - first_ahead - self._num_kept_ahead)
        self.committed.append(token_ids)
        return survivors

    # ---- the row and the features: for drafters

    def hold_row(self, row: int) -> None:
        """The drafter has leased this row to the sequence."""
        self.row = row

    def drop_row(self) -> None:
        """The drafter has freed the row."""
        self.row = None
        self.is_prefilled = False

    def add_features(self, start: int, features: Tensor) -> None:
        """Add the target's features [T, F] of positions `start ..`."""
        self.features.add(start, features)

    # ---- the tree: for drafters

    @property
    def is_asked_otherwise(self) -> bool:
        """Whether the tree has grown by another `top_k_spec` than the one that is asked for now."""
        is_asked = self.round.request is not None
        return is_asked and self.tree.is_rooted and self.tree.top_k_spec != self.top_k_spec

    @property
    def to_forward(self) -> list[int]:
        """Nodes that the owed proposal still needs expanded; [ROOT] at first, [] when nothing is missing."""
        request = self.round.request
        return [] if self._is_exhausted or request is None else self.tree.to_forward(request.budget)

    def expand(self, node: int, children: Children) -> None:
        """Make the children of a node known. Raises: OurBug if they are known already."""
        self.tree.expand(node, children, self.top_k_spec)

    def become_chain(self, token_ids: Sequence[int]) -> None:
        """Replace the tree by a chain that is all the drafter has to say."""
        self.tree.become_chain(token_ids)
        self._is_exhausted = True

    def forget_tree(self) -> None:
        """Start again from a root that is not expanded."""
        self.tree.clear()

    def to_prepare(self, num_nodes: int) -> list[int]:
        """At most so many nodes that the next proposal may need; [] if no proposal is in verification."""
        proposal = self.round.in_verification
        if proposal is None or not self.tree.is_rooted or not self.round.runs_ahead:
            return []
        return self.tree.to_prepare(proposal.budget, proposal.nodes, num_nodes)

    # ---- the proposal that is owed

    @property
    def num_ahead(self) -> int:
        """Nodes forwarded since the proposal in verification was made."""
        proposal = self.round.in_verification
        return 0 if proposal is None else max(0, len(self.tree.forwarded) - proposal.num_forwarded)

    @property
    def num_known(self) -> int:
        """Tokens of the owed chain that are known already; 0 if a tree is owed, or nothing."""
        budget = self.round.budget
        return self.tree.num_known(budget) if budget.is_chain else 0

    def judge(self, token_ids: Sequence[int], now: float) -> VerifiedProposal | SkippedRequest | None:
        """Find out what a verdict answers. Call before `commit`; see `DraftRound.judge`."""
        return self.round.judge(token_ids, now)

    def ask(self, budget: DraftBudget, now: float, *, is_rate_limited: bool = False, is_urgent: bool = False) -> None:
        """Owe a proposal from now on, or none. Replaces the request before.

        Args:
            is_rate_limited: the proposal is to have no draft tokens.
            is_urgent: the target misses its latency objective.
        """
        skipped = self.round.request
        max_draft_tokens = 0 if is_rate_limited else self._limits.max_draft_tokens
        fitting = budget.limited(num_draft_tokens=max_draft_tokens, num_steps=self.room)
        self.round.ask(fitting if budget.num_draft_tokens else None, now, is_urgent=is_urgent)
        request = self.round.request
        if request is not None:
            self.top_k_spec = self.round.ahead_choice.top_k_spec(fitting, is_drawn=self.is_drawn)
            if skipped is not None and not self.is_asked_otherwise:
                request.keep_steps(skipped, self.num_known)
        self.is_rate_limited, self._is_exhausted, self.last_used_s = is_rate_limited, False, now

    def start_step(self, now: float, *, has_prefill: bool) -> None:
        """A draft step that grows this sequence starts now.

        Args:
            has_prefill: whether it prefills a prompt, of this sequence or of another one.
        """
        if self.round.request is not None:
            self.round.request.start_step(now, has_prefill=has_prefill)

    def end_step(self) -> None:
        """That draft step has ended."""
        self.is_prefilled = self.is_prefilled or self.tree.is_rooted

    @property
    def is_complete(self) -> bool:
        """Whether the owed proposal is complete."""
        return self.round.request is not None and not self.to_forward

    def pays_in_part(self, now: float, step_s: float, return_s: float | None, running_s: float = 0.0) -> bool:
        """Whether to send the known beginning of the owed chain now, instead of waiting for more (AMUSD, Algorithm 1).

        Only a sequence that is drafted ahead does so.

        Args:
            step_s: seconds of a draft step (t_s).
            return_s: the target's seconds from a proposal to its verdict (Z); None = not known.
            running_s: seconds since the start of a running draft step that adds to this sequence's tree; 0 = none is.
        """
        return self.round.runs_ahead and self.round.pays_in_part(self.num_known, now, step_s, return_s, running_s)

    def proposal(self) -> DraftTree:
        """The best nodes of the tree, for the owed proposal."""
        return self.tree.best(self.round.budget)

    def mark_proposed(self, proposal: Proposal, proposed: DraftTree, now: float) -> MadeProposal:
        """The owed proposal was made at `now`, and leaves now if it did not leave early.

        Args:
            proposed: the tree in it.
        Raises: LocalProtocolError or OurBug if no such proposal is owed.
        """
        self.session.send(proposal)
        self.last_used_s = now
        nodes, num_forwarded = self.tree.proposed(self.round.budget), len(self.tree.forwarded)
        return self.round.mark_proposed(proposed, nodes, num_forwarded, self._num_kept_ahead, now)

    def charge(self, seconds: float) -> None:
        """As `DraftRound.charge`."""
        self.round.charge(seconds)

    # ---- early answers (ADR 22)

    def answer_early(
        self, verdict: Verdict, arrived_s: float, now: float, step_s: float, return_s: float | None, running_s: float
    ) -> EarlyProposal | None:
        """Answer a verdict that the hub will handle later, if the tree already has the next proposal.

        The sequence must not change while a draft step runs ahead with it, so a copy computes the answer.

        Args:
            arrived_s: when the verdict came.
            step_s, return_s, running_s: as for `pays_in_part`.
        Returns: None if the answer has to wait for the end of the draft step, or if there is an early answer already.
        Effects: `round.early_proposal`.
        """
        if self.round.early_proposal is not None:
            return None
        if not (self.session.is_followed_by(verdict) and self.tree.knows_after(verdict.token_ids)):
            return None
        after = self.after_verdict(verdict, arrived_s)
        request = after.round.request
        if request is None or after.is_asked_otherwise:
            return None
        if not after.is_complete and not after.pays_in_part(now, step_s, return_s, running_s):
            return None
        proposal = Proposal.of(after.proposal(), verdict.tag, verdict.epoch, len(after.token_ids), *request.times(now))
        early = EarlyProposal(proposal, now, len(after.tree.forwarded))
        self.round.answer_early(early)
        return early

    def after_verdict(self, verdict: Verdict, now: float) -> DraftSequence:
        """A copy of this sequence as it will be after the verdict. Nothing can be drafted for the copy.

        Some drafters clear the tree at each verdict; the copy keeps it. This does no harm: such a drafter never runs
        ahead.
        """
        after = copy(self)
        after.round, after.tree, after.committed = copy(self.round), self.tree.copy(), self.committed.copied()
        after.token_ids = after.committed.token_ids
        after.commit(verdict.token_ids)
        after.ask(verdict.budget, now)
        return after

    def check_integrity(self) -> None:
        """Raises: OurBug unless tokens, tree, request and protocol state agree."""
        self.tree.check_integrity()
        if self.session.prefix_len != len(self.committed):
            raise OurBug(f"{self.key} holds {len(self.committed)} tokens, its tag has {self.session.prefix_len}")
        early, request = self.round.early_proposal, self.round.request
        if early is not None and early.proposal.epoch != self.session.next_epoch:
            raise OurBug(f"{self.key} answered epoch {early.proposal.epoch} early, after {self.session.epoch}")
        if (request is not None) != (self.session.state is TagState.DRAFTING):
            raise OurBug(f"{self.key} owes {request} while its tag is {self.session.state}")
