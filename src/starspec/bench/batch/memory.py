"""How much memory the process held at most, while something ran. On Linux; elsewhere nothing is known."""

from __future__ import annotations

from pathlib import Path
from typing import Final

CLEAR_REFS: Final = Path("/proc/self/clear_refs")
STATUS: Final = Path("/proc/self/status")
RESET_PEAK: Final = "5"  # see proc(5): the peak resident set begins anew at what is resident now


def reset_peak() -> None:
    """Forget the peak so far. Effects: the process's VmHWM, where the system lets us."""
    try:
        CLEAR_REFS.write_text(RESET_PEAK)
    except OSError:
        return


def peak_mib(without: int = 0) -> float | None:
    """The peak resident set since `reset_peak`, or since the process began where that cannot be reset.

    Args:
        without: bytes that were held all the time and are not to be counted.
    """
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return None
    kib = [int(line.split()[1]) for line in lines if line.startswith("VmHWM:")]
    return round((kib[0] - without / 1024) / 1024, 1) if kib else None
