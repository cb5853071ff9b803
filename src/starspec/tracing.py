"""The interface to a trace. `observe/trace.py` implements it."""

from __future__ import annotations

from typing import Protocol
from zlib import crc32


class Tracer(Protocol):
    """Records slices of time. Callable from any thread."""

    def slice(self, track: str, name: str, start_s: float, end_s: float, **args: str | float) -> None:
        """Record that `name` ran from `start_s` to `end_s`, both in seconds of the process's monotonic clock.

        Args:
            args: shown with the slice. Two of them are a `flow_id`, along which a viewer draws arrows, also between
                processes: `flow_from` is what leaves at the start of this slice and comes back at its end, and `flow`
                is what passes here.
        """
        ...


def flow_id(owner: str, epoch: int, number: int) -> str:
    """Names one traversal of a target's stages within a trace."""
    return f"0x{crc32(owner.encode()):08x}{epoch % 2**12:03x}{number % 2**20:05x}"
