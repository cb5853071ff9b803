"""The tool calls in an answer's text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from starspec.gateway.reasoning import held
from starspec.gateway.tools import ToolUse

PYTHON_TAG: Final = "<|python_tag|>"  # Llama 3 writes it in front of some calls


@dataclass(frozen=True, slots=True)
class CallPiece:
    """What a piece of text adds to one call."""

    index: int
    name: str | None  # with a call's first piece
    arguments: str  # JSON, which the pieces of a call join to


class Pieces:
    """What a piece of an answer's text consists of: texts and pieces of calls, in their order."""

    def __init__(self, text: str = "") -> None:
        self.parts: list[str | CallPiece] = [text] if text else []

    @property
    def content(self) -> str:
        """All that is not part of a call."""
        return "".join(each for each in self.parts if isinstance(each, str))

    @property
    def calls(self) -> list[CallPiece]:
        """One for each call."""
        merged = Pieces()
        for each in self.parts:
            if isinstance(each, CallPiece):
                merged.add_call(each)
        return [each for each in merged.parts if isinstance(each, CallPiece)]

    def add_text(self, text: str) -> None:
        """Append a text, to the last part if that is one."""
        if not text:
            return
        before = self.parts.pop() if self.parts and isinstance(self.parts[-1], str) else ""
        self.parts.append(f"{before}{text}")

    def add_call(self, piece: CallPiece) -> None:
        """Append a piece, to the last part if both are of the same call."""
        last = self.parts[-1] if self.parts else None
        if isinstance(last, CallPiece) and last.index == piece.index:
            piece = CallPiece(piece.index, last.name, last.arguments + piece.arguments)
            self.parts.pop()
        self.parts.append(piece)


class NotACall(Exception):
    """A text that began like a call goes on otherwise."""


class ToolReader:
    """Finds the calls in an answer's text, piece by piece. Any cut of a text into pieces gives the same.

    A text that only looks like a call until its name is known is content. White space around calls is dropped.
    """

    def __init__(self, use: ToolUse) -> None:
        self._syntax = use.syntax
        self._most = use.most
        self._num_calls = 0
        self._rest = ""  # text about which nothing is decided yet
        self._call: _Call | None = None  # that is being read
        self._is_behind_call = False
        self._may_begin = True  # a call without an opening text

    def feed(self, text: str, *, is_last: bool) -> Pieces:
        """Read on."""
        self._rest += text
        pieces = Pieces()
        while self._step(pieces, is_last):
            pass
        return pieces

    def _step(self, pieces: Pieces, is_last: bool) -> bool:
        """Returns: whether there may be more to do."""
        if self._call is not None:
            return self._read_call(self._call, pieces, is_last)
        if self._is_behind_call:
            return self._leave_call(is_last)
        if self._syntax.opening:
            return self._find_opening(pieces, is_last)
        return self._find_object(pieces, is_last)

    def _find_opening(self, pieces: Pieces, is_last: bool) -> bool:
        opening = self._syntax.opening
        before, found, after = self._rest.partition(opening)
        if found:
            pieces.add_text(before.rstrip())
            self._call, self._rest = _Call(before[len(before.rstrip()) :] + opening, self._syntax.arguments_key), after
            return True
        if is_last:
            pieces.add_text("" if self._num_calls and not self._rest.strip() else self._rest)
            self._rest = ""
            return False
        sure = self._rest[: len(self._rest) - held(self._rest, opening)].rstrip()
        pieces.add_text(sure)
        self._rest = self._rest[len(sure) :]
        return False

    def _find_object(self, pieces: Pieces, is_last: bool) -> bool:
        """Of a syntax without an opening text: an object at the beginning, or right behind another call."""
        text = self._rest.lstrip().removeprefix(PYTHON_TAG).lstrip()
        if self._may_begin and text.startswith("{"):
            skipped = self._rest[: len(self._rest) - len(text)]
            self._call, self._rest = _Call(skipped, self._syntax.arguments_key), text
            return True
        if self._may_begin and not is_last and (not text or PYTHON_TAG.startswith(text)):
            return False
        self._may_begin = False
        if not self._num_calls:  # behind calls there is nothing else
            pieces.add_text(self._rest)
        self._rest = ""
        return False

    def _read_call(self, call: _Call, pieces: Pieces, is_last: bool) -> bool:
        rest, self._rest = self._rest, ""
        try:
            for place, char in enumerate(rest):
                if call.is_over:
                    self._rest = rest[place:]
                    break
                call.read(char)
        except NotACall:
            self._tell(call, pieces)
            self._call, self._may_begin = None, False
            self._is_behind_call = call.is_told
            if not call.is_told:
                pieces.add_text(call.text[:-1])
            self._num_calls += call.is_told
            self._rest = rest[place:]
            return True
        self._tell(call, pieces)
        if call.is_over or is_last:
            self._call, self._is_behind_call = None, True
            if not call.is_told:
                self._is_behind_call, self._may_begin = False, False
                pieces.add_text(call.text)
            self._num_calls += call.is_told
            return True
        return False

    def _tell(self, call: _Call, pieces: Pieces) -> None:
        if call.name is None:
            return
        is_first, arguments = not call.is_told, call.take_arguments()
        if (is_first or arguments) and self._num_calls < self._most:
            pieces.add_call(CallPiece(self._num_calls, call.name if is_first else None, arguments))
        call.is_told = True

    def _leave_call(self, is_last: bool) -> bool:
        """Skip what is behind a call's object: its closing text, or a separator."""
        text, closing = self._rest.lstrip(), self._syntax.closing or ";"
        if text.startswith(closing):
            self._rest = text[len(closing) :]
        elif closing.startswith(text):
            if not is_last:
                return False
            self._rest = ""
        self._is_behind_call, self._may_begin = False, True
        return True


