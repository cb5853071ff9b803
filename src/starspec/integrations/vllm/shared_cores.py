"""Advice for a vLLM server on the same CPU cores as its hub: the environment variables that it should start with.

They cannot be set here: OpenMP reads them before this plug-in is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from starspec.openmp import unless_given
from starspec.wire.keys import is_loopback
from starspec.wire.transports.sockets import host_of

log = structlog.get_logger()


def advise(hub: str, environ: Mapping[str, str]) -> bool:
    """Log the variables that keep vLLM's waiting threads from using the cores that the hub needs.

    Args:
        hub: its endpoint.
        environ: of this process.
    Returns: whether anything was logged: on CPU, with a hub on this machine and a variable that is not set.
    Raises: ConfigError if `hub` is not an endpoint.
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
