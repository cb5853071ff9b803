"""The file of `starspec calibrate`: which tokens relaxed verification leaves alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import msgspec

from starspec.errors import ConfigError
from starspec.quoting import quoted
from starspec.speculation.acceptance import DEFAULT_THRESHOLDS, KeyThresholds

NAMES: Final = frozenset(each.name for each in fields(KeyThresholds))


class _File(msgspec.Struct):
    """What a target reads of the file."""

    thresholds: dict[str, Any]
    target: str | None = None
    draft: str | None = None


@dataclass(frozen=True, slots=True)
class Calibration:
    """The thresholds of a target, and the models that they were chosen for."""

    thresholds: KeyThresholds = DEFAULT_THRESHOLDS
    path: str | None = None
    target: str | None = None  # the models' names; None = the file does not say them, or there is none
    draft: str | None = None

    def why_of_others(self, *, target: str | None = None, draft: str | None = None) -> str:
        """That the thresholds may not suit what runs, since they are of other models; "" = nothing says so.

        Args:
            target, draft: names of what runs; None = it is not compared.
        """
        others = [
            f"for the {what} {quoted(theirs)}, and not for {quoted(ours)}"
            for what, theirs, ours in (("target", self.target, target), ("draft", self.draft, draft))
            if theirs is not None and ours is not None and theirs != ours
        ]
        if not others:
            return ""
        return f"--relaxed-thresholds: '{self.path}' was calibrated {' and '.join(others)}: calibrate for this pair"


def read_calibration(path: str | None) -> Calibration:
    """The thresholds in a file; the defaults without one. Raises: ConfigError if it cannot be read."""
    if path is None:
        return Calibration()
    try:
        found = msgspec.json.decode(Path(path).read_bytes(), type=_File)
        if found.thresholds.keys() != NAMES:
            raise ValueError(f"its thresholds are {_listed(found.thresholds)}, and not {_listed(NAMES)}")
        thresholds = msgspec.convert(found.thresholds, KeyThresholds)
        return Calibration(thresholds, path, found.target, found.draft)
    except OSError as error:
        raise ConfigError(f"--relaxed-thresholds: '{path}' cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        what = str(error).replace("`", "'")
        raise ConfigError(f"--relaxed-thresholds: '{path}' is not a file of `starspec calibrate`: {what}") from error


def _listed(names: Iterable[str]) -> str:
    return quoted(", ".join(sorted(names)))
