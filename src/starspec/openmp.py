"""How OpenMP threads wait for work, on cores that other processes need too. This module imports nothing of ours."""

from __future__ import annotations

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
