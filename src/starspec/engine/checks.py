"""What is wrong with a target's settings, found without torch, which takes seconds to import."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from starspec.config import Calibration, SpeculativeConfig, TargetConfig
from starspec.config.speculative import OF_THE_DRAFT
from starspec.draft_methods import drafts_itself, method_named
from starspec.errors import ConfigError
from starspec.wire.callers import keys_to_listen
from starspec.wire.keys import Keys, load_keys, require_keys
from starspec.wire.messages import Welcome
from starspec.wire.own_address import check_not_own
from starspec.wire.transports.sockets import host_of

NO_HUB: Final = "a target server needs the hub's address: give --hub or remote.endpoint"


def keys_of(config: TargetConfig) -> Keys | None:
    """The keys of a target. Raises: ConfigError if it cannot or must not listen where it is told to."""
    return keys_to_listen("target", config.keys, config.host, config.port, config.insecure)


def check_stages(config: TargetConfig) -> None:
    """Raises: ConfigError if keys for a stage are missing."""
    keys = load_keys(config.keys, "target")
    for endpoint in (*config.pipe.stages, *config.pipe.spares):
        require_keys(host_of(endpoint, "the stage"), keys, config.insecure, "the target would connect to the stage at")
        if keys is not None:
            keys.public_key_of("stage")


def check_hub(speculative: SpeculativeConfig | None) -> None:
    """Check where a target's drafts come from, before its model is loaded.

    Raises: ConfigError if a hub is needed and there is no address, if it is malformed, if keys are missing, or if
        settings for a hub are given without its address, or settings of the draft with it.
    """
    if speculative is None:
        return
    remote = speculative.remote
    if remote.endpoint is None:
        if not drafts_itself(speculative.method):
            raise ConfigError(NO_HUB)
        if remote.given:
            raise ConfigError(
                f"{', '.join(remote.given)}: for a hub, and method '{speculative.method}' without --hub has none: leave"
                " it out, or give --hub"
            )
        return
    if of_the_draft := [name for name in speculative.given if name in OF_THE_DRAFT]:
        raise ConfigError(
            f"{', '.join(of_the_draft)}: the hub has the draft, and is told what it is and how it runs: leave it out "
            "here, and give it to starspec draft"
        )
    host = host_of(remote.endpoint, "the hub")
    keys = load_keys(remote.keys, "target") if remote.keys else None
    require_keys(host, keys, remote.insecure, "the target would connect to the hub at")
    if keys is not None:
        keys.public_key_of("hub")


def check_others(config: TargetConfig, speculative: SpeculativeConfig | None) -> None:
    """Check addresses that `check_stages` and `check_hub` have passed. Raises: ConfigError if one is this target's."""
    hub = None if speculative is None else speculative.remote.endpoint
    given = {"--hub": (hub,) if hub else (), "--stages": config.pipe.stages, "--spares": config.pipe.spares}
    for flag, endpoints in given.items():
        for endpoint in endpoints:
            check_not_own(endpoint, config.host, config.port, flag, "this target")


def why_unsuited(
    config: TargetConfig, speculative: SpeculativeConfig, calibration: Calibration, welcome: Welcome
) -> str:
    """What a target is told to ask for that its hub cannot do, as `starspec up` would refuse it; "" = nothing.

    A target learns how its hub drafts when the hub answers, and that may be long after the start.
    """
    problems = [each] if (each := calibration.why_of_others(draft=welcome.draft_name)) else []
    asked, most = speculative.num_nodes_asked, welcome.max_draft_tokens
    if asked > most:
        problems.append(f"a proposal of the hub has at most {most} draft tokens, and {asked} are asked for")
    method = method_named(welcome.draft_method)
    if method is not None:
        try:
            config.check_drafts(replace(speculative, method=method, model=None))
        except ConfigError as error:
            problems.append(f"the hub drafts by method '{method}': {error}")
    return "; ".join(problems)
