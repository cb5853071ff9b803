"""Tables of what becomes of a hub's idle time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from starspec.cli.tables import new_table, or_nothing

if TYPE_CHECKING:
    from starspec.bench.star.async_pair import AsyncRow
    from starspec.bench.star.measure import StarRow
    from starspec.bench.star.real_pair import PairRow
    from starspec.bench.warm import WarmRow


def star_table(rows: Sequence[StarRow], slow_motion: float) -> Table:
    """One row for each service of each number of targets."""
    pace = "" if slow_motion == 1 else f" at 1/{slow_motion:g} of their speed, in their time"
    title = (
        f"synthetic accelerators{pace}; R_q = proposals of the hub a second, said = by StarSD's equations 8 to 10, "
        "with the S and Z of one target just before; T_wait and t_c in milliseconds a round"
    )
    table = new_table(
        title,
        "targets",
        "service",
        "tokens/s",
        "in paper",
        "lowest",
        "x plain",
        "R_q",
        "said",
        "in paper",
        "load",
        "hits",
        "T_wait",
        "t_c",
    )
    for row in rows:
        table.add_row(
            str(row.num_targets),
            row.service,
            f"{row.tokens_per_s:.0f}",
            or_nothing(row.paper_tokens_per_s, ".0f"),
            f"{row.tokens_per_s_lowest:.1f}",
            or_nothing(row.vs_plain, ".2f"),
            or_nothing(row.proposals_per_s or None, ".1f"),
            or_nothing(row.proposals_per_s_closed_form, ".1f"),
            or_nothing(row.paper_rounds_per_s, ".1f"),
            f"{row.load:.0%}",
            f"{row.hit_rate:.0%}",
            f"{row.wait_ms:.1f}",
            f"{row.link_ms:.2f}",
        )
    return table


def async_table(rows: Sequence[AsyncRow]) -> Table:
    """One row for each setting at each acceptance."""
    title = "synthetic accelerators with AMUSD's step times; paper: its Table I"
    table = new_table(
        title,
        "acceptance as in",
        "run-ahead",
        "tokens",
        "ms a token",
        "x plain",
        "paper",
        "tokens a round",
        "hits",
        "load",
    )
    for row in rows:
        table.add_row(
            f"{row.case} ({row.alpha})",
            row.run_ahead,
            str(row.num_draft_tokens),
            f"{row.ms_per_token:.2f}",
            f"{row.vs_plain:.2f}",
            or_nothing(row.paper_vs_plain, ".2f"),
            f"{row.tokens_per_round:.2f}",
            f"{row.hit_rate:.0%}",
            f"{row.load:.0%}",
        )
    return table


def real_pair_table(rows: Sequence[PairRow]) -> Table:
    """One row for each setting."""
    title = "one target and one hub, a core each; t_s = a draft layer, T_wait and t_c a round, in milliseconds"
    columns = ("tokens", "tokens/s", "tokens a round", "hits", "load", "t_s", "T_wait", "t_c")
    table = new_table(title, "run-ahead", *columns)
    for row in rows:
        table.add_row(
            row.run_ahead,
            str(row.num_draft_tokens),
            f"{row.tokens_per_s:.2f}",
            f"{row.tokens_per_round:.2f}",
            f"{row.hit_rate:.0%}",
            f"{row.load:.0%}",
            f"{row.layer_ms:.1f}",
            f"{row.wait_ms:.1f}",
            f"{row.link_ms:.1f}",
        )
    return table


def warm_table(rows: Sequence[WarmRow]) -> Table:
    """One row for each length of a gap."""
    places = [f"step {place + 1}" for place in range(len(rows[0].step_ms))]
    table = new_table("milliseconds of the steps after a gap, medians", "gap ms", *places, "first p90", "x no gap")
    for row in rows:
        steps = [f"{step_ms:.2f}" for step_ms in row.step_ms]
        table.add_row(f"{row.gap_ms:g}", *steps, f"{row.first_p90_ms:.2f}", f"{row.first_vs_steady:.2f}")
    return table
