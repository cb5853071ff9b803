"""A vLLM server on the CPU cores of its hub: what its environment has to say, which is read before we are there."""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from starspec.openmp import unless_given
from starspec.wire.keys import is_loopback
from starspec.wire.transports.sockets import host_of

log = structlog.get_logger()


def advise(hub: str, environ: Mapping[str, str]) -> bool:
    """Log what keeps vLLM's waiting threads from taking the cores from a hub on the same machine.

    Args:
        hub: its endpoint.
    Returns: whether there was a reason to. Raises: ConfigError if it is no endpoint.
    """
    from vllm.platforms import current_platform  # noqa: PLC0415 (the unit tests bring their own)

    missing = unless_given(environ)
    if not missing or not current_platform.is_cpu() or not is_loopback(host_of(hub, "the hub")):
        return False
    log.warning(
        "vLLM may share its cores with the hub, and its threads spin while they wait: start it with these variables "
        "(docs/vllm.md, 'On one machine', has more)",
        variables=" ".join(f"{name}={value}" for name, value in missing.items()),
    )
    return True
