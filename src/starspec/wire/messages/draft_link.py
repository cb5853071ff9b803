"""Between a target and its hub: the handshake on the hub's public port, then messages on the target's own port.

The handshake is `Hello -> Welcome | Refused`. Then the target sends `Open`, `Features`, `Verdict`, `Close` and `Ping`,
the hub sends `Proposal`, `Reopen` and `Pong`, and either sends `Goodbye` and `Fault`.
"""

from __future__ import annotations

from functools import cached_property
from math import inf
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from starspec.config import MAX_DRAFT_TOKENS, MAX_TOP_K, SampleMethod
from starspec.ids import Epoch, Tag
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.budget import DraftBudget
from starspec.speculation.tree import MAX_STATED, MAX_SUPPORT, ROOT, DraftTree, Drawing, DrawnCandidates, TopTokens
from starspec.wire.messages.base import (
    PROTOCOL_VERSION,
    Count,
    EpochNumber,
    FeatureLayers,
    LeaseSeconds,
    LinkName,
    Message,
    Name,
    Seconds,
    TagNumber,
    TargetName,
    TokenIdList,
)

# ---------------------------------------------------------------- the hub's public port


class Hello(Message, frozen=True):
    """target -> hub: who the target is, and what its draft model must match."""

    protocol_version: int
    target_id: TargetName
    vocab_size: Annotated[int, Meta(ge=1, lt=2**31)]  # rows of the target's embedding
    vocab_fingerprint: Name  # hash of the tokenizer's vocabulary; equal iff the token ids mean the same
    num_layers: Count = 0  # layers of the target: it can send hidden states 0..num_layers
    hidden_size: Count = 0  # size of one hidden state; 0 = it cannot send any


class Welcome(Message, frozen=True):
    """hub -> target: the port and the id of your link. Use `link_id` as the ZeroMQ routing id on that port."""

    protocol_version: int
    link_id: LinkName
    port: Annotated[int, Meta(ge=0, lt=65536)]  # for this target alone, at the hub's host
    draft_name: str
    max_draft_tokens: Count  # nodes of a proposal, at most
    lease_s: LeaseSeconds  # a target that is silent for longer loses its tags
    feature_layers: FeatureLayers = ()  # hidden states that the draft needs, numbered as in Hugging Face; () = none
    feature_window: Count = 0  # with `Open`, send the features of so many last positions
    is_plain_speed_wanted: bool = False  # measure your speed without drafts now and then, and send it in `Ping`
    draft_method: Annotated[str, Meta(max_length=200)] = ""  # draft_model, eagle, eagle3 or ngram; "" = not said


class Refused(Message, frozen=True):
    """hub -> target, or target -> gateway: refused, with the reason.

    A refused target decodes without the hub and may try again after `retry_after_s`.
    """

    code: Literal["version", "vocabulary", "features", "full", "invalid", "key"]
    reason: str
    retry_after_s: float | None = None  # None: asking again will not help

    @classmethod
    def for_version(cls, theirs: int, me: str = "this hub", them: str = "the target") -> Refused:
        """The refusal of a peer that uses another protocol version."""
        versions = f"{me} speaks protocol version {PROTOCOL_VERSION}, {them} {theirs}"
        return cls("version", f"{versions}: install the same starspec release on both machines")


# ---------------------------------------------------------------- the target's own port


