"""The output of a response: items, made of the deltas of a chat's answer, and the events that tell of them."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from typing import Final, Protocol

from msgspec import UNSET

from starspec.gateway.replies import Delta, ToolCall
from starspec.gateway.responses.replies import (
    Call,
    Event,
    Message,
    OutputItem,
    OutputText,
    Reasoning,
    ReasoningText,
    Status,
)

ITEM_ADDED: Final = "response.output_item.added"
ITEM_DONE: Final = "response.output_item.done"


class OpenItem(Protocol):
    """An item that may still grow."""

    def opening(self) -> Iterator[Event]: ...

    def more(self, piece: str) -> Event: ...

    def closing(self, status: Status) -> Iterator[Event]: ...

    def item(self, status: Status) -> OutputItem: ...


class OpenText:
    """A message, or the reasoning before it. Each has one part."""

    def __init__(self, index: int, *, is_reasoning: bool) -> None:
        self.is_reasoning = is_reasoning
        self._index = index
        self._id = _new_id("rs" if is_reasoning else "msg")
        self._text = ""

    def opening(self) -> Iterator[Event]:
        yield Event(type=ITEM_ADDED, output_index=self._index, item=self._item("in_progress", has_part=False))
        yield self._event("response.content_part.added", is_part=True)

    def more(self, piece: str) -> Event:
        event = self._event(f"response.{self._kind}.delta")
        event.delta = piece
        self._text += piece
        return event

    def closing(self, status: Status) -> Iterator[Event]:
        event = self._event(f"response.{self._kind}.done")
        event.text = self._text
        yield event
        yield self._event("response.content_part.done", is_part=True)
        yield Event(type=ITEM_DONE, output_index=self._index, item=self.item(status))

    def item(self, status: Status) -> OutputItem:
        return self._item(status, has_part=True)

    @property
    def _kind(self) -> str:
        return "reasoning_text" if self.is_reasoning else "output_text"

    def _event(self, kind: str, *, is_part: bool = False) -> Event:
        event = Event(type=kind, output_index=self._index, item_id=self._id, content_index=0)
        if is_part:
            event.part = ReasoningText(self._text) if self.is_reasoning else OutputText(self._text)
        elif not self.is_reasoning:
            event.logprobs = ()
        return event

    def _item(self, status: Status, *, has_part: bool) -> OutputItem:
        if self.is_reasoning:
            return Reasoning(self._id, status, [ReasoningText(self._text)] if has_part else [])
        return Message(self._id, status, [OutputText(self._text)] if has_part else [])


class OpenCall:
    """A call of a function."""

    def __init__(self, index: int, call_id: str, name: str) -> None:
        self._index = index
        self._id, self._call_id = _new_id("fc"), call_id
        self._name = name
        self._arguments = ""

    def opening(self) -> Iterator[Event]:
        yield Event(type=ITEM_ADDED, output_index=self._index, item=self.item("in_progress"))

    def more(self, piece: str) -> Event:
        self._arguments += piece
        kind = "response.function_call_arguments.delta"
        return Event(type=kind, output_index=self._index, item_id=self._id, delta=piece)

    def closing(self, status: Status) -> Iterator[Event]:
        yield Event(
            type="response.function_call_arguments.done",
            output_index=self._index,
            item_id=self._id,
            name=self._name,
            arguments=self._arguments,
        )
        yield Event(type=ITEM_DONE, output_index=self._index, item=self.item(status))

    def item(self, status: Status) -> OutputItem:
        return Call(self._id, status, self._call_id, self._name, self._arguments)


class ResponseOutput:
    """Takes the deltas of an answer, and gives the events that they cause. The items are the sum of the events."""

    def __init__(self) -> None:
        self.items = list[OutputItem]()  # those that are closed
        self._open: OpenItem | None = None

    def add(self, deltas: Iterable[Delta]) -> Iterator[Event]:
        """Iterate to the end, or the items lack a part of it. Args: deltas: as `ChatText.deltas`."""
        for delta in deltas:
            if delta.reasoning is not UNSET:
                yield from self._add_text(delta.reasoning, is_reasoning=True)
            if delta.content is not UNSET:
                yield from self._add_text(delta.content, is_reasoning=False)
            for call in [] if delta.tool_calls is UNSET else delta.tool_calls:
                yield from self._add_call(call)

    def end(self, status: Status) -> Iterator[Event]:
        """The answer is over, with at least one item. Args: status: of the last item."""
        if self._open is None:
            yield from self._begin(OpenText(0, is_reasoning=False))
        yield from self._close(status)

    def _add_text(self, text: str, *, is_reasoning: bool) -> Iterator[Event]:
        if not (isinstance(self._open, OpenText) and self._open.is_reasoning == is_reasoning):
            yield from self._close("completed")
            yield from self._begin(OpenText(len(self.items), is_reasoning=is_reasoning))
        assert self._open is not None
        yield self._open.more(text)

    def _add_call(self, call: ToolCall) -> Iterator[Event]:
        """A call's first delta has its id."""
        if call.id is not UNSET and call.function.name is not UNSET:
            yield from self._close("completed")
            yield from self._begin(OpenCall(len(self.items), call.id, call.function.name))
        assert self._open is not None
        if call.function.arguments:
            yield self._open.more(call.function.arguments)

    def _begin(self, item: OpenItem) -> Iterator[Event]:
        self._open = item
        yield from item.opening()

    def _close(self, status: Status) -> Iterator[Event]:
        if self._open is not None:
            yield from self._open.closing(status)
            self.items.append(self._open.item(status))
            self._open = None


def _new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(12)}"
