"""The interface to a trace. `observe/trace.py` implements it."""

from __future__ import annotations

from typing import Protocol


class Tracer(Protocol):
    """Records slices of time. Callable from any thread."""

    def slice(self, track: str, name: str, start_s: float, end_s: float, **args: str | float) -> None:
        """Record that `name` ran from `start_s` to `end_s`, both in seconds of the process's monotonic clock."""
        ...
