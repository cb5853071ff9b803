"""`starspec trace summarize`: what a trace tells, without a viewer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from starspec.cli.command import CommandLine

app = CommandLine(name="trace", no_args_is_help=True, help="Read what --trace has written.")


@app.callback()
def trace() -> None:
    """Read what --trace has written."""


@app.command()
def summarize(
    file: Annotated[Path, typer.Argument(help="A file that --trace has written.", metavar="FILE")],
) -> None:
    """Show how busy each process was, how long it idled, and what the rounds of each target spent their time on."""
    from starspec.cli.measuring import show  # noqa: PLC0415 (rich)
    from starspec.harness.table import Column, Table  # noqa: PLC0415
    from starspec.observe.trace_summary import summarize as summary_of  # noqa: PLC0415

    summary = summary_of(file)
    work = Table(
        f"Work in {summary.span_s:.1f} s",
        (
            Column("process", "process"),
            Column("busy", "busy_share", ".0%"),
            Column("busy s", "busy_s", ".2f"),
            Column("pauses", lambda row: len(row.gaps)),
            Column("longest ms", lambda row: max(row.gaps, default=0.0) * 1e3, ".1f"),
            Column("all pauses s", lambda row: sum(row.gaps), ".2f"),
            Column("steps", lambda row: len(row.steps)),
            Column("t_s or t_v ms", lambda row: None if row.median_step_s is None else row.median_step_s * 1e3, ".2f"),
        ),
        summary.work,
    )
    rounds = Table(
        "What rounds are made of",
        (
            Column("target", "process"),
            Column("verify", lambda row: row.verify_s / row.whole_s, ".0%"),
            Column("wait: the hub drafts", lambda row: row.draft_s / row.whole_s, ".0%"),
            Column("wait: nobody drafts", lambda row: row.wire_s / row.whole_s, ".0%"),
            Column("no round", lambda row: row.other_s / row.whole_s, ".0%"),
        ),
        summary.rounds,
    )
    show([work, rounds])
