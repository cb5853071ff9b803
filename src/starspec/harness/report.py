"""A measurement's file: `{"provenance": {...}, "rows": [...], "ratios": {...}}`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from starspec.harness.provenance import Provenance
from starspec.output_files import write_whole


@dataclass(frozen=True, slots=True)
class Report:
    """The result of one benchmark.

    Args:
        rows: dataclasses of one type; their fields are the keys in the file.
        ratios: ratios of figures of this run, by name. Machines are noisy, so only ratios are worth quoting.
    """

    provenance: Provenance
    rows: Sequence[Any]
    ratios: dict[str, float] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)  # everything that does not belong to a row


def write_report(report: Any, path: Path) -> None:
    """Save a report, or any other dataclass, as indented JSON.

    Raises: OutputError if the file cannot be written; an earlier one is then still there.
    """
    write_whole(path, msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")


@dataclass(frozen=True, slots=True)
class Spread:
    """Summary of several measurements of one quantity."""

    median: float
    lowest: float
    highest: float

    def __format__(self, form: str) -> str:
        """As 12.3 (11.9 to 12.8), each number in that form."""
        return f"{self.median:{form}} ({self.lowest:{form}} to {self.highest:{form}})"

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Raises: statistics.StatisticsError if there are no values."""
        return cls(median(values), min(values), max(values))


def percentile(values: Sequence[float], percent: int) -> float:
    """The smallest value that at least `percent` (0 to 100) of the values do not exceed. Needs one value."""
    ordered = sorted(values)
    return ordered[max(0, -(-percent * len(ordered) // 100) - 1)]
