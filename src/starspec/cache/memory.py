"""What the machine has that caches take from."""

from __future__ import annotations

import os


def machine_bytes() -> int:
    """Memory of this machine, whoever uses it."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def memory_of(num_rows: int, num_bytes: int) -> str:
    """What a cache takes when every slot of every row is in use, for people."""
    return f"{num_rows} cache rows, at most {num_bytes / 2**20:,.0f} MiB"
