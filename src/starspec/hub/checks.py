"""What is wrong with a hub's settings, found without torch, which takes seconds to import."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from starspec.config import HubConfig, SpeculativeConfig
from starspec.config.speculative import OF_LOOKUP, OF_THE_DRAFT
from starspec.errors import ConfigError
from starspec.models.resolve import DraftSpec
from starspec.wire.callers import keys_to_listen
from starspec.wire.keys import Keys
from starspec.wire.transports.sockets import check_any_free

DEFAULTS: Final = HubConfig()


def keys_of(config: HubConfig) -> Keys | None:
    """The keys of a hub. Raises: ConfigError if it cannot or must not listen where it is told to."""
    keys = keys_to_listen("hub", config.keys, config.host, config.port, config.insecure)
    if config.data_ports is not None:
        first, last = config.data_ports
        ports = [port for port in range(first, last + 1) if port != config.port]
        check_any_free(config.host, ports, "the hub", f"--data-ports {first}-{last}: each target needs one of them")
    return keys


def check_own(speculative: SpeculativeConfig) -> None:
    """Raises: ConfigError that names settings of targets: a hub drafts as each of them asks, and reads none of them."""
    own = ("method", *(OF_THE_DRAFT if speculative.traits.needs_model else OF_LOOKUP))
    if others := [name for name in speculative.given if name not in own]:
        raise ConfigError(
            f"{', '.join(others)}: each target says that for itself: leave it out here, and give it to starspec target"
        )


def target_of_head(target: str | None) -> str:
    """The model that an EAGLE head drafts for. Raises: ConfigError if it is not given."""
    if target is None:
        raise ConfigError("an EAGLE head borrows its target's embedding: give --target MODEL too")
    return target


def suited_to(draft: DraftSpec, config: HubConfig) -> HubConfig:
    """The hub's config with what the speculative config says of running ahead, and without what the draft cannot do.

    `auto` of the hub's config becomes `off` for a draft that cannot run ahead.

    Raises: ConfigError if the hub is told to run ahead, or to share prefixes between targets, and the draft cannot; or
        if the two configs say different things.
    """
    why_not, asked = draft.traits.why_not_ahead, draft.config.run_ahead_mode
    told = f"is for draft models: this draft {why_not}, leave the option out"
    if asked is not None and config.run_ahead not in (DEFAULTS.run_ahead, asked):
        raise ConfigError(f"--run-ahead {config.run_ahead} and run_ahead '{asked}' of the speculative config: give one")
    if why_not is None:
        return config if asked is None else replace(config, run_ahead=asked)
    if draft.config.runs_ahead:
        raise ConfigError(f"run_ahead of the speculative config {told}")
    if config.run_ahead in ("chain", "outcomes"):
        raise ConfigError(f"--run-ahead {config.run_ahead} {told}")
    if config.share_prefixes == "hub":
        raise ConfigError(f"--share-prefixes hub {told}")
    return replace(config, run_ahead="off")
