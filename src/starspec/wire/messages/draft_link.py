"""Between a target and its hub: the handshake on the hub's public port, then the target's own port.

`Hello -> Welcome | Refused` once; then `Open`, `Features`, `Verdict`, `Close`, `Ping` from the target and `Proposal`,
`Reopen`, `Pong` from the hub; `Goodbye` and `Fault` from either.
"""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from starspec.config import (
    MAX_DRAFT_TOKENS,
    MAX_TOP_K,
    SampleMethod,
)
from starspec.ids import Epoch, Tag, TargetId
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.budget import DraftBudget
from starspec.speculation.tree import MAX_SUPPORT, ROOT, DraftTree, Drawing, DrawnCandidates
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
    TokenIdList,
)

# ---------------------------------------------------------------- the hub's public port


class Hello(Message, frozen=True):
    """target -> hub: who I am, and what a draft must fit."""

    protocol_version: int
    target_id: Annotated[TargetId, Meta(min_length=1, max_length=200)]
    vocab_size: Annotated[int, Meta(ge=1, lt=2**31)]  # rows of the target's embedding
    vocab_fingerprint: Name  # hash of the tokenizer's vocabulary; equal iff the token ids mean the same
    num_layers: Count = 0  # of the target: it can send hidden states 0..num_layers
    hidden_size: Count = 0  # numbers of one hidden state; 0 = it can send none


class Welcome(Message, frozen=True):
    """hub -> target: your own port and your session; identify with `link_id` there."""

    protocol_version: int
    link_id: LinkName
    port: Annotated[int, Meta(ge=0, lt=65536)]  # dedicated port at the host that the target already knows
    draft_name: str
    max_draft_tokens: Count  # the hub never proposes more nodes than this
    lease_s: LeaseSeconds  # a target silent for longer loses its tags
    feature_layers: FeatureLayers = ()  # hidden states that the draft reads, as Hugging Face counts them; () = none
    feature_window: Count = 0  # features of the past that it wants with a tag: of so many positions, the last ones
    is_plain_speed_wanted: bool = False  # the hub takes targets in by it: measure it now and then, and say it in Ping


class Refused(Message, frozen=True):
    """hub -> target, or target -> gateway: no, and why. A target runs alone and may ask again after `retry_after_s`."""

    code: Literal["version", "vocabulary", "features", "full", "invalid"]
    reason: str
    retry_after_s: float | None = None  # None: asking again will not help

    @classmethod
    def for_version(cls, theirs: int, me: str = "this hub", them: str = "the target") -> Refused:
        """What a process of this version says to one of another."""
        versions = f"{me} speaks protocol version {PROTOCOL_VERSION}, {them} {theirs}"
        return cls("version", f"{versions}: install the same starspec release on both machines")


# ---------------------------------------------------------------- the target's own port


class TreeShape(msgspec.Struct, frozen=True):
    """How a proposal's nodes are to be spent when they are not to be a plain chain; see `DraftBudget`."""

    num_steps: Annotated[int, Meta(ge=1, le=MAX_DRAFT_TOKENS)]  # deepest node, at most
    top_k: Annotated[int, Meta(ge=1, le=MAX_TOP_K)]  # children of a node, and nodes of a layer that get any, at most
    p_min: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.0  # layers less likely to be reached are not drafted; 0 = off

    @classmethod
    def of(cls, budget: DraftBudget) -> TreeShape | None:
        if not budget.num_draft_tokens or budget == DraftBudget.chain(budget.num_draft_tokens):
            return None
        return cls(budget.num_steps, budget.top_k, budget.p_min)


def _budget(num_draft_tokens: int, shape: TreeShape | None) -> DraftBudget:
    if shape is None:
        return DraftBudget.chain(num_draft_tokens)
    return DraftBudget(num_draft_tokens, shape.num_steps, shape.top_k, shape.p_min)


class Open(Message, frozen=True):
    """target -> hub: start (or start over) a tag from its token ids alone, and propose."""

    tag: TagNumber
    epoch: EpochNumber  # one more than the tag's last message; a fresh tag's is 1
    token_ids: Annotated[TokenIdList, Meta(min_length=1)]  # committed: prompt and output so far
    prompt_len: Count
    sampling: SamplingSpec
    num_draft_tokens: Count  # wanted in the first proposal, 0 = none yet
    shape: TreeShape | None = None  # None: a chain
    method: SampleMethod = "coupled"  # how the target verifies; "rejection" asks for children that are drawn

    @property
    def budget(self) -> DraftBudget:
        return _budget(self.num_draft_tokens, self.shape)


