"""A target's settings are checked before its model is loaded."""

from __future__ import annotations

import pytest

from starspec.config import RemoteConfig, SpeculativeConfig
from starspec.engine.checks import check_hub
from starspec.errors import ConfigError


@pytest.mark.parametrize(
    "remote",
    [
        RemoteConfig(deadline_ms=5.0),
        RemoteConfig(fallback="ngram"),
        RemoteConfig(keys="keys"),
        RemoteConfig(insecure=True),
    ],
    ids=str,
)
def test_settings_for_a_hub_without_a_hub_are_refused(remote: RemoteConfig) -> None:
    with pytest.raises(ConfigError, match=r"^remote\.\w+: for a hub.*give --hub"):
        check_hub(SpeculativeConfig(method="ngram", remote=remote))


def test_a_method_without_a_hub_needs_no_settings_for_one() -> None:
    check_hub(SpeculativeConfig(method="ngram"))


def test_a_method_that_needs_a_hub_is_refused_without_its_address() -> None:
    with pytest.raises(ConfigError, match=r"give --hub or remote\.endpoint"):
        check_hub(SpeculativeConfig())
