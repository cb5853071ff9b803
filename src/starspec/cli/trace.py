"""`starspec trace summarize`: what a trace tells, without a viewer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from starspec.cli.command import CommandLine
from starspec.harness.table import Column, Table

app = CommandLine(name="trace", no_args_is_help=True, help="Read what --trace has written.")


def _share(of: str) -> Callable[[Any], float | None]:
    return lambda row: getattr(row, of) / row.whole_s if row.whole_s else None


def _ms(of: str) -> Callable[[Any], float | None]:
    return lambda row: None if getattr(row, of) is None else getattr(row, of) * 1e3


WORK: Final = (
    Column("process", "process"),
    Column("busy", "busy_share", ".0%"),
    Column("busy s", "busy_s", ".2f"),
    Column("pauses", lambda row: len(row.gaps)),
    Column("longest ms", lambda row: max(row.gaps, default=0.0) * 1e3, ".1f"),
    Column("all pauses s", lambda row: sum(row.gaps), ".2f"),
    Column("steps", lambda row: len(row.steps)),
    Column("t_s or t_v ms", _ms("median_step_s"), ".2f"),
)
PARTS: Final = (
    Column("verify", _share("verify_s"), ".0%"),
    Column("hub drafts", _share("draft_s"), ".0%"),
    Column("hub's queue", _share("queue_s"), ".0%"),
    Column("wire", _share("wire_s"), ".0%"),
    Column("other", _share("other_s"), ".0%"),
)
TARGETS: Final = (Column("target", "process"), Column("s", "whole_s", ".2f"), *PARTS)
ANSWERS: Final = (
    Column("target", "process"),
    Column("answers", "num"),
    Column("mean s", lambda row: row.whole_s / row.num, ".2f"),
    *PARTS,
)
HUBS: Final = (
    Column("hub", "process"),
    Column("R_q", "proposals_per_s", ".1f"),
    Column("load", "load", ".0%"),
    Column("t_s", _ms("t_s"), ".2f"),
    Column("S", _ms("service_s"), ".2f"),
    Column("T_wait", _ms("queue_s"), ".2f"),
    Column("T_idle", _ms("idle_per_request_s"), ".2f"),
    Column("Z", _ms("return_s"), ".2f"),
    Column("t_v", _ms("t_v"), ".2f"),
    Column("t_c", _ms("t_c"), ".2f"),
)


@app.callback()
def trace() -> None:
    """Read what --trace has written."""


@app.command()
def summarize(
    file: Annotated[Path, typer.Argument(help="A file that --trace has written.", metavar="FILE")],
) -> None:
    """Show how busy each process was and how long it idled, what targets and answers waited for, and StarSD's times."""
    from starspec.cli.measuring import show  # noqa: PLC0415 (rich)
    from starspec.observe.trace_summary import summarize as summary_of  # noqa: PLC0415

    summary = summary_of(file)
    tables = [
        Table(f"Work in {summary.span_s:.1f} s", WORK, summary.work),
        Table("What targets did", TARGETS, summary.targets),
        Table("Critical path: what answers waited for", ANSWERS, summary.answers),
        Table("StarSD's quantities; times in ms", HUBS, summary.hubs),
    ]
    show([each for each in tables if each.rows])
