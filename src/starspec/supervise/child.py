"""One child process: start it, read its reports and output, signal it. Nothing here blocks."""

from __future__ import annotations

import enum
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import FileIO
from typing import cast

import msgspec

from starspec.supervise.report import MAX_REPORT_BYTES, Report, decode_report, environment_with_line

MAX_LINE_BYTES = 64 * 1024  # of output; a longer line is cut


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSpec:
    """What to start, and how the others depend on it."""

    name: str  # shown to people
    command: tuple[str, ...]
    stdin: bytes = b""  # its whole standard input
    environment: Mapping[str, str] = field(default_factory=dict)  # its whole environment
    stop_stage: int = 0  # children of lower stages stop before this one is asked to
    is_essential: bool = True  # if all essential children of a stage are given up, nothing can serve: all stop


class ChildState(enum.Enum):
    STARTING = "starting"
    READY = "ready"
    SILENT = "not answering"
    WAITING = "waiting to restart"
    STOPPED = "stopped"
    GIVEN_UP = "given up"


class LineBuffer:
    """Splits bytes into lines. A carriage return ends a line too, so that progress bars do not pile up."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        *lines, self._rest = (self._rest + data).replace(b"\r", b"\n").split(b"\n")
        if len(self._rest) > self._max_bytes:
            lines, self._rest = [*lines, self._rest], b""
        return [line for line in lines if line.strip()]

    def end(self) -> list[bytes]:
        rest, self._rest = self._rest, b""
        return [rest] if rest.strip() else []


class Child:
    """One run of a child process.

    The child is in a process group of its own: Ctrl-C in the terminal reaches the supervisor alone, which then
    stops its children in order.
    """

    def __init__(self, spec: ChildSpec) -> None:
        """Raises: OSError if the process cannot be started."""
        self.spec = spec
        self.line, theirs = socket.socketpair()
        self.line.setblocking(False)
        with theirs, tempfile.TemporaryFile() as stdin:  # after the block, only the child holds its ends
            stdin.write(spec.stdin)  # a file without a name: nobody else can open it, and writing it never blocks
            stdin.seek(0)
            self._process = subprocess.Popen(
                spec.command,
                env=environment_with_line(spec.environment, theirs.fileno()),
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                bufsize=0,
                pass_fds=[theirs.fileno()],
                process_group=0,
            )
        os.set_blocking(self.output.fileno(), False)
        self._reports = LineBuffer(MAX_REPORT_BYTES)
        self._output = LineBuffer(MAX_LINE_BYTES)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def output(self) -> FileIO:
        """Its standard output and error."""
        return cast(FileIO, self._process.stdout)  # bufsize=0: the bare pipe

    def read_reports(self) -> list[Report] | None:
        """Reports that have arrived; None once the child has closed its end, because it is exiting."""
        try:
            data = self.line.recv(1 << 16)
        except BlockingIOError:
            return []
        except ConnectionResetError:
            data = b""
        if not data:
            return None
        return [report for line in self._reports.feed(data) if (report := _report_of(line)) is not None]

    def read_output(self) -> list[str] | None:
        """Lines that have arrived; None at the end of the output."""
        data = self.output.read(1 << 16)
        if data is None:  # nothing yet
            return []
        lines = self._output.feed(data) if data else self._output.end()
        if not data and not lines:
            return None
        return [line.decode(errors="replace") for line in lines]

    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def send(self, number: signal.Signals) -> None:
        """Signal this child, by its own pid, unless it has been reaped."""
        self._process.send_signal(number)

    def wait(self, timeout_s: float) -> int:
        """Raises: subprocess.TimeoutExpired."""
        return self._process.wait(timeout_s)

    def close(self) -> None:
        """Close the pipes. A child that still runs takes this as the end of its supervisor."""
        self.line.close()
        self.output.close()


def _report_of(line: bytes) -> Report | None:
    try:
        return decode_report(line)
    except msgspec.DecodeError:
        return None  # a child of another version: its output will tell
