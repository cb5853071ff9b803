"""What records when things happened, as those who report to it see it; `observe/trace.py` is one."""

from __future__ import annotations

from typing import Protocol


class Tracer(Protocol):
    """Where slices of time are recorded. Callable from any thread."""

    def slice(self, track: str, name: str, start_s: float, end_s: float, **args: str | float) -> None:
        """Record that `name` took from `start_s` to `end_s`, both of `time.monotonic()`."""
        ...
