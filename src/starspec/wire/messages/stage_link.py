"""Between the stages of one target, and between them and their coordinator, which is the target.

The coordinator attaches each stage, first `Attach -> Attached | Outdated | Refused`. Then it asks all of them for signs
of life, `Beat -> Alive | Gap`, and sends traversals to the first stage only. Each stage sends what it computed to the
next one, and the last stage answers with a `Landing`. Before that, each asks the next one who it is, `Identify ->
Identity`, so that the coordinator knows that its stages form one chain. The coordinator asks spares the same, and those
that come back: to attach a stage under a second name would take it out of the pipe.

A traversal is three frames: `Traversal`, which each stage reads; `Judges`, which only the last one reads; the hidden
states, [sum of `num_tokens` of the windows that are not dropped, C] in the model's dtype, little-endian; the first
stage gets none. With `hidden_dtype` int8 they are a float32 scale for each token, and then the states in 8 bits.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from starspec.config import MAX_DRAFT_TOKENS
from starspec.config.stages import HiddenDtype
from starspec.ids import PipeEpoch, RowEpoch, RowLease, StageId
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.acceptance import Relaxation
from starspec.speculation.tree import ROOT, DraftTree, TopTokens
from starspec.wire.messages.base import Count, LeaseSeconds, Message, Name, Seconds, TargetName, TokenIdList
from starspec.wire.messages.draft_link import Drawn, Top

MAX_WINDOWS = 4096  # of a traversal
MAX_WINDOW_TOKENS = 2**20
MAX_DRAWS = 1 + MAX_DRAFT_TOKENS  # of a window: behind its root, and behind each node of its draft
MAX_STAGES = 256
MAX_TOP_LOGPROBS = 1000
PipeEpochNumber = Annotated[PipeEpoch, Meta(ge=1, lt=2**53)]
LeaseNumber = Annotated[RowLease, Meta(ge=1, lt=2**53)]
RowEpochNumber = Annotated[RowEpoch, Meta(ge=0, lt=2**53)]
FrameNumber = Annotated[int, Meta(ge=1, lt=2**53)]
TokenCount = Annotated[int, Meta(ge=1, le=MAX_WINDOW_TOKENS)]
DrawCount = Annotated[int, Meta(ge=0, le=MAX_DRAWS)]
NodeIndex = Annotated[int, Meta(ge=0, lt=MAX_DRAFT_TOKENS)]
ByteCount = Annotated[int, Meta(ge=0, lt=2**53)]
FrameBytes = Annotated[int, Meta(ge=0, le=2**28)]  # of the frames of one traversal; more than a socket lets through
LogProb = Annotated[float, Meta(le=1e-6)]
Divergence = Annotated[float, Meta(ge=0.0, le=1e6)]  # nats
Endpoint = Annotated[str, Meta(pattern="^[!-~]{0,1024}\\Z")]  # it ends in logs
DtypeName = Annotated[str, Meta(pattern="^[a-z0-9_]{0,20}\\Z")]  # so does this
StageIdText = Annotated[StageId, Meta(pattern="^[0-9a-f]{16}\\Z")]


# ---------------------------------------------------------------- control


class Attach(Message, frozen=True):
    """coordinator -> stage: you belong to my pipe from now on; free all rows."""

    protocol_version: int
    target_id: TargetName
    pipe_epoch: PipeEpochNumber  # higher than all that the stage has known
    lease_s: LeaseSeconds  # a coordinator that is silent for longer loses the stage
    next: Endpoint = ""  # endpoint of the stage behind; "" = there is none
    hidden_dtype: HiddenDtype = "model"  # of hidden states on their way


class Attached(Message, frozen=True):
    """stage -> coordinator: what the stage is; all its rows are free."""

    pipe_epoch: PipeEpochNumber
    start: Count  # first layer
    end: Count  # the layer behind the last
    num_layers: Count  # of the model
    fingerprint: Name  # of the model's config and weights
    num_rows: Annotated[int, Meta(ge=1, le=2**20)]
    max_len: Count  # positions of a row
    stage_id: StageIdText  # of this process
    num_cache_bytes: ByteCount = 0  # of all rows
    dtype: DtypeName = ""  # of weights and hidden states
    is_invariant: bool = False  # a token's bits do not depend on what it is batched with
    next_id: StageIdText | None = None  # of the stage to which it sends, as that one says; nil = it sends to none


class Outdated(Message, frozen=True):
    """stage -> coordinator: your `Attach` is not newer than one before; send it with a higher epoch."""

    pipe_epoch: Annotated[PipeEpoch, Meta(ge=1, lt=2**52)]  # the highest that the stage has known
    stage_id: StageIdText  # of this process


class Beat(Message, frozen=True):
    """coordinator -> stage: keep-alive of the stage's lease; are you alive?"""

    pipe_epoch: PipeEpochNumber
    sent_s: Seconds = 0.0  # by the coordinator's clock


class Alive(Message, frozen=True):
    """stage -> coordinator: the answer to a `Beat`. It does not wait for what the stage computes."""

    pipe_epoch: PipeEpochNumber
    sent_s: Seconds  # of the `Beat`
    is_busy: bool = False  # the stage computes a traversal, or a long one arrives
    number: FrameNumber = 1  # of the traversal that the stage expects


