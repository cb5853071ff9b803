"""Between a gateway and a target: `Submit` and `Abort` from the gateway, `EngineOutput` and `Rejected` from the target.

The gateway chooses each request's id. Both directions use it; it is unique for one connection of one gateway.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from starspec.config import MAX_DRAFT_TOKENS, MAX_TOP_LOGPROBS, Policy
from starspec.sampling.grammar import GrammarSpec
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.tree import DraftTree
from starspec.stats import RequestStats
from starspec.wire.messages.base import DraftCount, Message, RequestName, Seconds, StopStrings, TokenId, TokenIdList

GRAMMAR_FAILED: Final = "the grammar cannot be followed"
"""How the `stop_reason` of an answer begins that was ended for that."""


class DraftToVerify(msgspec.Struct, frozen=True, omit_defaults=True):
    """A draft of the client's own, to be verified in one forward behind the prompt; nothing else is generated."""

    token_ids: Annotated[TokenIdList, Meta(max_length=MAX_DRAFT_TOKENS)]
    parents: list[int] | None = None  # as in `Proposal`
    num_top: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None  # likeliest tokens after each node

    def __post_init__(self) -> None:
        """Raises: ValueError if the fields do not form a tree."""
        _ = self.tree

    @property
    def tree(self) -> DraftTree:
        if self.parents is None:
            return DraftTree.chain(self.token_ids)
        return DraftTree(tuple(self.token_ids), tuple(self.parents))


class RequestSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """One answer to generate, as the target needs it: tokens in, tokens and text out."""

    prompt_token_ids: TokenIdList
    sampling: SamplingSpec
    max_tokens: Annotated[int, Meta(ge=1, lt=2**31)] | None = None  # None: as many as fit in the context
    stop: StopStrings = ()
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    prompt_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None  # as `logprobs`, of the prompt
    num_draft_tokens: DraftCount | None = None  # depth of the proposals; None: the target chooses; 0: no drafts
    length_policy: Policy | None = None  # how deep proposals are; None: the target's own policy
    relaxed_tau: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.0  # of relaxed verification, which is lossy; 0: strict
    draft: DraftToVerify | None = None  # None: generate
    grammar: GrammarSpec | None = None  # the answer follows it; None: any text
    prediction: TokenIdList | None = None  # what the client expects, from which drafts are copied; None: nothing


class Submit(Message, frozen=True):
    """gateway -> target: generate one answer."""

    request_id: RequestName
    spec: RequestSpec


class Abort(Message, frozen=True):
    """gateway -> target: stop this request; its client has left. An unknown id is ignored."""

    request_id: RequestName


LikelyOnes = Annotated[list[tuple[TokenId, float]], Meta(max_length=MAX_TOP_LOGPROBS)]
LikelyAfterNodes = Annotated[list[LikelyOnes], Meta(max_length=1 + MAX_DRAFT_TOKENS)]


class TokenLogprob(msgspec.Struct, frozen=True):
    """The target's log-probability of one generated token, and of the most likely tokens at that position."""

    token_id: TokenId
    logprob: float
    top: LikelyOnes  # (token id, log-probability), most likely first
    text_offset: Annotated[int, Meta(ge=0)] = 0  # characters of the answer before this token's; a stop may cut later


class PromptLogprob(msgspec.Struct, frozen=True):
    """The target's log-probability of one token of a prompt, and of the most likely tokens at that position."""

    token_id: TokenId
    logprob: float
    rank: int  # 1 + the number of likelier tokens
    top: LikelyOnes  # (token id, log-probability), most likely first


class Verified(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the target says to a client's draft, beside the tokens that it emits."""

    accepted_nodes: Annotated[list[int], Meta(max_length=MAX_DRAFT_TOKENS)]  # ancestors first
    tops: LikelyAfterNodes = []  # after the prompt and after each node, as `top` of TokenLogprob


class EngineOutput(Message, frozen=True):
    """target -> gateway: what one round, or one chunk of the prompt, added to a request.

    An output has tokens, or else log-probabilities of the prompt: all of its tokens but the first, in order, which come
    before the answer. `text` contains only whole characters that cannot become part of a stop string. The last output
    of a request has `finish_reason` and the request's statistics.
    """

    request_id: RequestName
    token_ids: TokenIdList
    text: str
    logprobs: list[TokenLogprob] | None = None
    finish_reason: Literal["stop", "length", "abort", "error"] | None = None
    stop_reason: int | str | None = None  # the stop token id or stop string that ended the answer
    stats: RequestStats | None = None
    prompt_logprobs: list[PromptLogprob] | None = None
    verified: Verified | None = None


class Rejected(Message, frozen=True):
    """target -> gateway: the request will not run."""

    request_id: RequestName
    message: str
    param: str | None = None
    status: Annotated[int, Meta(ge=400, le=599)] = 400  # HTTP status
    retry_after_s: Seconds | None = None
