"""One tag at the hub: the tokens that its target committed, the tree behind them, and what is owed."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import NamedTuple

from starspec.cache.features import FeatureTail
from starspec.cache.prefixes import PREFIX_BLOCK, PrefixName, PrefixNames
from starspec.errors import OurBug
from starspec.hub.growing_tree import GrowingTree, Survivors
from starspec.policy.draft_batch import TagKey
from starspec.policy.pace import Pace
from starspec.policy.run_ahead import AheadChoice
from starspec.sampling.counts import TokenCounts
from starspec.speculation.budget import NO_DRAFT, DraftBudget, TopKSpec
from starspec.speculation.propose_rejection import dice_after
from starspec.speculation.tree import ROOT, DraftTree
from starspec.wire.messages import Open, Proposal, Verdict
from starspec.wire.session import TagSession, TagState

NEARLY = 0.5  # of a draft step: what has run for longer is waited for (benchmarks/async/chain_rule.py)
NUM_OUTCOMES = 4  # guesses of each token, to prepare outcomes: with a fifth, so few verdicts more are prepared for


@dataclass(frozen=True, slots=True)
class DraftLimits:
    """What a drafter can take: sequences beyond it are answered with fewer draft tokens, at last with none."""

    max_len: int  # tokens of a sequence, drafts included
    vocab_size: int  # token ids below this can be read
    max_draft_tokens: int  # of one proposal
    target_vocab_size: int  # token ids below this are the target's
    feature_window: int = 0  # positions whose features are kept
    prefix_salt: bytes | None = None  # whoever has the same shares what is read; None = nobody does


@dataclass(slots=True)
class DraftRequest:
    """A proposal that is owed."""

    budget: DraftBudget
    arrived_s: float
    began_s: float | None = None  # its round: when the proposal before was made; None if there was none to verify
    overtakes: bool = False  # the proposal before was asked for and not waited for: this round begins with asking
    started_s: float | None = None  # start of its first draft step
    has_prefill: bool = False  # a draft step of its service had a prompt in it, its own or another's
    num_steps: int = 0  # of its service
    is_urgent: bool = False  # the target is behind its latency objective

    def times(self, now: float) -> tuple[float, float]:
        """Seconds in the queue and seconds of service, if the proposal is made now."""
        started_s = now if self.started_s is None else self.started_s
        return max(0.0, started_s - self.arrived_s), max(0.0, now - started_s)


class InVerification(NamedTuple):
    """A proposal whose verdict is to come."""

    budget: DraftBudget
    tree: DraftTree
    nodes: Sequence[int]  # the same in the growing tree
    num_forwarded: int  # nodes, when it was made; whatever is forwarded after that runs ahead
    since_s: float

    def is_judged_by(self, token_ids: Sequence[int], arrived_s: float) -> bool:
        """Whether it can have led to this verdict: guesses that were right, then a token that was not guessed there.

        A target may have gone on without it: when it came too late, or in a round without drafts on purpose. And one
        that asks for nothing for some rounds, as vLLM where drafts are refused, tells of all of them later. Of such
        rounds, one whose only token was not guessed still passes for a proposal that was wrong from the start.
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


class EarlyProposal(NamedTuple):
    """A proposal that was handed over before the verdict that it answers is taken in."""

    proposal: Proposal
    made_s: float
    num_forwarded: int  # nodes of the tree below its root, then


