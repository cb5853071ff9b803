"""How many OpenMP threads compute, and how they wait for work on cores that other processes need too.

This module imports nothing of ours.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

WAIT_BRIEFLY: Final = MappingProxyType(
    {
        # an idle thread pool that spins would take the core from a process with work
        "OMP_WAIT_POLICY": "PASSIVE",
        # a fraction of a millisecond of spinning pays: a forward is hundreds of short loops, and waking the threads for
        # each of them made a draft's forward 1.4 times as long
        "GOMP_SPINCOUNT": "20000",
    }
)

SLEEP_AT_ONCE: Final = MappingProxyType(
    {
        # for a process that is started on any machine, crowded or not: there the draft and the target take turns, so
        # spinning gains little, and where other processes have work it takes twice the time (docs/measurements.md)
        "OMP_WAIT_POLICY": "PASSIVE",
        "GOMP_SPINCOUNT": "0",
    }
)


def unless_given(environ: Mapping[str, str], wanted: Mapping[str, str] = WAIT_BRIEFLY) -> Mapping[str, str]:
    """`wanted`; empty if the operator set one of its variables. torch reads the variables when it is loaded."""
    return {} if wanted.keys() & environ.keys() else wanted


def num_cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def num_threads(environ: Mapping[str, str]) -> int:
    """Threads of a forward that nobody gave a number: as OMP_NUM_THREADS says, otherwise one for each core.

    torch does the same by itself. This is for who divides threads among processes, or tells them to another program.
    """
    of_outer_loops = environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()  # others are of loops inside loops
    return int(of_outer_loops) if of_outer_loops.isdecimal() and int(of_outer_loops) else num_cores()
