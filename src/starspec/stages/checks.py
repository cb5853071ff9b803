"""What is wrong with a stage's settings, found without torch, which takes seconds to import."""

from __future__ import annotations

from starspec.config import StageConfig
from starspec.wire.callers import keys_to_listen
from starspec.wire.keys import require_keys
from starspec.wire.own_address import check_not_own
from starspec.wire.transports.sockets import host_of


def check_addresses(config: StageConfig) -> None:
    """Raises: ConfigError if a stage cannot or must not listen where it is told to, or send to the one behind it."""
    if config.next is not None:
        check_not_own(config.next, config.host, config.port, "--next", "this stage")
    keys = keys_to_listen("stage", config.keys, config.host, config.port, config.insecure)
    if config.next is None:
        return
    require_keys(
        host_of(config.next, "the next stage"), keys, config.insecure, "the stage would connect to the next at"
    )
    if keys is not None:
        keys.public_key_of("stage")
