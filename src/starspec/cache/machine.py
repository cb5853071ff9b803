"""What the machine has that caches take from."""

from __future__ import annotations

import os


def machine_bytes() -> int:
    """Memory of this machine, whoever uses it."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
