"""What an answer may say: a grammar, as a request states it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

GrammarKind = Literal["json", "regex", "choice", "grammar"]

MAX_GRAMMAR_BYTES: Final = 2**15  # of the text, in UTF-8; compiling takes the square of it at worst
QUICK_DIGITS: Final = 400  # an integer of more takes longer to be written than a text: the square of its digits
MAX_FLOATS: Final = 2**14  # of a few bytes each, but to write so many takes 25 ms


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


def check_size(value: Any, most: int = MAX_GRAMMAR_BYTES) -> None:
    """Check whether the JSON of a value can be so short, before it is written: that holds Python's lock to its end.

    An integer of thousands of digits counts as a text that takes as long to be written, and few floats may be there.

    Args:
        most: bytes.
    Raises: ValueError.
    """
    num_bytes, num_floats, left = 0, 0, [value]
    while left:
        each = left.pop()
        num_bytes += 1
        if isinstance(each, str):
            num_bytes += len(each)
        elif isinstance(each, int):
            num_digits = each.bit_length() * 3 // 10  # nearly
            num_bytes += max(num_digits, num_digits**2 // QUICK_DIGITS)
        elif isinstance(each, float):
            num_floats += 1
        elif isinstance(each, Mapping):
            left += [*each.keys(), *each.values()]
        elif isinstance(each, Sequence):
            left += each
        if num_bytes > most:
            raise ValueError(f"has more than the {most} bytes that are allowed")
    if num_floats > MAX_FLOATS:
        raise ValueError(f"has {num_floats} numbers with a fraction or an exponent; {MAX_FLOATS} are allowed")
