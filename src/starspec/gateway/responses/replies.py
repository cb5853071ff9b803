"""The response bodies and events of `/v1/responses`."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from starspec.gateway.replies import RequestMetrics

Status = Literal["in_progress", "completed", "incomplete"]


class OutputText(Struct, frozen=True):
    text: str
    type: Literal["output_text"] = "output_text"
    annotations: tuple[()] = ()
    logprobs: tuple[()] = ()


class ReasoningText(Struct, frozen=True):
    text: str
    type: Literal["reasoning_text"] = "reasoning_text"


class Message(Struct, frozen=True):
    id: str
    status: Status
    content: list[OutputText]
    role: Literal["assistant"] = "assistant"
    type: Literal["message"] = "message"


class Reasoning(Struct, frozen=True):
    id: str
    status: Status
    content: list[ReasoningText]
    summary: tuple[()] = ()
    type: Literal["reasoning"] = "reasoning"


class Call(Struct, frozen=True):
    id: str
    status: Status
    call_id: str
    name: str
    arguments: str  # JSON
    type: Literal["function_call"] = "function_call"


OutputItem = Message | Reasoning | Call


class InputDetails(Struct, frozen=True):
    cached_tokens: int = 0
    cache_write_tokens: int = 0


class OutputDetails(Struct, frozen=True):
    reasoning_tokens: int = 0  # they are not counted apart


class ResponseUsage(Struct, frozen=True):
    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: InputDetails = InputDetails()
    output_tokens_details: OutputDetails = OutputDetails()


class Incomplete(Struct, frozen=True):
    reason: Literal["max_output_tokens"] = "max_output_tokens"


class ResponseObject(Struct, frozen=True, kw_only=True):
    """A response, with what its request said."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: Status
    model: str
    output: list[OutputItem]
    incomplete_details: Incomplete | None = None
    usage: ResponseUsage | None = None
    metrics: RequestMetrics | UnsetType = UNSET
    error: None = None
    store: Literal[False] = False
    background: Literal[False] = False
    previous_response_id: None = None
    truncation: Literal["disabled"] = "disabled"
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    temperature: float | None
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_p: float | None


class Event(Struct, kw_only=True):
    """One event of a stream. What its type does not have is unset."""

    type: str
    sequence_number: int = 0
    response: ResponseObject | UnsetType = UNSET
    output_index: int | UnsetType = UNSET
    item_id: str | UnsetType = UNSET
    content_index: int | UnsetType = UNSET
    item: OutputItem | UnsetType = UNSET
    part: OutputText | ReasoningText | UnsetType = UNSET
    delta: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    logprobs: tuple[()] | UnsetType = UNSET
