"""The audit log: who connected, what was asked of this process, and what it refused. It holds no text and no tokens."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Self

import structlog

from starspec.errors import ConfigError
from starspec.log_limit import LogLimit

MAX_LINES_PER_S: Final = 200  # a peer that is refused without end must not fill the disk
MAX_FIELD_LEN: Final = 200  # characters of a field: names come from peers

log = structlog.get_logger()


class AuditLog:
    """Appends JSON lines to a file; without a path it does nothing. Thread-safe.

    Every line has `time` (UTC, ISO 8601), `process` and `event`. Several processes may share one file: each line is one
    write. Lines beyond MAX_LINES_PER_S are left out, and the next one says how many in `num_left_out`.

    Args:
        process: name of this process in each line.
        clock: seconds since the epoch.
    Raises: ConfigError if the file cannot be opened for appending.
    """

    def __init__(self, path: str | Path | None, process: str, clock: Callable[[], float] = time.time) -> None:
        self._process = process
        self._clock = clock
        self._lock = threading.Lock()
        self._limit = LogLimit(clock, MAX_LINES_PER_S, interval_s=1.0)
        self._has_failed = False
        self._mend = b""  # what comes before the next line
        try:
            self._file = None if path is None else os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        except OSError as error:
            raise ConfigError(f"cannot write the audit log {path}: {error.strerror}") from error

    @classmethod
    def off(cls) -> Self:
        """One that writes nothing."""
        return cls(None, "")

    def note(self, event: str, **fields: str | int | float | None) -> None:
        """Append one line. If the file cannot be written, the process goes on and its log says so once."""
        if self._file is None:
            return
        with self._lock:
            if (num_left_out := self._limit.admit()) is None:
                return
            now = datetime.fromtimestamp(self._clock(), UTC)
            line: dict[str, object] = {"time": now.isoformat(timespec="milliseconds")}
            line |= {"process": self._process, "event": event}
            line |= {name: _clipped(value) for name, value in fields.items() if value is not None}
            if num_left_out:
                line["num_left_out"] = num_left_out
            self._write(json.dumps(line).encode() + b"\n")

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _write(self, line: bytes) -> None:
        """If a line before was cut off, this one still begins a line of its own."""
        assert self._file is not None
        line, why = self._mend + line, os.strerror(errno.ENOSPC)
        try:
            num_written = os.write(self._file, line)
        except OSError as error:
            num_written, why = 0, error.strerror or str(error)
        if num_written == len(line):
            self._mend = b""
            return
        if num_written:
            self._mend = b"\n"
        if not self._has_failed:
            self._has_failed = True
            log.error("the audit log cannot be written; lines are missing from now on", why=why)


def _clipped(value: str | float) -> str | float:
    return value[:MAX_FIELD_LEN] if isinstance(value, str) else value
