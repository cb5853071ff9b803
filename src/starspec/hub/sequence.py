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
from starspec.hub.round import DraftRound, EarlyProposal, MadeProposal, SkippedRequest, VerifiedProposal
from starspec.hub.tree_nodes import Children, Survivors
from starspec.policy.draft_batch import TagKey
from starspec.policy.run_ahead import AheadChoice
from starspec.speculation.budget import NO_DRAFT, DraftBudget, TopKSpec
from starspec.speculation.tree import DraftTree
from starspec.wire.messages import Open, Proposal, Verdict
from starspec.wire.session import TagSession, TagState

NUM_OUTCOMES = 4  # draft tokens per node where outcomes are prepared: a fifth would prepare for few more verdicts


class DraftSequence:
    """One tag's sequence: committed tokens, then the tree that grows from the last of them.

        committed            tree
        t0  t1  t2  t3   |   a   b   c   d   e
        └── K/V in the cache row ────┘   └───┴ drafted, not forwarded

    The tree stays after it has been proposed: the verdict tells how much of it, and of its K/V, remains true.

    Only methods of this class change its state. Drafters hand it rows and children, the hub hands it requests and
    committed tokens.

    Args:
        ahead_choice: decides from round to round whether this sequence is drafted ahead, and how.
    """

    def __init__(
        self,
        key: TagKey,
        opened: Open,
        session: TagSession,
        limits: DraftLimits,
        now: float,
        ahead_choice: AheadChoice,
    ) -> None:
        self.key: Final = key
        self.session: Final = session
        self.sampling: Final = opened.sampling
        self.is_plain_argmax: Final = opened.sampling.is_plain_argmax
        self.is_drawn: Final = opened.method == "rejection" and not opened.sampling.is_greedy  # children are drawn
        self.can_share: Final = limits.prefix_salt is not None  # prefixes with other sequences
        self._method = opened.method
        self._limits = limits
        self._committed = CommittedTokens(opened, limits, is_drawn=self.is_drawn)
        self._tree = GrowingTree(opened.sampling.end_token_ids, is_drawn=self.is_drawn)
        self._features = FeatureTail(limits.feature_window)
        self._round = DraftRound(key, ahead_choice)
        self._row: int | None = None
        self._is_prefilled = False
        self._is_exhausted = False  # the drafter has nothing to add to the tree
        self._is_rate_limited = False
        self._num_kept_ahead = 0  # nodes drafted ahead that the last verdict left true
        self._num_wasted = 0
        self._top_k_spec = NO_DRAFT.top_k_spec
        self._last_used_s = now

    # ---- committed tokens

    @property
    def token_ids(self) -> Sequence[int]:
        """The committed tokens."""
        return self._committed.token_ids

    @property
    def target_vocab_size(self) -> int:
        """Token ids below this are the target's, and may be proposed."""
        return self._limits.target_vocab_size

    @property
    def room(self) -> int:
        """Draft tokens that may follow the committed ones on one path, at most."""
        return self._committed.room

    @property
    def committed(self) -> CommittedTokens:
        """The committed tokens, with prefix names and counts. To be read only; see `commit`."""
        return self._committed

    def is_continued_by(self, message: Open) -> bool:
        """Whether a new Open only adds tokens to the committed ones."""
        if (message.sampling, message.method) != (self.sampling, self._method):
            return False
        return message.token_ids[: len(self.token_ids)] == self.token_ids

    def commit(self, token_ids: Sequence[int]) -> Survivors:
        """Append committed tokens. Does not touch the row.

        Returns: the part of the tree's K/V that is still true.
        """
        num_forwarded, proposal = len(self._tree.forwarded), self._round.in_verification
        survivors = self._tree.reroot(token_ids)
        first_ahead = num_forwarded if proposal is None else proposal.num_forwarded
        self._num_kept_ahead = sum(slot >= first_ahead for slot in (*survivors.path, *survivors.kept))
        self._num_wasted = max(0, num_forwarded - first_ahead - self._num_kept_ahead)
        self._committed.append(token_ids)
        return survivors

    @property
    def num_wasted(self) -> int:
        """Nodes drafted ahead that the last verdict ruled out."""
        return self._num_wasted

    # ---- the row and the features: for drafters

    @property
    def row(self) -> int | None:
        """The cache row that this sequence holds, if it holds one."""
        return self._row

    @property
    def is_prefilled(self) -> bool:
        """Whether the row has held, at some time, the K/V of all tokens that were committed then."""
        return self._is_prefilled

    @property
    def features(self) -> FeatureTail:
        """The target's hidden states, as far as they are known. To be read only; see `add_features`."""
        return self._features

    def hold_row(self, row: int) -> None:
        """The drafter has leased this row to the sequence."""
        self._row = row

    def drop_row(self) -> None:
        """The drafter has freed the row."""
        self._row = None
        self._is_prefilled = False

    def add_features(self, start: int, features: Tensor) -> None:
        """Add the target's features [T, F] of positions `start ..`."""
        self._features.add(start, features)

    # ---- the tree: for drafters

    @property
    def tree(self) -> GrowingTree:
        """The tree behind the committed tokens. To be read only."""
        return self._tree

    @property
    def top_k_spec(self) -> TopKSpec:
        """What the drafter is asked about each node."""
        return self._top_k_spec

    @property
    def is_asked_otherwise(self) -> bool:
        """Whether the tree has grown by another `top_k_spec` than the one that is asked for now."""
        is_asked = self._round.request is not None
        return is_asked and self._tree.is_rooted and self._tree.top_k_spec != self._top_k_spec

    @property
    def to_forward(self) -> list[int]:
        """Nodes that the owed proposal still needs expanded; [ROOT] at first, [] when nothing is missing."""
        request = self._round.request
        return [] if self._is_exhausted or request is None else self._tree.to_forward(request.budget)

    def expand(self, node: int, children: Children) -> None:
        """Make the children of a node known. Raises: OurBug if they are known already."""
        self._tree.expand(node, children, self._top_k_spec)

    def become_chain(self, token_ids: Sequence[int]) -> None:
        """Replace the tree by a chain that is all the drafter has to say."""
        self._tree.become_chain(token_ids)
        self._is_exhausted = True

    def forget_tree(self) -> None:
        """Start again from a root that is not expanded."""
        self._tree.clear()

    def to_prepare(self, num_nodes: int) -> list[int]:
        """At most so many nodes that the next proposal may need; [] if no proposal is in verification."""
        proposal = self._round.in_verification
        if proposal is None or not self._tree.is_rooted or not self._round.runs_ahead:
            return []
        return self._tree.to_prepare(proposal.budget, proposal.nodes, num_nodes)

    def _spec_for(self, budget: DraftBudget) -> TopKSpec:
        """Wider than the budget where outcomes are prepared; but drawn children are as many as the budget says."""
        if self._round.ahead_choice.mode != "outcomes" or self.is_drawn:
            return budget.top_k_spec
        return TopKSpec(max(budget.top_k, NUM_OUTCOMES))

    # ---- the proposal that is owed

    @property
    def round(self) -> DraftRound:
        """The request that is owed, or the proposal in verification. To be read only."""
        return self._round

    @property
    def is_rate_limited(self) -> bool:
        """Whether the target's rate limit leaves the last request without draft tokens."""
        return self._is_rate_limited

    @property
    def last_used_s(self) -> float:
        """When the last request came or the last proposal was made."""
        return self._last_used_s

    @property
    def num_ahead(self) -> int:
        """Nodes forwarded since the proposal in verification was made."""
        proposal = self._round.in_verification
        return 0 if proposal is None else max(0, len(self._tree.forwarded) - proposal.num_forwarded)

    @property
    def num_known(self) -> int:
        """Tokens of the owed chain that are known already; 0 if a tree is owed, or nothing."""
        budget = self._round.budget
        return self._tree.num_known(budget) if budget.is_chain else 0

    def judge(self, token_ids: Sequence[int], now: float) -> VerifiedProposal | SkippedRequest | None:
        """Find out what a verdict answers. Call before `commit`; see `DraftRound.judge`."""
        return self._round.judge(token_ids, now)

    def ask(self, budget: DraftBudget, now: float, *, is_rate_limited: bool = False, is_urgent: bool = False) -> None:
        """Owe a proposal from now on, or none. Replaces the request before.

        Args:
            is_rate_limited: the proposal is to have no draft tokens.
            is_urgent: the target misses its latency objective.
        """
        skipped = self._round.request
        max_draft_tokens = 0 if is_rate_limited else self._limits.max_draft_tokens
        fitting = budget.limited(num_draft_tokens=max_draft_tokens, num_steps=self.room)
        self._round.ask(fitting if budget.num_draft_tokens else None, now, is_urgent=is_urgent)
        request = self._round.request
        if request is not None:
            self._top_k_spec = self._spec_for(fitting)
            if skipped is not None and not self.is_asked_otherwise:
                request.keep_steps(skipped, self.num_known)
        self._is_rate_limited, self._is_exhausted, self._last_used_s = is_rate_limited, False, now

    def start_step(self, now: float, *, has_prefill: bool) -> None:
        """A draft step starts now that grows this sequence."""
        self._round.start_step(now, has_prefill=has_prefill)

    def end_step(self) -> None:
        """That draft step has ended."""
        self._is_prefilled |= self._tree.is_rooted

    def is_ready(self, now: float, step_s: float, return_s: float | None, running_s: float = 0.0) -> bool:
        """Whether to hand the owed proposal over now.

        A proposal is ready when it is complete. If the sequence is drafted ahead, the known beginning of a chain is
        ready too (AMUSD, Algorithm 1), unless it is worth waiting for the next token.

        Args:
            step_s: seconds of a draft step (t_s).
            return_s: the target's seconds from a proposal to its verdict (Z); None = not known.
            running_s: seconds since the start of a running draft step that adds to this sequence's tree; 0 = none is.
        """
        if self._round.request is None:
            return False
        if not self.to_forward:
            return True
        return self._round.runs_ahead and self._round.pays_in_part(self.num_known, now, step_s, return_s, running_s)

    def proposal(self) -> DraftTree:
        """The best nodes of the tree, for the owed proposal."""
        return self._tree.best(self._round.budget)

    def mark_proposed(self, proposed: DraftTree, now: float) -> MadeProposal:
        """The owed proposal was made at `now`. Raises: OurBug if none is owed."""
        self._last_used_s = now
        nodes, num_forwarded = self._tree.proposed(self._round.budget), len(self._tree.forwarded)
        return self._round.mark_proposed(proposed, nodes, num_forwarded, self._num_kept_ahead, now)

    # ---- early answers (ADR 22)

    def answer_early(
        self, verdict: Verdict, arrived_s: float, now: float, step_s: float, return_s: float | None, running_s: float
    ) -> EarlyProposal | None:
        """Answer a verdict that the hub will handle later, if the tree already has the next proposal.

        The sequence must not change while a draft step runs ahead with it, so a copy computes the answer.

        Args:
            arrived_s: when the verdict came.
            step_s, return_s, running_s: as for `is_ready`.
        Returns: None if the answer has to wait for the end of the draft step, or if there is an early answer already.
        Effects: `round.early_proposal`.
        """
        if self._round.early_proposal is not None:
            return None
        if not (self.session.is_followed_by(verdict) and self._tree.knows_after(verdict.token_ids)):
            return None
        after = self.after_verdict(verdict, arrived_s)
        request = after._round.request
        if request is None or after.is_asked_otherwise or not after.is_ready(now, step_s, return_s, running_s):
            return None
        proposal = Proposal.of(after.proposal(), verdict.tag, verdict.epoch, len(after.token_ids), *request.times(now))
        early = EarlyProposal(proposal, now, len(after.tree.forwarded))
        self._round.answer_early(early)
        return early

    def after_verdict(self, verdict: Verdict, now: float) -> DraftSequence:
        """A copy of this sequence as it will be after the verdict. Nothing can be drafted for the copy.

        Some drafters clear the tree at each verdict; the copy keeps it. This does no harm: such a drafter never runs
        ahead.
        """
        after = copy(self)
        after._round, after._tree, after._committed = copy(self._round), self._tree.copy(), self._committed.copied()
        after.commit(verdict.token_ids)
        after.ask(verdict.budget, now)
        return after

    def check_integrity(self) -> None:
        """Raises: OurBug unless tokens, tree, request and protocol state agree."""
        self._tree.check_integrity()
        if self.session.prefix_len != len(self._committed):
            raise OurBug(f"{self.key} holds {len(self._committed)} tokens, its tag has {self.session.prefix_len}")
        early, request = self._round.early_proposal, self._round.request
        if early is not None and early.proposal.epoch != self.session.next_epoch:
            raise OurBug(f"{self.key} answered epoch {early.proposal.epoch} early, after {self.session.epoch}")
        if (request is not None) != (self.session.state is TagState.DRAFTING):
            raise OurBug(f"{self.key} owes {request} while its tag is {self.session.state}")
