"""How errors quote what a client sent: at most 200 characters of it."""

from __future__ import annotations

from typing import Final

MAX_QUOTED: Final = 200  # characters of input in one error
MAX_MESSAGE: Final = 1000  # characters of an error in all


def shortened(text: str, most: int = MAX_QUOTED) -> str:
    """The text, or its beginning and `...`; `most` characters at most."""
    return text if len(text) <= most else text[: most - 3] + "..."


def quoted(value: object) -> str:
    """A value as Python writes it, in ASCII, shortened."""
    return shortened(ascii(value[:MAX_QUOTED]) if isinstance(value, str) else ascii(value))
