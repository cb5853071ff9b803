"""The text of one chat answer, whole or in pieces, as messages and deltas tell it."""

from __future__ import annotations

import secrets

from msgspec import UNSET, UnsetType

from starspec.gateway.generation_request import ReplyOptions
from starspec.gateway.reasoning import ReasoningReader
from starspec.gateway.replies import AssistantMessage, CalledFunction, Delta, FinishReason, ToolCall
from starspec.gateway.tool_reader import CallPiece, Pieces, ToolReader


class ChatText:
    """Tells reasoning, text and tool calls apart. The deltas of a text join to its message, however it is cut."""

    def __init__(self, options: ReplyOptions) -> None:
        self._reasoning = ReasoningReader(options.thinking) if options.thinking is not None else None
        self._is_reasoning_told = options.is_reasoning_told
        self._tools = ToolReader(options.tool_use) if options.tool_use is not None else None
        self._has_calls = False

    def delta(self, text: str, *, is_last: bool) -> Delta:
        """What the next piece of the text adds."""
        reasoning, pieces = self._read(text, is_last)
        calls: list[ToolCall] | UnsetType = [_delta_of(each) for each in pieces.calls] or UNSET
        return Delta(reasoning=reasoning or UNSET, content=pieces.content or UNSET, tool_calls=calls)

    def deltas(self, text: str, *, is_last: bool) -> list[Delta]:
        """As `delta`, with each part apart, in the order of the text."""
        reasoning, pieces = self._read(text, is_last)
        deltas = [Delta(reasoning=reasoning)] if reasoning else []
        for part in pieces.parts:
            deltas.append(Delta(content=part) if isinstance(part, str) else Delta(tool_calls=[_delta_of(part)]))
        return deltas

    def message(self, text: str) -> AssistantMessage:
        """The message of a whole text."""
        reasoning, pieces = self._read(text, True)
        if not pieces.calls:
            return AssistantMessage(pieces.content if not reasoning else pieces.content or None, reasoning or UNSET)
        calls = [
            ToolCall(CalledFunction(each.arguments, each.name or ""), _new_id(), "function") for each in pieces.calls
        ]
        return AssistantMessage(pieces.content or None, reasoning or UNSET, tool_calls=calls)

    def reason(self, reason: FinishReason | None) -> FinishReason | None:
        """Why the answer ended, as far as it has been read."""
        return "tool_calls" if reason == "stop" and self._has_calls else reason

    def _read(self, text: str, is_last: bool) -> tuple[str, Pieces]:
        reasoning = ""
        if self._reasoning is not None:
            reasoning, text = self._reasoning.feed(text, is_last=is_last)
        pieces = Pieces(text) if self._tools is None else self._tools.feed(text, is_last=is_last)
        self._has_calls |= bool(pieces.calls)
        return reasoning if self._is_reasoning_told else "", pieces


def _delta_of(piece: CallPiece) -> ToolCall:
    """A call's first delta names it."""
    if piece.name is None:
        return ToolCall(CalledFunction(piece.arguments), index=piece.index)
    return ToolCall(CalledFunction(piece.arguments, piece.name), _new_id(), "function", piece.index)


def _new_id() -> str:
    return f"call_{secrets.token_hex(12)}"
