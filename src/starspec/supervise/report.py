"""The line between a child process and its supervisor.

Each child has one socket pair. The child sends reports, one JSON record a line: what it is loading, where it serves,
why it cannot start, and once a second that it lives. The supervisor sends nothing. When the supervisor ends, the child
reads the end of the file and stops, so no child outlives its supervisor. When a child ends, its end of the pair closes,
so the supervisor sees every exit in the same place.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Mapping, MutableMapping
from typing import Final

import msgspec

from starspec.policy.vitals import BEAT_S

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


class Alive(msgspec.Struct, frozen=True, tag="alive"):
    """child -> supervisor, every BEAT_S: it lives. It may be busy: a thread that does nothing else sends this."""


Report = Loading | Ready | Failed | Alive
_DECODER: Final[msgspec.json.Decoder[Report]] = msgspec.json.Decoder(Report)


def decode_report(line: bytes) -> Report:
    """Raises: msgspec.DecodeError if the line is not a report."""
    return _DECODER.decode(line)


class SupervisorLine:
    """A child's end of the line. Its thread sends the beats, and stops the process when the other end is gone."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._sending = threading.Lock()
        threading.Thread(target=self._watch, name="supervisor-line", daemon=True).start()

    def send(self, report: Report) -> None:
        """Send a report. A missing supervisor is not an error here: `_watch` deals with it."""
        with self._sending, contextlib.suppress(OSError):
            self._socket.sendall(_line_of(report))

    def _watch(self) -> None:
        """Beat. When the supervisor is gone, stop this process: asked first, then by force."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        with contextlib.suppress(OSError):  # reset: gone as well
            while not poll.poll(BEAT_S * 1e3) or self._socket.recv(64):
                self._beat()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(ORPHAN_GRACE_S)
        os._exit(1)

    def _beat(self) -> None:
        """Never waits: a supervisor that does not read is suspended, and needs no beat of that time."""
        if not self._sending.acquire(blocking=False):
            return
        try:
            self._socket.send(_line_of(Alive()), socket.MSG_DONTWAIT)
        except BlockingIOError:
            pass
        finally:
            self._sending.release()


def _line_of(report: Report) -> bytes:
    return msgspec.json.encode(report) + b"\n"


def supervisor_line(environ: MutableMapping[str, str]) -> SupervisorLine | None:
    """The line to the supervisor that started this process; None if a person did.

    Effects: takes the variable out of `environ`, so that processes started from here do not inherit it.
    """
    fd = environ.pop(FD_VARIABLE, None)
    return None if fd is None else SupervisorLine(int(fd))


def environment_with_line(environ: Mapping[str, str], fd: int) -> dict[str, str]:
    """The environment of a child, with the variable that names its end of the line."""
    return {**environ, FD_VARIABLE: str(fd)}
