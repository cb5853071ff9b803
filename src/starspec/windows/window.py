"""A window: the tokens of one sequence in one forward, with all that decides which tokens follow them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from starspec.models.runner import Segment
from starspec.sampling.constraint import Constraint
from starspec.sampling.counts import TokenCounts
from starspec.sampling.logprobs import LikelyTokens, TopLogprobs
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.acceptance import Relaxation
from starspec.speculation.tree import DraftTree
from starspec.speculation.verify import VerifyResult


@dataclass(frozen=True, slots=True)
class Law:
    """What a request says about its tokens. It does not change from its first window to its last."""

    sampling: SamplingSpec
    relaxation: Relaxation | None  # None = strict
    num_logprobs: int | None  # most likely tokens whose log-probabilities are wanted; None = not even the token's own
    num_node_tops: int | None = None  # most likely tokens that are wanted after every node of a tree; None = of none


class Judge(NamedTuple):
    """What decides the tokens of one window."""

    law: Law
    tree: DraftTree  # empty: plain decoding
    prefix_len: int  # committed tokens: the position of the first draw
    counts: TokenCounts  # of exactly those tokens
    constraint: Constraint | None = None  # the grammar behind exactly those tokens; None = any text


class Scoring(NamedTuple):
    """What is wanted of a chunk's logits: the log-probabilities of the tokens that the prompt goes on with."""

    token_ids: Sequence[int]  # the prompt's token after each of the chunk's
    num_top: int  # most likely tokens at each position


class Window(NamedTuple):
    """New tokens of one sequence: a root with the draft nodes below it, or a chunk of a prompt."""

    segment: Segment
    judge: Judge | None  # None: a chunk of a prompt, about which nothing is decided
    scoring: Scoring | None = None  # of a chunk; None = nobody asks for log-probabilities of the prompt


class Verdict(NamedTuple):
    """The target's answer to one judge."""

    result: VerifyResult  # without tokens if there is an error
    logprobs: list[TopLogprobs]  # one for each token of the result; empty if none are wanted
    divergences: tuple[float, ...]  # of the target from the draft, at each position of the path that states one
    features: Tensor | None  # [tokens, F], of the position before each token of the result; None = none are wanted
    node_tops: tuple[LikelyTokens, ...] = ()  # after the root and after each node, if they are wanted
    error: BaseException | None = None  # why this judge has no answer: its request ends, and no other one
