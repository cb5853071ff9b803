"""How logs, errors and terminals show what clients and peers sent: without characters that do harm.

Their text could otherwise fill a log, begin new lines in it, or send commands to the terminal that shows it.
"""

from __future__ import annotations

import unicodedata
from itertools import takewhile
from typing import Final

MAX_QUOTED: Final = 200  # characters of a client's input in one error
MAX_TEXT_LEN: Final = 300  # characters of a peer's text
KEPT: Final = "\n\t\u200c\u200d"  # lines and tabs; joiners, of which words and emoji are made
SPACES: Final = "Zs"  # the category of spaces of all widths


def shortened(text: str, most: int = MAX_QUOTED) -> str:
    """The text, or its beginning and `...`; `most` characters at most."""
    return text if len(text) <= most else text[: most - 3] + "..."


def quoted(value: object) -> str:
    """A client's value as Python writes it, in ASCII, shortened."""
    return shortened(ascii(_beginning(value, [MAX_QUOTED])))


def _beginning(value: object, left: list[int]) -> object:
    """As much of a value as a quotation shows: to write all of it could hold Python's lock for a tenth of a second.

    Args:
        left: how many values more are of use; counted down.
    """
    left[0] -= 1
    if isinstance(value, str):
        return value[:MAX_QUOTED]
    if isinstance(value, list):
        return [_beginning(each, left) for each in takewhile(lambda _: left[0] > 0, value)]
    if isinstance(value, dict):
        items = takewhile(lambda _: left[0] > 0, value.items())
        return {_beginning(key, left): _beginning(each, left) for key, each in items}
    return value


def is_unicode(text: str) -> bool:
    """False for a text with half of a surrogate pair, as Python reads a byte that is not UTF-8. It cannot be sent."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def sendable(text: str) -> str:
    """The text with ? for halves of surrogate pairs, which no message can carry."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def escaped(text: str) -> str:
    """A text that any file takes. Bytes that are not UTF-8, in Python halves of surrogate pairs, become escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def readable(text: str) -> str:
    """A peer's text with at most MAX_TEXT_LEN characters, and with escapes for everything that is not printable."""
    clipped = text[: MAX_TEXT_LEN + 1]
    if not clipped.isprintable():
        clipped = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in clipped)
    return shortened(clipped, MAX_TEXT_LEN)


def harmless(text: str) -> str:
    """A text of any length for a terminal, as it is but for escapes that show what could command the terminal.

    Pieces of a text may be given one by one: each character stands for itself.
    """
    return "".join(each if _is_harmless(each) else each.encode("unicode_escape").decode() for each in text)


def _is_harmless(character: str) -> bool:
    return character.isprintable() or character in KEPT or unicodedata.category(character) == SPACES
