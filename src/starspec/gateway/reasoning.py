"""What a model thinks before it answers, between `<think>` and `</think>`."""

from __future__ import annotations

from enum import Enum, auto
from typing import Final, NamedTuple

OPENING: Final = "<think>"
CLOSING: Final = "</think>"


class Thinking(Enum):
    """Where an answer begins."""

    MAY_BEGIN = auto()  # the answer may open with <think>
    HAS_BEGUN = auto()  # the prompt ends with it


class Thought(NamedTuple):
    """A piece of text, told apart."""

    reasoning: str
    content: str


def thinks(template: str | None) -> bool:
    """Whether a chat template is that of a model that thinks aloud."""
    return template is not None and CLOSING in template


def held(text: str, token: str) -> int:
    """Characters at the end of a text that may begin the token."""
    return next(num for num in range(len(token) - 1, -1, -1) if text.endswith(token[:num]))


class ReasoningReader:
    """Tells reasoning and answer apart, piece by piece. Any cut of a text into pieces gives the same."""

    def __init__(self, thinking: Thinking) -> None:
        self._is_inside = thinking is Thinking.HAS_BEGUN
        self._may_begin = thinking is Thinking.MAY_BEGIN
        self._rest = ""  # text about which nothing is decided yet

    def feed(self, text: str, *, is_last: bool) -> Thought:
        """Read on."""
        self._rest += text
        if self._may_begin and not self._begin(is_last):
            return Thought("", "")
        reasoning = self._inside(is_last) if self._is_inside else ""
        if self._is_inside:
            return Thought(reasoning, "")
        content, self._rest = self._rest, ""
        return Thought(reasoning, content)

    def _begin(self, is_last: bool) -> bool:
        """Returns: whether it is decided that the answer opens with reasoning, or does not."""
        start = self._rest.lstrip()
        if not is_last and len(start) < len(OPENING) and OPENING.startswith(start):
            return False
        self._may_begin, self._is_inside = False, start.startswith(OPENING)
        if self._is_inside:
            self._rest = start[len(OPENING) :]
        return True

    def _inside(self, is_last: bool) -> str:
        reasoning, found, after = self._rest.partition(CLOSING)
        if found:
            self._is_inside, self._rest = False, after
            return reasoning
        num_held = 0 if is_last else held(self._rest, CLOSING)
        sure = self._rest[: len(self._rest) - num_held]
        self._rest = self._rest[len(sure) :]
        return sure
