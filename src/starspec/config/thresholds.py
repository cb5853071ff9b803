"""The file of `starspec calibrate`: which tokens relaxed verification leaves alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import msgspec

from starspec.errors import ConfigError
from starspec.quoting import quoted
from starspec.speculation.acceptance import DEFAULT_THRESHOLDS, KeyThresholds

NAMES: Final = frozenset(each.name for each in fields(KeyThresholds))


class _Calibration(msgspec.Struct):
    """What a target reads of the file."""

    thresholds: dict[str, Any]


def read_thresholds(path: str | None) -> KeyThresholds:
    """The thresholds in a file; the defaults without one. Raises: ConfigError if it cannot be read."""
    if path is None:
        return DEFAULT_THRESHOLDS
    try:
        given = msgspec.json.decode(Path(path).read_bytes(), type=_Calibration).thresholds
        if given.keys() != NAMES:
            raise ValueError(f"its thresholds are {_listed(given)}, and not {_listed(NAMES)}")
        return msgspec.convert(given, KeyThresholds)
    except OSError as error:
        raise ConfigError(f"--relaxed-thresholds: '{path}' cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        what = str(error).replace("`", "'")
        raise ConfigError(f"--relaxed-thresholds: '{path}' is not a file of `starspec calibrate`: {what}") from error


def _listed(names: Iterable[str]) -> str:
    return quoted(", ".join(sorted(names)))
