"""The memory that caches take, and that the machine has."""

from __future__ import annotations

import os


def machine_bytes() -> int:
    """The physical memory of this machine in bytes, whoever uses it."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def memory_of(num_rows: int, num_bytes: int) -> str:
    """A text for people: what a cache takes once every slot of every row is in use."""
    return f"{num_rows} cache rows, at most {num_bytes / 2**20:,.0f} MiB"
