"""What an answer may say: a grammar, as a request states it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

GrammarKind = Literal["json", "regex", "choice", "grammar"]

MAX_GRAMMAR_BYTES: Final = 2**15  # of the text, in UTF-8; compiling takes the square of it at worst


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """The grammar of one answer, as text. The wire carries it to the target, which compiles it.

    Raises: ValueError if the text is too long.
    """

    kind: GrammarKind
    text: (
        str  # json: a JSON schema; regex: one of the whole answer; choice: a JSON list of strings; grammar: Lark, GBNF
    )

    def __post_init__(self) -> None:
        num_bytes = len(self.text.encode())
        if num_bytes > MAX_GRAMMAR_BYTES:
            raise ValueError(f"has {num_bytes} bytes; {MAX_GRAMMAR_BYTES} are allowed")