class Retract(Message, frozen=True):
    """coordinator -> stage: windows of this row that are older stand on refused tokens. A hint: it saves computing."""

    pipe_epoch: PipeEpochNumber
    row: Count
    lease: LeaseNumber
    epoch: RowEpochNumber  # of the row; windows of earlier epochs may be dropped


class Detach(Message, frozen=True):
    """coordinator -> stage: the pipe ends; free all rows."""

    pipe_epoch: PipeEpochNumber


class Gap(Message, frozen=True):
    """stage -> coordinator: a traversal was missing or broke the protocol, or the stage has left the pipe.

    Nothing more lands in this pipe epoch.
    """

    pipe_epoch: PipeEpochNumber
    number: FrameNumber  # of the traversal that the stage expects
    reason: str


# ---------------------------------------------------------------- traversals


class Identify(Message, frozen=True):
    """stage -> the next one, before all traversals; coordinator -> spare, before it is attached: who are you?"""


class Identity(Message, frozen=True):
    """stage -> the one before, or its coordinator: the answer to `Identify`."""

    stage_id: StageIdText  # of this process


class RowChange(msgspec.Struct, frozen=True, array_like=True):
    """A row is leased or freed, before the windows of the same traversal."""

    kind: Literal["lease", "free"]
    row: Count
    lease: LeaseNumber  # names one occupant of the row; higher than all before


class WindowHead(msgspec.Struct, frozen=True, omit_defaults=True):
    """What every stage must know of one window. The row is told as it must be, never as a difference."""

    row: Count
    lease: LeaseNumber
    epoch: RowEpochNumber  # raised whenever tokens are taken back on which windows stood
    base: Count  # positions of the row that are committed, before those of `path`
    num_tokens: TokenCount
    num_logits: DrawCount  # of its last tokens: the same at each stage, as it decides how tokens are computed
    path: tuple[Count, ...] = ()  # tokens of the window before that lie at `base` and are committed behind it
    parents: tuple[int, ...] | None = None  # of each token, an earlier one; -1 = the committed ones; nil = a chain
    token_ids: TokenIdList = []  # the first stage gets them, no other does
    is_dropped: bool = False  # a stage dropped it; the others do too

    def __post_init__(self) -> None:
        """Raises: ValueError if the fields do not fit together."""
        if self.num_logits > self.num_tokens or len(self.token_ids) not in (0, self.num_tokens):
            raise ValueError(f"{len(self.token_ids)} token ids, {self.num_logits} logits of {self.num_tokens} tokens")
        if any(later <= earlier for earlier, later in pairwise(self.path)):
            raise ValueError("a path is not strictly increasing")
        if self.parents is None:
            return
        if len(self.parents) != self.num_tokens or self.num_tokens > MAX_DRAWS:
            raise ValueError(f"{len(self.parents)} parents of {self.num_tokens} tokens; a tree has at most {MAX_DRAWS}")
        if not all(ROOT <= parent < token for token, parent in enumerate(self.parents)):
            raise ValueError("a parent does not come first")


class StageWork(msgspec.Struct, frozen=True, array_like=True):
    """What one stage says about one traversal."""

    compute_s: Seconds
    wait_s: Seconds  # it lay there before it was computed
    num_bytes: FrameBytes  # of its frames, as they arrived
    num_hidden_bytes: FrameBytes  # of these, hidden states
    start: Count  # the stage's first layer
    end: Count  # the layer behind its last


Work = Annotated[tuple[StageWork, ...], Meta(max_length=MAX_STAGES)]


class Traversal(Message, frozen=True):
    """coordinator -> first stage -> ... -> last stage: windows that go through the model together."""

    pipe_epoch: PipeEpochNumber
    number: FrameNumber  # 1 more than the traversal before; 1 = the first of the pipe epoch
    changes: Annotated[list[RowChange], Meta(max_length=MAX_WINDOWS)]  # in order, before the windows
    windows: Annotated[list[WindowHead], Meta(max_length=MAX_WINDOWS)]  # of different rows
    work: Work = ()  # of each stage before, in order: all layers before those of the stage that gets it

    def __post_init__(self) -> None:
        """Raises: ValueError if two windows share a row."""
        if len({each.row for each in self.windows}) < len(self.windows):
            raise ValueError("two windows of one traversal share a row")


