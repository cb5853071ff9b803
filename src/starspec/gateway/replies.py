"""The response bodies: OpenAI's objects with vLLM's additions."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Raw, Struct, UnsetType

FinishReason = Literal["stop", "length", "tool_calls"]


class CompletionTokensDetails(Struct, frozen=True):
    accepted_prediction_tokens: int  # draft tokens from the request's prediction that became the answer's
    rejected_prediction_tokens: int  # those that did not; `completion_tokens` does not count them


class Usage(Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET


class SpeculativeMetrics(Struct, frozen=True, kw_only=True):
    """vLLM's `metrics.speculative_decoding`, summed over the answers of a request; the last two are our own."""

    mean_acceptance_length: float  # with the target's own token
    draft_acceptance_rate: float
    acceptance_histogram: list[int]  # [accepted tokens] -> speculative rounds
    num_spec_steps: int
    num_accepted_draft_tokens: int
    num_draft_tokens: int
    num_spec_tokens: int  # the speculation length
    lossless: bool  # false: verification was relaxed, as the request asked
    num_relaxed_tokens: int  # accepted draft tokens that strict verification refuses


class RequestMetrics(Struct, frozen=True, kw_only=True):
    """vLLM's `metrics`. Times describe one answer; they are null if there are several."""

    speculative_decoding: SpeculativeMetrics
    time_to_first_token_ms: float | None = None  # from the cache row to the first token
    generation_time_ms: float | None = None  # first token to last
    queue_time_ms: float | None = None  # arrival at the target to the cache row
    mean_itl_ms: float | None = None
    tokens_per_second: float | None = None  # after the first token


class TokenAlternative(Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TokenAlternative]


class ChatLogprobs(Struct, frozen=True):
    content: list[Raw]  # each a ChatTokenLogprob


class CompletionLogprobs(Struct, frozen=True):
    tokens: list[str]
    token_logprobs: list[float | None]  # null: the first token of a prompt, which nothing comes before
    top_logprobs: list[Raw | None]  # each an object, token -> log-probability
    text_offset: list[int]


class Choice(Struct, frozen=True, kw_only=True):
    """Base of complete choices and of stream chunks."""

    index: int
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class CompletionChoice(Choice, frozen=True, kw_only=True):
    text: str
    logprobs: CompletionLogprobs | None = None
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class PromptTokenLogprob(Struct, frozen=True):
    """vLLM's, of one token of a prompt or of a likely one in its place."""

    logprob: float
    rank: int  # 1 = the likeliest
    decoded_token: str


PromptLogprobs = list[Raw | None]
"""One object a token, token id -> PromptTokenLogprob; null for the first, which nothing comes before."""


class CalledFunction(Struct, frozen=True):
    """A whole call, or what a chunk adds to one."""

    arguments: str  # JSON
    name: str | UnsetType = UNSET


class ToolCall(Struct, frozen=True):
    function: CalledFunction
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    index: int | UnsetType = UNSET  # of a chunk


class AssistantMessage(Struct, frozen=True):
    content: str | None
    reasoning: str | UnsetType = UNSET  # vLLM's name
    role: Literal["assistant"] = "assistant"
    refusal: None = None
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChoice(Choice, frozen=True, kw_only=True):
    message: AssistantMessage
    logprobs: ChatLogprobs | None = None


class Delta(Struct, frozen=True):
    role: Literal["assistant"] | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET  # vLLM's name
    content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatDeltaChoice(Choice, frozen=True, kw_only=True):
    delta: Delta
    logprobs: ChatLogprobs | None = None


AnyChoice = CompletionChoice | ChatChoice | ChatDeltaChoice


class LikelyToken(Struct, frozen=True):
    token_id: int
    token: str
    logprob: float


class VerifiedPlace(Struct, frozen=True):
    node: int  # of the draft; -1 = behind the prompt
    top_logprobs: list[LikelyToken]  # of the token that follows, likeliest first


class Verification(Struct, frozen=True, kw_only=True):
    """The verdict about a client's draft."""

    id: str
    object: Literal["verification"] = "verification"
    created: int
    model: str
    system_fingerprint: str
    accepted_length: int  # draft tokens that the target would have emitted, too
    accepted_nodes: list[int]  # their places in the draft, ancestors first
    token_ids: list[int]  # the accepted ones, and then the target's own
    next_token_id: int  # the last of them
    next_token: str
    places: list[VerifiedPlace] | UnsetType = UNSET
    usage: Usage


class Reply(Struct, frozen=True, kw_only=True):
    """A whole response, or one chunk of a stream."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[AnyChoice]
    usage: Usage | UnsetType | None = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET  # of a chat, whose prompt all choices share
    metrics: RequestMetrics | UnsetType = UNSET