class DraftSequence:
    """One tag's sequence: committed tokens, then the tree that grows from the last of them.

        committed            tree
        t0  t1  t2  t3   |   a   b   c   d   e
        └── K/V in the cache row ────┘   └───┴ guessed, not forwarded

    The tree stays after it has been proposed: the verdict tells how much of it, and of its K/V, remains true.
    """

    def __init__(
        self,
        key: TagKey,
        opened: Open,
        session: TagSession,
        limits: DraftLimits,
        now: float,
        ahead: AheadChoice,
    ) -> None:
        self.key = key
        self.session = session
        self.sampling = opened.sampling
        self._method = opened.method
        self.is_plain_argmax = opened.sampling.is_plain_argmax
        self.is_drawn = opened.method == "rejection" and not opened.sampling.is_greedy  # children are, and not guessed
        self.token_ids = list(opened.token_ids)
        self.tree = GrowingTree(opened.sampling.end_token_ids, is_drawn=self.is_drawn)
        self.features = FeatureTail(limits.feature_window)
        self.row: int | None = None
        self.is_read = False  # its row has held, at some time, all that had been committed
        self.request: DraftRequest | None = None
        self.in_verification: InVerification | None = None
        self.early_proposal: EarlyProposal | None = None
        self.pace = Pace()
        self.ahead_choice = ahead
        self.is_rationed = False  # the target has had its share: the next proposal is to be empty
        self.num_kept_ahead = 0  # nodes forwarded ahead that the last verdict left true
        self.num_wasted = 0  # nodes forwarded ahead that the last verdict ruled out, or that went with the row
        self.top_k_spec = NO_DRAFT.top_k_spec  # what is asked about each node
        self.last_used_s = now
        self.is_exhausted = False  # the drafter knows nothing to add to the tree
        self._limits = limits
        self.can_share = limits.prefix_salt is not None  # what is read of it, or of others
        self._prefixes = PrefixNames(limits.prefix_salt)
        self._is_readable = max(opened.token_ids) < limits.vocab_size
        self._counts: TokenCounts | None = None
        self._dice = dice_after(opened.sampling.seed, self.token_ids[opened.prompt_len :]) if self.is_drawn else 0
        if opened.sampling.needs_counts or opened.sampling.min_tokens:
            prompt_len = opened.prompt_len
            self._counts = TokenCounts(self.token_ids[:prompt_len], self.token_ids[prompt_len:])

    @property
    def target_vocab_size(self) -> int:
        """Token ids below this are the target's, and may be proposed."""
        return self._limits.target_vocab_size

    @property
    def room(self) -> int:
        """Draft tokens that may follow the committed ones on one path, at most."""
        if not self._is_readable:
            return 0
        return max(0, min(self._limits.max_len - len(self.token_ids), self._limits.max_draft_tokens))

    @property
    def is_begun(self) -> bool:
        """Whether a draft step was drafted for what it waits for."""
        return self.request is not None and self.request.started_s is not None

    @property
    def is_urgent(self) -> bool:
        """Whether it waits for a target that is behind its latency objective."""
        return self.request is not None and self.request.is_urgent

    @property
    def prefix_names(self) -> Sequence[PrefixName]:
        """Names of what may be shared of the committed tokens, shortest first; none if nothing may."""
        return self._prefixes.of(self.token_ids)

    @property
    def num_prefix_blocks(self) -> int:
        """Of these, blocks that may be taken over: not the one that ends with the last token, which must be read."""
        return min(len(self.prefix_names), (len(self.token_ids) - 1) // PREFIX_BLOCK)

    def next_block(self, num_read: int) -> PrefixName | None:
        """The first block that is not held after so many tokens, if others may take it over once it is read."""
        num_blocks = num_read // PREFIX_BLOCK
        return self.prefix_names[num_blocks] if num_blocks < self.num_prefix_blocks else None

    @property
    def budget(self) -> DraftBudget:
        """Of the proposal that is owed, as far as this drafter can go; nothing if none is owed."""
        return NO_DRAFT if self.request is None else self.request.budget

    @property
    def to_forward(self) -> list[int]:
        """Nodes that the proposal that is owed misses; [ROOT] at first, [] when nothing is missing."""
        return [] if self.is_exhausted or self.request is None else self.tree.to_forward(self.request.budget)

    @property
    def is_complete(self) -> bool:
        """Whether the tree is as large as asked for, or as it can get."""
        return not self.to_forward

    @property
    def num_ahead(self) -> int:
        """Nodes forwarded since the proposal that is in verification was made."""
        proposal = self.in_verification
        return 0 if proposal is None else max(0, len(self.tree.forwarded) - proposal.num_forwarded)

    @property
    def num_known(self) -> int:
        """Tokens of the chain that is owed that are there already; 0 if what is owed is no chain."""
        return self.tree.num_known(self.budget) if self.budget.is_chain else 0

    def proposal(self) -> DraftTree:
        """The best of the tree, for the proposal that is owed."""
        return self.tree.best(self.budget)

    def position_after(self, node: int) -> int:
        """The absolute index of a child of the node."""
        return len(self.token_ids) + len(self.tree.path(node))

    def counts_after(self, node: int) -> TokenCounts | None:
        """Counts of all tokens up to the node; None if the law does not need them."""
        return self._counts.with_path(self.tree.path(node)) if self._counts else None

    def dice_after(self, node: int) -> int:
        """The seed of the dice by which children of the node are drawn."""
        return dice_after(self._dice, self.tree.path(node))

    def is_continued_by(self, message: Open) -> bool:
        """Whether a new Open only adds tokens to what is held already."""
        if (message.sampling, message.method) != (self.sampling, self._method):
            return False
        return message.token_ids[: len(self.token_ids)] == self.token_ids

    def is_asking(self, since_s: float) -> bool:
        """Whether its target wants drafts of it: one is owed, or in verification since then or later."""
        proposal = self.in_verification
        return self.request is not None or (proposal is not None and proposal.since_s >= since_s)

    @property
    def is_asked_otherwise(self) -> bool:
        """Whether the tree has grown by another opinion than the one that is asked for now."""
        return self.request is not None and self.tree.is_rooted and self.tree.top_k_spec != self.top_k_spec

    def ask(self, budget: DraftBudget, now: float, *, overtakes: bool = False) -> None:
        """Owe a proposal from now on, or none. Replaces what was owed before.

        Without draft tokens in it, if `is_rationed`.

        Args:
            overtakes: the target did without what was owed.
        """
        max_draft_tokens = 0 if self.is_rationed else self._limits.max_draft_tokens
        fitting = budget.limited(num_draft_tokens=max_draft_tokens, num_steps=self.room)
        self.request = None
        if budget.num_draft_tokens:
            began_s = None if self.in_verification is None else self.in_verification.since_s
            self.request = DraftRequest(fitting, now, began_s, overtakes)
        self.in_verification = None
        if self.request is not None:
            self.top_k_spec = self._top_k_spec(fitting)
        self.last_used_s = now

    def is_ready(self, now: float, step_s: float, return_s: float | None, begun_s: float = 0.0) -> bool:
        """Whether to hand over now what is owed.

        A chain that runs ahead is not waited for (AMUSD, Algorithm 1), but for a token that is nearly there.

        Args:
            step_s: t_s.
            return_s: Z of the target; None = not known.
            begun_s: for so long a draft step has been running that adds to it.
        """
        if self.request is None:
            return False
        if self.is_complete:
            return True
        num_known = 0 if self.ahead_choice.mode == "off" else self.num_known
        if not num_known:
            return False
        if self.ahead_choice.mode == "chain":
            return begun_s <= NEARLY * step_s
        away_s = None if return_s is None else return_s + now - self.request.arrived_s
        return away_s is not None and not self.pace.pays_to_wait(num_known, max(0.0, step_s - begun_s), away_s)

    def begin(self, now: float, has_prefill: bool) -> None:
        """A draft step for the proposal that is owed starts now, with a prompt in it or without."""
        if self.request is not None:
            self.request.started_s = now if self.request.started_s is None else self.request.started_s
            self.request.has_prefill |= has_prefill
            self.request.num_steps += 1

    def settle(self, proposal: DraftTree, now: float) -> None:
        """The proposal that was owed is made; or was, if it was promised."""
        if self.request is not None:
            budget, num_forwarded = self.request.budget, len(self.tree.forwarded)
            nodes = self.tree.proposed(budget)
            if self.early_proposal is not None:  # what has grown since then runs ahead
                num_forwarded, nodes = self.early_proposal.num_forwarded, nodes[: proposal.num_draft_tokens]
            self.in_verification = InVerification(budget, proposal, nodes, num_forwarded, now)
        self.request = self.early_proposal = None
        self.last_used_s = now

    def after_verdict(self, verdict: Verdict, now: float) -> DraftSequence:
        """This sequence as it will be once the verdict is taken in: a copy, of which nothing can be drafted.

        What a drafter forgets then is still in it: of those whose trees do not outlive a verdict, no draft step runs
        ahead.
        """
        expected_order = copy(self)
        expected_order.tree, expected_order.token_ids = self.tree.copy(), [*self.token_ids]
        expected_order._counts = None  # only drafting reads them
        expected_order.reroot(verdict.token_ids)
        expected_order.ask(verdict.budget, now)
        return expected_order

    def reroot(self, token_ids: list[int]) -> Survivors:
        """Commit what the target committed. Returns: what of the tree's K/V is still true.

        Effects: `token_ids`, `tree`, `num_kept_ahead`, `num_wasted`, the counts. Does not touch the row.
        """
        num_forwarded = len(self.tree.forwarded)
        survivors = self.tree.reroot(token_ids)
        first_ahead = num_forwarded if self.in_verification is None else self.in_verification.num_forwarded
        self.num_kept_ahead = sum(slot >= first_ahead for slot in (*survivors.path, *survivors.kept))
        self.num_wasted = max(0, num_forwarded - first_ahead - self.num_kept_ahead)
        self.token_ids += token_ids
        if self.is_drawn:
            self._dice = dice_after(self._dice, token_ids)
        self._is_readable = self._is_readable and max(token_ids) < self._limits.vocab_size
        if self._counts:
            self._counts.append(token_ids)
        return survivors

    def to_prepare(self, num_nodes: int) -> list[int]:
        """At most so many nodes that the next proposal may miss; [] if none is in verification."""
        if self.in_verification is None or not self.tree.is_rooted or self.ahead_choice.mode == "off":
            return []
        return self.tree.to_prepare(self.in_verification.budget, self.in_verification.nodes, num_nodes)

    def _top_k_spec(self, budget: DraftBudget) -> TopKSpec:
        """As the budget says, or wider where outcomes are prepared for; drawn children are as many as the law says."""
        if self.ahead_choice.mode != "outcomes" or self.is_drawn:
            return budget.top_k_spec
        return TopKSpec(max(budget.top_k, NUM_OUTCOMES))

    def check_integrity(self) -> None:
        """Raises: OurBug unless tokens, tree, request and link agree."""
        self.tree.check_integrity()
        if self.session.prefix_len != len(self.token_ids):
            raise OurBug(f"{self.key} holds {len(self.token_ids)} tokens, its link says {self.session.prefix_len}")
        if self.early_proposal is not None and self.early_proposal.proposal.epoch != self.session.next_epoch:
            raise OurBug(
                f"{self.key} promised an answer to {self.early_proposal.proposal.epoch} after {self.session.epoch}"
            )
        if (self.request is not None) != (self.session.state is TagState.DRAFTING):
            raise OurBug(f"{self.key} owes {self.request} while its link is {self.session.state}")