class RowLaw(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a request says about its tokens. It comes with the first judge of a lease."""

    sampling: SamplingSpec
    relaxation: Relaxation | None = None  # nil = strict
    num_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None  # nil = none are wanted
    prompt_len: Count = 0
    token_ids: TokenIdList = []  # prompt and output before the judge, if the law counts tokens

    def __post_init__(self) -> None:
        """Raises: ValueError if the prompt is longer than all tokens, or tau is out of range."""
        if self.token_ids and self.prompt_len > len(self.token_ids):
            raise ValueError(f"prompt of {self.prompt_len} tokens in {len(self.token_ids)}")
        if self.relaxation is not None and not 0.0 < self.relaxation.tau <= 1.0:
            raise ValueError(f"tau must be in (0, 1], got {self.relaxation.tau}")


class JudgeOf(msgspec.Struct, frozen=True, omit_defaults=True):
    """What decides the tokens of one window."""

    window: Annotated[int, Meta(ge=0, lt=MAX_WINDOWS)]  # index in the traversal
    prefix_len: Annotated[int, Meta(ge=1, lt=2**31)]  # tokens before the first draw
    token_ids: Annotated[TokenIdList, Meta(min_length=1, max_length=MAX_DRAWS)]  # the root, then the nodes
    parents: list[int] | None = None  # of the nodes, as in `Proposal`
    drawn: list[Drawn] | None = None  # as in `Proposal`
    logprobs: list[float] | None = None  # as in `Proposal`
    tops: list[Top] | None = None  # as in `Proposal`
    law: RowLaw | None = None  # nil: as before, of this lease

    @classmethod
    def of(cls, window: int, prefix_len: int, root: int, tree: DraftTree, law: RowLaw | None) -> JudgeOf:
        return cls(
            window,
            prefix_len,
            [root, *tree.token_ids],
            None if tree.is_chain else list(tree.parents),
            [Drawn.of(node, draft) for node, draft in tree.drafts.items()] or None,
            list(tree.logprobs) or None,
            [Top(node, list(top.token_ids), list(top.logprobs)) for node, top in tree.tops.items()] or None,
            law,
        )

    def __post_init__(self) -> None:
        """Raises: ValueError if the fields do not form a tree."""
        if len({each.node for each in self.drawn or ()}) != len(self.drawn or ()):
            raise ValueError("the children of one node are listed twice in `drawn`")
        _ = self.tree

    @property
    def root(self) -> int:
        return self.token_ids[0]

    @property
    def tree(self) -> DraftTree:
        """The tree to verify."""
        num_nodes = len(self.token_ids) - 1
        parents = range(ROOT, num_nodes - 1) if self.parents is None else self.parents
        drafts = {each.node: each.draft for each in self.drawn or ()}
        tops = {each.node: TopTokens(tuple(each.token_ids), tuple(each.logprobs)) for each in self.tops or ()}
        return DraftTree(tuple(self.token_ids[1:]), tuple(parents), drafts, tuple(self.logprobs or ()), tops)


class Judges(Message, frozen=True):
    """coordinator -> last stage, beside a traversal: how its windows are decided. Chunks of prompts have no judge."""

    judges: Annotated[list[JudgeOf], Meta(max_length=MAX_WINDOWS)]

    def __post_init__(self) -> None:
        """Raises: ValueError unless the judges are in the order of their windows."""
        if any(later.window <= earlier.window for earlier, later in pairwise(self.judges)):
            raise ValueError("the judges are not in the order of their windows")


NodeIndices = Annotated[tuple[NodeIndex, ...], Meta(max_length=MAX_DRAFT_TOKENS)]
Divergences = Annotated[tuple[Divergence, ...], Meta(max_length=MAX_DRAWS)]
TopLogProbs = Annotated[list[tuple[Count, LogProb]], Meta(max_length=MAX_TOP_LOGPROBS)]
LogProbs = Annotated[list[tuple[LogProb, TopLogProbs]], Meta(max_length=MAX_DRAWS)]


class VerdictOf(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to one judge: the tokens that the target emits, never logits."""

    token_ids: TokenIdList = []  # the accepted ones and the target's own; none: it stood on refused tokens, or failed
    nodes: NodeIndices = ()  # of the accepted tokens
    relaxed: NodeIndices = ()  # indices of those that only the relaxed rule accepts
    logprobs: LogProbs | None = None  # of each token, and of the likeliest
    divergences: Divergences = ()  # of the target from the draft, where the draft states its likeliest tokens
    error: str = ""  # why it failed: its request ends, and no other one; "" = it did not

    def __post_init__(self) -> None:
        """Raises: ValueError if there is not one token more than nodes, a list has another length, or it has failed."""
        if self.error and self.token_ids:
            raise ValueError(f"{len(self.token_ids)} tokens of a window that failed")
        if len(self.token_ids) != (len(self.nodes) + 1 if self.token_ids else 0) or (self.nodes and not self.token_ids):
            raise ValueError(f"{len(self.token_ids)} tokens of {len(self.nodes)} accepted nodes")
        if any(later <= earlier for earlier, later in pairwise(self.nodes)):
            raise ValueError("an accepted node comes before its ancestor")
        if any(index >= len(self.nodes) for index in self.relaxed):
            raise ValueError("a token was relaxed that was not accepted")
        if self.logprobs and len(self.logprobs) != len(self.token_ids):
            raise ValueError(f"{len(self.logprobs)} log-probabilities of {len(self.token_ids)} tokens")


class Landing(Message, frozen=True):
    """last stage -> coordinator: a traversal has come to its end."""

    pipe_epoch: PipeEpochNumber
    number: FrameNumber  # of the traversal
    verdicts: Annotated[list[VerdictOf], Meta(max_length=MAX_WINDOWS)]  # one for each judge
    work: Work = ()  # of each stage, in order: all layers
