"""How OpenMP threads wait for work on cores that other processes need too. A leaf: it imports nothing of ours."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

WAIT_BRIEFLY: Final = MappingProxyType(
    {
        "OMP_WAIT_POLICY": "PASSIVE",  # an idle pool that spins would take the core from whoever has work
        "GOMP_SPINCOUNT": "20000",  # but a fraction of a millisecond it may: a forward is hundreds of short loops, and
    }  # threads that are woken for each of them made a draft's forward 1.4 times as long
)


def unless_given(environ: Mapping[str, str]) -> Mapping[str, str]:
    """WAIT_BRIEFLY, or nothing where the operator says anything of it. Read when torch is loaded, and never again."""
    return {} if WAIT_BRIEFLY.keys() & environ.keys() else WAIT_BRIEFLY
