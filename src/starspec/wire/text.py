"""Text of a peer, made safe for logs and error messages."""

from __future__ import annotations

from typing import Final

MAX_TEXT_LEN: Final = 300  # characters


def readable(text: str) -> str:
    """The text with at most MAX_TEXT_LEN characters, and with escapes for everything that is not printable.

    A peer's text could otherwise fill a log, begin new lines in it, or send commands to the terminal that shows it.
    """
    clipped = text[: MAX_TEXT_LEN + 1]
    if not clipped.isprintable():
        clipped = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in clipped)
    return clipped if len(clipped) <= MAX_TEXT_LEN else clipped[: MAX_TEXT_LEN - 3] + "..."