class Drawn(msgspec.Struct, frozen=True, array_like=True):
    """What was drawn without replacement below one node of a proposal, and the law that it was drawn from."""

    node: Annotated[int, Meta(ge=ROOT, lt=MAX_DRAFT_TOKENS)]  # as in `parents`
    candidates: Annotated[TokenIdList, Meta(min_length=1, max_length=MAX_TOP_K)]  # in the order of drawing, all of them
    token_ids: Annotated[TokenIdList, Meta(max_length=MAX_SUPPORT)]  # all that could have been drawn
    probs: Annotated[list[Annotated[float, Meta(gt=0.0)]], Meta(max_length=MAX_SUPPORT)]  # of each, exactly

    @classmethod
    def of(cls, node: int, draft: DrawnCandidates) -> Drawn:
        return cls(node, list(draft.candidates), list(draft.token_ids), list(draft.probs))

    @property
    def draft(self) -> DrawnCandidates:
        """Raises: ValueError if it cannot have been drawn so."""
        drawn = (tuple(self.candidates), tuple(self.token_ids), tuple(self.probs))
        return DrawnCandidates(*drawn, Drawing.WITHOUT_REPLACEMENT)


class Proposal(Message, frozen=True, dict=True):
    """hub -> target: a tree to verify. Stale, and dropped, unless `epoch` and `prefix_len` are the tag's own."""

    tag: TagNumber
    epoch: EpochNumber  # the tag's epoch when the hub drew this tree
    prefix_len: Count  # committed length the tree hangs from: a second, independent guard
    token_ids: TokenIdList
    parents: list[int] | None = None  # each node's, an earlier one; -1 = the last committed token; None = a chain
    queue_s: Seconds = 0.0  # seconds from arrival at the hub to the first layer
    service_s: Seconds = 0.0  # S(d): seconds from the first layer to the last; 0 = none was drafted for it
    retry_after_s: Seconds = 0.0  # > 0: the hub has no room and forgets the tag; open it anew after so long
    drawn: list[Drawn] | None = None  # each node once below which children were drawn; None: all were guessed

    @classmethod
    def of(
        cls, tree: DraftTree, tag: Tag, epoch: Epoch, prefix_len: int, queue_s: float = 0.0, service_s: float = 0.0
    ) -> Proposal:
        parents = None if tree.is_chain else list(tree.parents)
        drawn = [Drawn.of(node, draft) for node, draft in tree.drafts.items()] or None
        return cls(tag, epoch, prefix_len, list(tree.token_ids), parents, queue_s, service_s, drawn=drawn)

    @property
    def is_hopeless(self) -> bool:
        """Whether the next will be empty too, as far as is known: the hub has not tried to draft.

        The text is beyond the draft's context, or its target has had its share; a lookup that finds nothing has tried.
        """
        return not self.token_ids and self.service_s == 0.0 and self.retry_after_s == 0.0

    @cached_property
    def tree(self) -> DraftTree:
        """The proposed tree. Raises: ValueError if it is none; a decoded proposal always is one."""
        parents = range(ROOT, len(self.token_ids) - 1) if self.parents is None else self.parents
        drafts = {each.node: each.draft for each in self.drawn or ()}
        if len(drafts) != len(self.drawn or ()):
            raise ValueError("children of one node are said to be drawn twice")
        return DraftTree(tuple(self.token_ids), tuple(parents), drafts)


class Verdict(Message, frozen=True):
    """target -> hub: what was committed after `base_len`, and how many draft tokens are wanted next."""

    tag: TagNumber
    epoch: EpochNumber  # after this verdict
    base_len: Count  # committed length before it
    token_ids: Annotated[TokenIdList, Meta(min_length=1)]  # the accepted path and the target's own last token
    num_draft_tokens: Count  # wanted in the next proposal, 0 = none yet
    shape: TreeShape | None = None  # None: a chain

    @property
    def budget(self) -> DraftBudget:
        return _budget(self.num_draft_tokens, self.shape)


class Features(Message, frozen=True):
    """target -> hub: hidden states of committed positions, for a draft that reads them.

    They travel in front of the verdict that commits what follows these positions, or behind the Open of a tag whose
    past is known: a frame of its own in the same multipart. What is true of a committed position stays true, so
    there is no epoch: late, repeated and missing ones change no more than how much the draft knows.
    """

    tag: TagNumber
    start: Count  # position of the first
    num_positions: Annotated[int, Meta(ge=1, lt=2**31)]
    data: bytes  # [num_positions, F] bfloat16, little-endian, the wanted layers of a position side by side


class Close(Message, frozen=True):
    """target -> hub: the tag is finished; free everything of it."""

    tag: TagNumber
    epoch: EpochNumber  # one more than the tag's last message: nothing of the tag comes after it


class Reopen(Message, frozen=True):
    """hub -> target: I do not hold this tag (any more), or it does not fit; send `Open`."""

    tag: TagNumber
    epoch: EpochNumber  # of the message that did not fit; stale if the tag was opened anew since


class Ping(Message, frozen=True):
    """target -> hub: I live; are you there? The hub's transport answers at once, whatever the hub computes.

    Sequence 0 belongs to the transports: it attaches a session, keeps its lease and never reaches the hub itself.
    """

    sequence: Count
    plain_tokens_per_s: Annotated[float, Meta(ge=0.0, le=1e9)] = 0.0  # of one sequence without drafts; 0 = not known


class Pong(Message, frozen=True):
    """hub -> target: the answer to `Ping`."""

    sequence: Count


class Goodbye(Message, frozen=True):
    """either -> either: I am leaving in good order."""

    reason: str = ""


class Fault(Message, frozen=True):
    """either -> either: your last message broke the protocol; it was dropped."""

    reason: str
