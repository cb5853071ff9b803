"""The file of `starspec calibrate`: which tokens relaxed verification leaves alone."""

from __future__ import annotations

from pathlib import Path

import msgspec

from starspec.errors import ConfigError
from starspec.speculation.acceptance import DEFAULT_THRESHOLDS, KeyThresholds


class _Calibration(msgspec.Struct):
    """What a target reads of the file."""

    thresholds: KeyThresholds


def read_thresholds(path: str | None) -> KeyThresholds:
    """The thresholds in a file; the defaults without one. Raises: ConfigError if it cannot be read."""
    if path is None:
        return DEFAULT_THRESHOLDS
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=_Calibration).thresholds
    except OSError as error:
        raise ConfigError(f"--relaxed-thresholds: '{path}' cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        what = str(error).replace("`", "'")
        raise ConfigError(f"--relaxed-thresholds: '{path}' is not a file of `starspec calibrate`: {what}") from error
