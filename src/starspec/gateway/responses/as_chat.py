"""From the body of `/v1/responses` to the chat that it stands for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from starspec.errors import ContextTooLong, RequestError
from starspec.gateway.request_body import checked
from starspec.gateway.responses.schema import (
    ITEMS,
    CallItem,
    CallOutputItem,
    FlatToolName,
    Item,
    MessageItem,
    Parts,
    ReasoningItem,
    ResponsesRequest,
    TextFormat,
)
from starspec.gateway.schema import (
    ChatCompletionRequest,
    ChatMessage,
    DrawFields,
    Function,
    FunctionCall,
    FunctionName,
    FunctionTool,
    NamedTool,
    ToolCall,
)
from starspec.gateway.tools import check_schemas
from starspec.quoting import quoted

SAME: Final = (
    *DrawFields.model_fields,
    "parallel_tool_calls",
    "include_reasoning",
    "stream",
    "chat_template_kwargs",
    "speculative",
)
RENAMED: Final[Mapping[str, str]] = {  # the beginning of a chat's parameter -> what this API calls it
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
    "structured_outputs": "text.format",
}
PART_OF_A_MESSAGE: Final = re.compile(r"messages\[\d+\]\.")  # messages are not numbered as items are


def as_chat(request: ResponsesRequest) -> ChatCompletionRequest:
    """The chat. Raises: RequestError that names what is at fault."""
    check_schemas(request.tools or ())
    return ChatCompletionRequest.model_construct(
        messages=_messages(request),
        max_completion_tokens=request.max_output_tokens,
        tools=[_tool(each.model_dump(exclude={"type"})) for each in request.tools or []] or None,
        tool_choice=_choice(request.tool_choice),
        response_format=_response_format(request.text.format if request.text is not None else None),
        **{name: getattr(request, name) for name in SAME},
    )


@contextmanager
def naming() -> Iterator[None]:
    """Errors name parameters as this API does."""
    try:
        yield
    except RequestError as error:
        new = next((new for old, new in RENAMED.items() if (error.param or "").startswith(old)), None)
        if new is None or error.param is None:
            raise
        error_param = new + (".schema" if error.param.endswith(".schema") else "")
        of_item = PART_OF_A_MESSAGE.match(error.param)
        said = f"input: {error}".replace(of_item[0], "") if of_item else str(error).replace(error.param, error_param)
        if isinstance(error, ContextTooLong):  # its sentence names what holds the prompt, too
            said = said.replace("messages", "input")
        raise type(error)(said, error_param, error.status) from error


def _messages(request: ResponsesRequest) -> list[ChatMessage]:
    messages = list[ChatMessage]()
    if request.instructions is not None:
        messages.append(_message("system", request.instructions))
    if isinstance(request.input, str):
        return [*messages, _message("user", request.input)]
    turn = _Turn()
    for index, given in enumerate(request.input):
        item = _item(index, given)
        is_next = isinstance(item, CallOutputItem) or (isinstance(item, MessageItem) and item.role != "assistant")
        if is_next or (turn.is_said and not isinstance(item, CallItem)):
            messages += turn.messages()
            turn = _Turn()
        match item:
            case CallOutputItem(call_id=call_id, output=output):
                messages.append(_message("tool", _text(output), tool_call_id=call_id))
            case MessageItem(role=role, content=content) if is_next:
                messages.append(_message(role, _text(content)))
            case _:
                turn.add(item)
    return [*messages, *turn.messages()]


class _Turn:
    """What an assistant has thought, said and called, in this order: one message of a chat."""

    def __init__(self) -> None:
        self._reasoning = ""
        self._content: str | None = None
        self._calls = list[ToolCall]()

    @property
    def is_said(self) -> bool:
        """Whether thoughts and texts belong to another message."""
        return self._content is not None or bool(self._calls)

    def add(self, item: Item) -> None:
        match item:
            case ReasoningItem(content=content):
                self._reasoning += "".join(part.text for part in content or [])
            case MessageItem(content=content):
                self._content = _text(content)
            case CallItem(call_id=call_id, name=name, arguments=arguments):
                called = FunctionCall.model_construct(name=name, arguments=arguments)
                self._calls.append(ToolCall.model_construct(id=call_id, function=called))

    def messages(self) -> list[ChatMessage]:
        if not (self.is_said or self._reasoning):
            return []
        more = {"tool_calls": self._calls or None, "reasoning": self._reasoning or None}
        return [_message("assistant", self._content, **more)]


def _item(index: int, given: Mapping[str, Any]) -> Item:
    """Raises: RequestError that names what is wrong in it."""
    kind = given.get("type") or "message"
    if not isinstance(kind, str) or kind not in ITEMS:
        name = f"input[{index}].type"
        raise RequestError(f"{name} must be one of {', '.join(ITEMS)}, not {quoted(kind)}", name)
    return checked(ITEMS[kind], given, ("input", index))


def _message(role: str, content: str | None, **more: Any) -> ChatMessage:
    return ChatMessage.model_construct(role=role, content=content, **more)


def _text(parts: Parts) -> str:
    return parts if isinstance(parts, str) else "\n".join(part.text for part in parts)


def _tool(function: Mapping[str, Any]) -> FunctionTool:
    return FunctionTool.model_construct(type="function", function=Function.model_construct(**function))


def _choice(given: Any) -> Any:
    if not isinstance(given, FlatToolName):
        return given
    return NamedTool.model_construct(type="function", function=FunctionName.model_construct(name=given.name))


def _response_format(given: TextFormat | None) -> dict[str, Any] | None:
    if given is None:
        return None
    if given.type == "json_schema":
        return {"type": given.type, "json_schema": {"name": given.name, "schema": given.schema_}}
    return {"type": given.type}
