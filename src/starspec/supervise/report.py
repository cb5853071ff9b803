"""The line between a child process and its supervisor.

Each child has one socket pair. The child sends reports, one JSON record a line: what it is loading, where it serves,
or why it cannot start. The supervisor sends nothing. When the supervisor ends, the child reads the end of the file and
stops, so no child outlives its supervisor. When a child ends, its end of the pair closes, so the supervisor sees every
exit in the same place.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Mapping, MutableMapping
from typing import Final

import msgspec

FD_VARIABLE = "STARSPEC_SUPERVISOR_FD"  # where a child finds its end
ORPHAN_GRACE_S = 5.0  # a child whose supervisor is gone has this long to stop in good order
MAX_REPORT_BYTES = 64 * 1024
HURRY: Final = signal.SIGURG
"""supervisor -> child that is stopping: stop at once. A process without a handler ignores this signal."""


class Loading(msgspec.Struct, frozen=True, tag="loading"):
    """child -> supervisor: what it is doing before it can serve."""

    what: str


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """child -> supervisor: it serves at this address."""

    address: str  # tcp://host:port or http://host:port
    memory: str = ""  # the memory that it keeps for sequences, as text for people


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """child -> supervisor: it cannot serve, and why; it exits right after."""

    reason: str


Report = Loading | Ready | Failed
_DECODER: Final[msgspec.json.Decoder[Report]] = msgspec.json.Decoder(Report)


def decode_report(line: bytes) -> Report:
    """Raises: msgspec.DecodeError if the line is not a report."""
    return _DECODER.decode(line)


class SupervisorLine:
    """A child's end of the line. The process stops when the other end is gone."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        threading.Thread(target=self._watch, name="supervisor-line", daemon=True).start()

    def send(self, report: Report) -> None:
        """Send a report. A missing supervisor is not an error here: `_watch` deals with it."""
        try:
            self._socket.sendall(msgspec.json.encode(report) + b"\n")
        except OSError:
            return

    def _watch(self) -> None:
        """Stop this process when the supervisor is gone: asked first, then by force."""
        try:
            while self._socket.recv(64):
                pass
        except OSError:
            pass  # reset: gone as well
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(ORPHAN_GRACE_S)
        os._exit(1)


def supervisor_line(environ: MutableMapping[str, str]) -> SupervisorLine | None:
    """The line to the supervisor that started this process; None if a person did.

    Effects: takes the variable out of `environ`, so that processes started from here do not inherit it.
    """
    fd = environ.pop(FD_VARIABLE, None)
    return None if fd is None else SupervisorLine(int(fd))


def environment_with_line(environ: Mapping[str, str], fd: int) -> dict[str, str]:
    """The environment of a child, with the variable that names its end of the line."""
    return {**environ, FD_VARIABLE: str(fd)}
