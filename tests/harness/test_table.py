"""Tables of measurements: cells, sections, and columns that name fields which rows have."""

from dataclasses import dataclass, fields, is_dataclass
from typing import get_type_hints

import pytest

from starspec.bench import faults, lossless
from starspec.bench.batch import report as batch_report
from starspec.bench.batch.rows import BatchRow
from starspec.bench.pair import rows as pair_rows
from starspec.bench.star import async_pair, real_pair
from starspec.bench.star import tables as star_tables
from starspec.bench.star.measure import StarRow
from starspec.bench.tree import rows as tree_rows
from starspec.bench.vllm import measure as vllm
from starspec.bench.wire import measure as wire
from starspec.doctor import text
from starspec.doctor.outlook import Forecast
from starspec.harness.report import Spread
from starspec.harness.table import Column, Table, ratio_lines, share
from starspec.harness.tree_report import TreeRow

TABLES = [
    (faults.COLUMNS, faults.FaultRow),
    (lossless.COLUMNS, lossless.LosslessRow),
    (batch_report.COLUMNS, BatchRow),
    (batch_report.TIME_COLUMNS, BatchRow),
    (pair_rows.COLUMNS, pair_rows.PairRow),
    (pair_rows.STEP_COLUMNS, pair_rows.StepRow),
    (star_tables.COLUMNS, StarRow),
    (async_pair.COLUMNS, async_pair.AsyncRow),
    (real_pair.COLUMNS, real_pair.RealPairRow),
    (tree_rows.COLUMNS, TreeRow),
    (vllm.COLUMNS, vllm.VllmRow),
    (wire.COLUMNS, wire.WireRow),
    (text.FORECAST, Forecast),
]


@dataclass(frozen=True)
class Row:
    kind: str
    done: int
    of: int
    rate: Spread
    share: float | None = None


ROW = Row("a", 3, 4, Spread(2.0, 1.0, 3.0))


@pytest.mark.parametrize(("columns", "row"), TABLES, ids=lambda each: getattr(each, "__name__", ""))
def test_every_column_names_a_field_of_its_row(columns, row) -> None:
    for column in columns:
        if isinstance(column.value, str):
            kind = row
            for name in column.value.split("."):
                assert is_dataclass(kind)
                assert name in {field.name for field in fields(kind)}, f"{row.__name__}.{column.value}"
                kind = get_type_hints(kind)[name]


def test_a_cell_has_its_form_and_nothing_is_a_dash() -> None:
    assert Column("rate", "rate", ".1f").cell(ROW) == "2.0 (1.0 to 3.0)"
    assert Column("rate", "rate.median", ".0f").cell(ROW) == "2"
    assert Column("share", "share", ".0%").cell(ROW) == "-"
    assert Column("done", share("done", "of")).cell(ROW) == "3/4"


def test_a_section_begins_where_its_field_changes() -> None:
    table = Table("", (Column("kind", "kind"),), [ROW, ROW, Row("b", 1, 1, ROW.rate)], section="kind")
    assert [table.begins_section(index) for index in range(3)] == [False, False, True]
    assert not any(Table("", (), [ROW, ROW]).begins_section(index) for index in range(2))


def test_a_ratio_has_a_line_of_its_own() -> None:
    assert ratio_lines({"one_vs_other": 1.234}) == ["one vs other: 1.23x"]
