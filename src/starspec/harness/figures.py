"""What all pictures of measurements share: the optional dependency, and saving."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from starspec.errors import ConfigError
from starspec.output_files import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")
COLOURS: Final = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#000000")
"""Okabe and Ito's colours, which people with any colour vision tell apart."""
MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X")
"""A marker for each colour, so that a picture without colours can be read too."""


def look(number: int) -> dict[str, str]:
    """Colour and marker of a picture's line. After as many as there are colours, markers are hollow."""
    turn, place = divmod(number, len(COLOURS))
    filling = {"markerfacecolor": "white"} if turn else {}
    return {"color": COLOURS[place], "marker": MARKERS[place], **filling}


def require_matplotlib() -> None:
    """Raises: ConfigError if matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        raise ConfigError("pictures need matplotlib: pip install 'starspec[bench]'")


def check_format(path: Path) -> None:
    """Raises: ConfigError unless the file name has the suffix of a supported picture format."""
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(f"the name of a picture ends with {', '.join(FORMATS[:-1])} or {FORMATS[-1]}, not '{path}'")


def save(figure: Figure, path: Path) -> None:
    """Write a picture in the format of the file name. Raises: ConfigError for its format; OutputError."""
    check_format(path)
    with replacing(path) as unfinished:
        figure.savefig(unfinished, dpi=120, format=path.suffix[1:].lower())
