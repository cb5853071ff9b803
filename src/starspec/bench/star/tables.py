"""What `bench star` prints."""

from __future__ import annotations

from starspec.harness.report import Report
from starspec.harness.table import Block, Column, Table, ratio_lines

COLUMNS = (
    Column("targets", "num_targets"),
    Column("service", "service"),
    Column("tokens/s", "tokens_per_s", ".0f"),
    Column("in paper", "paper_tokens_per_s", ".0f"),
    Column("lowest", "tokens_per_s_lowest", ".1f"),
    Column("x plain", "vs_plain", ".2f"),
    Column("R_q", lambda row: row.proposals_per_s or None, ".1f"),
    Column("said", "proposals_per_s_closed_form", ".1f"),
    Column("in paper", "paper_rounds_per_s", ".1f"),
    Column("load", "load", ".0%"),
    Column("hits", "hit_rate", ".0%"),
    Column("response", "wait_ms", ".1f"),
    Column("t_c", "link_ms", ".2f"),
)
TABLE_1 = (
    Column("targets", "num_targets"),
    Column("service", "service"),
    Column("t_s", "layer_ms", ".2f"),
    Column("in paper", "paper_step_ms", ".2f"),
    Column("T_wait", "t_wait_ms", ".2f"),
    Column("in paper", "paper_t_wait_ms", ".2f"),
    Column("T_idle", "t_idle_ms", ".1f"),
    Column("in paper", "paper_t_idle_ms", ".1f"),
    Column("T_idle of eq. 9", "t_idle_iteration_ms", ".1f"),
    Column("in all, s", "t_idle_s", ".1f"),
    Column("load", "load", ".1%"),
    Column("in paper", "paper_load", ".1%"),
)
TABLE_1_TITLE = (
    "beside StarSD's Table 1, in milliseconds: T_wait of a request in the hub's buffer, T_idle between two requests; "
    "in equation 9 T_idle is that of an iteration, which serves every target once; in all = of the turn, in seconds"
)


def blocks(report: Report) -> list[Block]:
    """What people read: one row for each service of each number of targets."""
    slow_motion = report.notes["slow_motion"]
    pace = "" if slow_motion == 1 else f" at 1/{slow_motion:g} of their speed, in their time"
    title = (
        f"synthetic accelerators{pace}; R_q = proposals of the hub a second, said = by StarSD's equations 8 to 10, "
        "with the S and Z of one target just before; the hub's response time and t_c in milliseconds a round"
    )
    published = [row for row in report.rows if row.paper_load is not None]
    return [
        Table(title, COLUMNS, report.rows),
        Table(TABLE_1_TITLE, TABLE_1, published),
        *ratio_lines(report.ratios),
    ]
