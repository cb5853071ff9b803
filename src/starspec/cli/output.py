"""Standard streams: what cannot be written is found before models are loaded."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import TextIO

from starspec.errors import OutputError
from starspec.output_files import why_full


def open_closed_streams() -> None:
    """Put something in the place of standard streams that the caller of this process has closed.

    Otherwise the next file that is opened would get a stream's number, and printed lines would be lost in silence, or
    end in it. Now standard input is empty, standard error is discarded, and writing to standard output fails.

    Effects: the closed ones among the descriptors 0 to 2, and `sys.stdin`, `sys.stdout` and `sys.stderr`.
    """
    for descriptor, flags in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, flags)  # gets the lowest number that is free
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115 (a descriptor, open to the end)
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def take_all_characters() -> None:
    """Make standard output write escapes for characters that its encoding lacks, as standard error does."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def take_no_width_as_unknown() -> None:
    """Let `COLUMNS=0` mean that the width is not known, as Python's library does: rich would print nothing.

    Effects: the environment.
    """
    if os.environ.get("COLUMNS", "").strip("0") == "":
        os.environ.pop("COLUMNS", None)


def check_output() -> None:
    """Check that standard output and standard error take what a command will print. Raises: OutputError."""
    for stream, what in ((sys.stdout, "the output"), (sys.stderr, "standard error")):
        try:
            descriptor = stream.fileno()
        except (OSError, ValueError):  # it is an object in this process, not a file
            continue
        if why := why_full(descriptor):
            raise OutputError(f"{what} cannot be written: {why}")


def drop_unwritten(stream: TextIO) -> None:
    """Write what a stream still holds, or drop it: at its end Python would try again, and exit with 120.

    Effects: a stream that takes nothing is discarded from now on.
    """
    try:
        stream.flush()
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:  # noqa: PTH123 (no path)
            os.dup2(nowhere.fileno(), stream.fileno())


class LogStream:
    """Standard error for log lines. It drops a line that cannot be written: a full disk must not end a server."""

    def write(self, text: str) -> None:
        """Write, or drop."""
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text)

    def flush(self) -> None:
        """Flush; what cannot be written may be written later."""
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
