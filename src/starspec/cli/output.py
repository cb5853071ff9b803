"""Standard streams: what cannot be written is found before models are loaded."""

from __future__ import annotations

import io
import os
import sys

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


def check_output() -> None:
    """Check that standard output takes what a command will print. Raises: OutputError."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):  # it is an object in this process, not a file
        return
    if why := why_full(descriptor):
        raise OutputError(f"the output cannot be written: {why}")
