"""What the machine's other guests take: time in which there was work here, and the cores ran theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

_STAT: Final = Path("/proc/stat")


class StolenTime:
    """Counts from when it is made. Where the system does not say (it is no Linux), nothing was taken."""

    def __init__(self) -> None:
        self._before = _read()

    @property
    def share(self) -> float:
        """Of the time of all cores until now."""
        now = _read()
        return (now.stolen - self._before.stolen) / max(1, now.whole - self._before.whole)


class _Ticks(NamedTuple):
    stolen: int
    whole: int


def _read() -> _Ticks:
    """See proc_stat(5): user nice system idle iowait irq softirq steal, of all cores since the start."""
    if not _STAT.exists():
        return _Ticks(0, 0)
    ticks = [int(each) for each in _STAT.read_text().partition("\n")[0].split()[1:9]]
    return _Ticks(ticks[7], sum(ticks))