class TreeShape(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is wanted of a proposal beside its number of nodes; see `DraftBudget`."""

    num_steps: Annotated[int, Meta(ge=1, le=MAX_DRAFT_TOKENS)]  # depth of the tree, at most
    top_k: Annotated[
        int, Meta(ge=1, le=MAX_TOP_K)
    ]  # children of a node, and nodes of one depth that get children, at most
    p_min: Annotated[float, Meta(ge=0.0, le=1.0)] = (
        0.0  # depths that are less likely to be reached are not drafted; 0 = off
    )

    max_entropy: Annotated[float, Meta(ge=0.0)] | None = None  # nats; a chain ends where the draft is less sure
    has_logprobs: bool = False  # state the log-probability of each node
    num_stated: Annotated[int, Meta(ge=0, le=MAX_STATED)] = 0  # state so many likeliest tokens after each node

    @classmethod
    def of(cls, budget: DraftBudget) -> TreeShape | None:
        if not budget.num_draft_tokens or budget == DraftBudget.chain(budget.num_draft_tokens):
            return None
        max_entropy = budget.max_entropy if budget.max_entropy < inf else None
        stated = (max_entropy, budget.has_logprobs, budget.num_stated)
        return cls(budget.num_steps, budget.top_k, budget.p_min, *stated)


def _budget(num_draft_tokens: int, shape: TreeShape | None) -> DraftBudget:
    if shape is None:
        return DraftBudget.chain(num_draft_tokens)
    max_entropy = inf if shape.max_entropy is None else shape.max_entropy
    stated = (max_entropy, shape.has_logprobs, shape.num_stated)
    return DraftBudget(num_draft_tokens, shape.num_steps, shape.top_k, shape.p_min, *stated)


class Open(Message, frozen=True):
    """target -> hub: start a tag, or start it over, from its token ids alone; and propose."""

    tag: TagNumber
    epoch: EpochNumber  # one more than the tag's last message; 1 for a new tag
    token_ids: Annotated[TokenIdList, Meta(min_length=1)]  # committed tokens: prompt and output so far
    prompt_len: Count
    sampling: SamplingSpec
    num_draft_tokens: Count  # nodes of the first proposal, at most; 0 = no proposal yet
    shape: TreeShape | None = None  # None: a chain
    method: SampleMethod = "coupled"  # how the target verifies; with "rejection" the hub samples children

    @property
    def num_tokens(self) -> int:
        """Committed tokens."""
        return len(self.token_ids)

    @property
    def budget(self) -> DraftBudget:
        return _budget(self.num_draft_tokens, self.shape)


class LongOpen(Open, frozen=True, tag="open"):
    """An `Open` with more tokens than the hub's draft takes, as the hub decodes it: without them. It is never sent."""

    num_tokens: int = 0


class Drawn(msgspec.Struct, frozen=True, array_like=True):
    """The children that were sampled without replacement below one node of a proposal, and their distribution."""

    node: Annotated[int, Meta(ge=ROOT, lt=MAX_DRAFT_TOKENS)]  # as in `parents`
    candidates: Annotated[TokenIdList, Meta(min_length=1, max_length=MAX_TOP_K)]  # all that were sampled, in that order
    token_ids: Annotated[TokenIdList, Meta(max_length=MAX_SUPPORT)]  # the support of the distribution
    probs: Annotated[list[Annotated[float, Meta(gt=0.0)]], Meta(max_length=MAX_SUPPORT)]  # their exact probabilities

    @classmethod
    def of(cls, node: int, draft: DrawnCandidates) -> Drawn:
        return cls(node, list(draft.candidates), list(draft.token_ids), list(draft.probs))

    @property
    def draft(self) -> DrawnCandidates:
        """Raises: ValueError if these candidates cannot come from this distribution."""
        drawn = (tuple(self.candidates), tuple(self.token_ids), tuple(self.probs))
        return DrawnCandidates(*drawn, Drawing.WITHOUT_REPLACEMENT)


class Top(msgspec.Struct, frozen=True, array_like=True):
    """The likeliest tokens after one node of a proposal, as the draft model sees them."""

    node: Annotated[int, Meta(ge=ROOT, lt=MAX_DRAFT_TOKENS)]  # as in `parents`
    token_ids: Annotated[TokenIdList, Meta(max_length=MAX_STATED)]
    logprobs: Annotated[list[float], Meta(max_length=MAX_STATED)]  # natural logarithms, of the whole distribution


class Proposal(Message, frozen=True, dict=True):
    """hub -> target: a tree to verify. Dropped unless `epoch` and `prefix_len` are the tag's current ones."""

    tag: TagNumber
    epoch: EpochNumber  # the tag's epoch when the hub drafted this tree
    prefix_len: Count  # committed tokens before the tree: a second, independent check
    token_ids: TokenIdList
    parents: list[int] | None = (
        None  # parent of each node, an earlier node; -1 = the last committed token; None = a chain
    )
    queue_s: Seconds = 0.0  # arrival at the hub to the first draft step
    service_s: Seconds = 0.0  # S(d): first draft step to the end of the last; 0 = no draft step ran for it
    retry_after_s: Seconds = 0.0  # > 0: the hub has no room and forgets the tag; send `Open` after this time
    drawn: list[Drawn] | None = (
        None  # for each node whose children were sampled; None: children are the most likely tokens
    )
    logprobs: list[float] | None = None  # of each node's token after its parent; advice, if it was asked for
    tops: list[Top] | None = (
        None  # for each node that was expanded, if it was asked for; only relaxed requests rely on it
    )

    @classmethod
    def of(
        cls, tree: DraftTree, tag: Tag, epoch: Epoch, prefix_len: int, queue_s: float = 0.0, service_s: float = 0.0
    ) -> Proposal:
        parents = None if tree.is_chain else list(tree.parents)
        drawn = [Drawn.of(node, draft) for node, draft in tree.drafts.items()] or None
        tops = [Top(node, list(top.token_ids), list(top.logprobs)) for node, top in tree.tops.items()] or None
        made = cls(tag, epoch, prefix_len, list(tree.token_ids), parents, queue_s, service_s, drawn=drawn)
        if not (tree.logprobs or tops):
            return made
        return msgspec.structs.replace(made, logprobs=list(tree.logprobs) or None, tops=tops)

    @property
    def is_hopeless(self) -> bool:
        """Whether the next proposal will probably be empty too, because the hub did not try to draft.

        The sequence is longer than the draft's context, or the target's rate limit is reached. An n-gram lookup that
        finds nothing has tried.
        """
        return not self.token_ids and self.service_s == 0.0 and self.retry_after_s == 0.0

    @cached_property
    def tree(self) -> DraftTree:
        """The proposed tree. Raises: ValueError if the fields do not form a tree; a decoded proposal always does."""
        parents = range(ROOT, len(self.token_ids) - 1) if self.parents is None else self.parents
        drafts = {each.node: each.draft for each in self.drawn or ()}
        if len(drafts) != len(self.drawn or ()):
            raise ValueError("the children of one node are listed twice in `drawn`")
        tops = {each.node: TopTokens(tuple(each.token_ids), tuple(each.logprobs)) for each in self.tops or ()}
        return DraftTree(tuple(self.token_ids), tuple(parents), drafts, tuple(self.logprobs or ()), tops)


class Verdict(Message, frozen=True):
    """target -> hub: the tokens committed after `base_len`, and how many draft tokens are wanted next.

    Tokens that the target presumes to be accepted, or that a grammar forces, are sent as if they were committed.
    """

    tag: TagNumber
    epoch: EpochNumber  # after this verdict
    base_len: Count  # committed tokens before this verdict
    token_ids: Annotated[TokenIdList, Meta(min_length=1)]  # the accepted path and the target's own token after it
    num_draft_tokens: Count  # nodes of the next proposal, at most; 0 = no proposal yet
    shape: TreeShape | None = None  # None: a chain

    @property
    def budget(self) -> DraftBudget:
        return _budget(self.num_draft_tokens, self.shape)


class Features(Message, frozen=True):
    """target -> hub: hidden states of committed positions, for a draft that needs them.

    Features are a frame of their own, in the same multipart as the verdict or Open that they belong to: before the
    `Verdict` that commits the tokens after these positions, or after the `Open` of a tag. They need no epoch, because
    the features of a committed position never change. Late, repeated or missing ones only change how good drafts are.
    """

    tag: TagNumber
    start: Count  # first position
    num_positions: Annotated[int, Meta(ge=1, lt=2**31)]
    data: bytes  # [num_positions, F] bfloat16, little-endian; the needed layers of a position are concatenated


class Close(Message, frozen=True):
    """target -> hub: the sequence has ended; free the tag."""

    tag: TagNumber
    epoch: EpochNumber  # one more than the tag's last message; no message of the tag follows


class Reopen(Message, frozen=True):
    """hub -> target: the hub does not hold this tag, or a verdict did not follow; send `Open`."""

    tag: TagNumber
    epoch: EpochNumber  # of the message that did not follow; stale if the tag was opened since


class Ping(Message, frozen=True):
    """target -> hub: keep-alive. The hub's transport answers at once, even while the hub computes.

    Sequence 0 is for the transports: it attaches the link, renews the lease, asks how far the hub has read, and is not
    passed on to the hub.
    """

    sequence: Count
    plain_tokens_per_s: Annotated[float, Meta(ge=0.0, le=1e9)] = (
        0.0  # speed of one sequence without drafts; 0 = not known
    )


class Pong(Message, frozen=True):
    """hub -> target: the answer to `Ping`.

    With sequence 2147483647 it answers nothing: the hub sends it to see whether the target's connection is there.
    """

    sequence: Count


class Goodbye(Message, frozen=True):
    """either -> either: the sender closes the link."""

    reason: str = ""


class Fault(Message, frozen=True):
    """either -> either: your last message broke the protocol and was dropped."""

    reason: str
