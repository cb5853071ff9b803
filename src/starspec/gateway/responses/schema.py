"""The request body of `/v1/responses`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from starspec.gateway.schema import (
    MAX_MESSAGES,
    MAX_PARTS,
    MAX_TOOLS,
    Body,
    DrawFields,
    Function,
    Known,
    Limit,
    Spelled,
    Text,
    at_most,
    encodable,
    known_role,
    switch_or_object,
)


class InputText(Body):
    """A part of a message; an assistant's say `output_text`."""

    type: Literal["input_text", "output_text", "text"]
    text: Text


Parts = Text | Annotated[list[InputText], Field(fail_fast=True, max_length=MAX_PARTS)]


class MessageItem(Spelled):
    type: Literal["message"] = "message"
    role: Annotated[Text, AfterValidator(known_role)]
    content: Parts


class CallItem(Spelled):
    """A call that an assistant has made before."""

    type: Literal["function_call"]
    call_id: Text
    name: Text
    arguments: Text  # JSON


class CallOutputItem(Spelled):
    type: Literal["function_call_output"]
    call_id: Text
    output: Parts


class ReasoningText(Body):
    type: Literal["reasoning_text"]
    text: Text


class ReasoningItem(Spelled):
    """What an assistant has thought before."""

    type: Literal["reasoning"]
    content: Annotated[list[ReasoningText], Field(fail_fast=True, max_length=MAX_PARTS)] | None = None
    summary: list[Any] | None = None
    encrypted_content: Text | None = None

    @model_validator(mode="after")
    def _can_be_read(self) -> Self:
        if not self.content and (self.summary or self.encrypted_content):
            raise ValueError("this server reads the content of reasoning only, and here is none: leave the item out")
        return self


Item = MessageItem | CallItem | CallOutputItem | ReasoningItem
ITEMS: Final[Mapping[str, type[Item]]] = {
    "message": MessageItem,
    "function_call": CallItem,
    "function_call_output": CallOutputItem,
    "reasoning": ReasoningItem,
}


class ToolKind(Body):
    type: Literal["function"]


class FlatTool(Function, ToolKind):  # its type is checked first
    """A function, as this API has it: without the object around it that chats have."""


class FlatToolName(Known):
    """The tool that is to be called."""

    type: Literal["function"]
    name: Text


class TextFormat(Known):
    """The form of the answer. All but its type is of `json_schema`."""

    type: Literal["text", "json_object", "json_schema"]
    name: Text | None = None
    description: Text | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None

    @model_validator(mode="after")
    def _only_a_json_schema_has_one(self) -> Self:
        """The response would repeat it, however long it is; that of a `json_schema` has a limit."""
        if self.schema_ is not None and self.type != "json_schema":
            raise ValueError("a schema is for type 'json_schema': ask for that type, or leave the schema out")
        return self


class TextConfig(Known):
    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None


class ResponseStreamOptions(Known):
    include_obfuscation: Literal[False] | None = None


Metadata = Annotated[  # the limits are OpenAI's
    dict[
        Annotated[str, Field(max_length=64), AfterValidator(encodable)],
        Annotated[str, Field(max_length=512), AfterValidator(encodable)],
    ],
    at_most(16),
]


class ResponsesRequest(DrawFields):
    input: Text | Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    instructions: Text | None = None
    max_output_tokens: Limit | None = None
    tools: Annotated[list[FlatTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: Literal["none", "auto", "required"] | FlatToolName | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    include_reasoning: bool | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    metadata: Metadata | None = None  # comes back with the response
    chat_template_kwargs: dict[str, Any] | None = None
    speculative: Annotated[bool | dict[str, Any] | None, BeforeValidator(switch_or_object)] = None
    user: str | None = None  # accepted for compatibility and not used
