"""A measurement's file: `{"provenance": {...}, "rows": [...], "ratios": {...}}`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from starspec.errors import ConfigError
from starspec.harness.provenance import Provenance


@dataclass(frozen=True, slots=True)
class Report:
    """What one benchmark measured.

    Args:
        rows: one dataclass each, all of one kind; their fields are the file's keys.
        ratios: of figures of this very run, by name; machines are noisy, so only these are worth quoting.
    """

    provenance: Provenance
    rows: Sequence[Any]
    ratios: dict[str, float] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)  # what belongs to no row


def write_report(report: Any, path: Path) -> None:
    """Save a report, or any other dataclass, as indented JSON.

    Effects: makes the folder if there is none.
    Raises: ConfigError if the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    except OSError as error:
        raise ConfigError(f"'{path}' cannot be written: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class Spread:
    """Several measurements of one thing."""

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
