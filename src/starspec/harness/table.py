"""What a measurement shows: tables, each one list of columns over rows of one type, and lines of text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

NOTHING: Final = "-"  # the cell of a value that is None


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    Args:
        value: name of the row's field, with dots for fields of fields; or a function of the row.
        form: format specification of the value.
        is_text: align left. The first column of a table always does.
    """

    title: str
    value: str | Callable[[Any], object]
    form: str = ""
    is_text: bool = False

    def cell(self, row: Any) -> str:
        """The text of one cell."""
        value = attrgetter(self.value)(row) if isinstance(self.value, str) else self.value(row)
        return NOTHING if value is None else format(value, self.form)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of one type under one list of columns.

    Args:
        section: name of a field; a rule separates rows in which it differs.
        is_bold: which rows stand out.
    """

    title: str
    columns: Sequence[Column]
    rows: Sequence[Any]
    section: str | None = None
    is_bold: Callable[[Any], bool] = lambda _: False

    def begins_section(self, index: int) -> bool:
        """Whether a rule goes above the row of this index."""
        if self.section is None or index == 0:
            return False
        before, row = (getattr(each, self.section) for each in self.rows[index - 1 : index + 1])
        return bool(before != row)


Block = Table | str
"""A table, or a line of text with rich's markup."""


def ratio_lines(ratios: dict[str, float]) -> list[str]:
    """One line for each ratio of a report."""
    return [f"{name.replace('_', ' ')}: {ratio:.2f}x" for name, ratio in ratios.items()]


def share(part: str, whole: str) -> Callable[[Any], str]:
    """The value of a column that shows two fields as 3/4."""
    return lambda row: f"{getattr(row, part)}/{getattr(row, whole)}"