class _Call:
    """One call's JSON object, read character by character.

    What has been read is in lists: a text that grows by each character would be copied each time.

    Args:
        skipped: text in front of it.
    """

    def __init__(self, skipped: str, arguments_key: str) -> None:
        self._text = [skipped]  # all of it, so far
        self.name: str | None = None
        self.is_over = False
        self.is_told = False
        self._arguments_key = arguments_key
        self._arguments: list[str] = []  # that nobody took yet
        self._has_arguments = False
        self._depth = 0
        self._is_in_string = self._is_escaped = False
        self._key: str | None = None  # whose value is read
        self._raw: list[str] = []  # the key or the value, so far

    @property
    def text(self) -> str:
        """All of it, so far."""
        return "".join(self._text)

    def read(self, char: str) -> None:
        """Raises: NotACall."""
        self._text.append(char)
        if self._depth == 0:
            if char == "{":
                self._depth = 1
            elif not char.isspace():
                raise NotACall
        elif self._is_in_string:
            self._add(char)
            self._is_in_string = self._is_escaped or char != '"'
            self._is_escaped = char == "\\" and not self._is_escaped
        elif char == '"':
            self._is_in_string = True
            self._add(char)
        elif self._depth == 1 and char in ":,}":
            self._end_part(char)
        else:
            self._depth += (char in "{[") - (char in "}]")
            if self._depth < 1:
                raise NotACall
            self._add(char)

    def take_arguments(self) -> str:
        """Those since the last time. An object that ends without arguments has empty ones."""
        taken, self._arguments = "".join(self._arguments), []
        if self.is_over and not self._has_arguments:
            self._has_arguments = True
            return "{}"
        return taken

    @property
    def _is_string(self) -> bool:
        return self._raw[:1] == ['"']

    def _add(self, char: str) -> None:
        if not self._raw and char.isspace():
            return
        self._raw.append(char)
        if self._key == self._arguments_key and not self._is_string and not (self._depth == 1 and char.isspace()):
            self._has_arguments = True
            self._arguments.append(char)

    def _end_part(self, char: str) -> None:
        """A key, a value or the object ends."""
        is_empty = char == "}" and self._key is None and not self._raw
        if char == ":":
            if self._key is not None:
                raise NotACall
            self._key = _string("".join(self._raw))
        elif not is_empty:
            self._end_value()
        self._raw = []
        self.is_over = char == "}"

    def _end_value(self) -> None:
        if self._key is None or not self._raw:
            raise NotACall
        if self._key == "name":
            self.name = _string("".join(self._raw))
        elif self._key == self._arguments_key and self._is_string:  # some models write the JSON as a string
            self._has_arguments = True
            self._arguments = [_string("".join(self._raw))]
        self._key = None


def _string(raw: str) -> str:
    """Raises: NotACall if it is not a JSON string."""
    try:
        text = json.loads(raw)
    except ValueError:
        raise NotACall from None
    if not isinstance(text, str):
        raise NotACall
    return text
