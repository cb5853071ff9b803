"""How logs and errors quote what clients and peers sent: shortened, and without characters that do harm.

Their text could otherwise fill a log, begin new lines in it, or send commands to the terminal that shows it.
"""

from __future__ import annotations

from typing import Final

MAX_QUOTED: Final = 200  # characters of a client's input in one error
MAX_TEXT_LEN: Final = 300  # characters of a peer's text


def shortened(text: str, most: int = MAX_QUOTED) -> str:
    """The text, or its beginning and `...`; `most` characters at most."""
    return text if len(text) <= most else text[: most - 3] + "..."


def quoted(value: object) -> str:
    """A client's value as Python writes it, in ASCII, shortened."""
    return shortened(ascii(value[:MAX_QUOTED]) if isinstance(value, str) else ascii(value))


def readable(text: str) -> str:
    """A peer's text with at most MAX_TEXT_LEN characters, and with escapes for everything that is not printable."""
    clipped = text[: MAX_TEXT_LEN + 1]
    if not clipped.isprintable():
        clipped = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in clipped)
    return shortened(clipped, MAX_TEXT_LEN)
