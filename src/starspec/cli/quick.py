"""`--quick` of the benchmarks: the option, and what is said of figures that come of it."""

from __future__ import annotations

from typing import Annotated

import typer

from starspec.cli.options import MEASURE
from starspec.cli.tables import out

Quick = Annotated[bool, typer.Option("--quick", help="The same work in small: a few minutes.", rich_help_panel=MEASURE)]


def show_caution(quick: bool, num_repeats: int = 1) -> None:
    """Say, under figures that were taken quickly, that they are no result."""
    if quick:
        repeats = "one repeat" if num_repeats == 1 else f"{num_repeats} repeats"
        out().print(f"--quick: {repeats} of little work, so figures and ratios may be chance: do not quote them")
