"""What a hub within the process is told of its target."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from starspec.config import ModelConfig, SpeculativeConfig
from starspec.errors import ConfigError
from starspec.local_star import LocalHub, check_drafts, local_drafts
from starspec.models.loading.load import load_runner
from starspec.models.loading.tokenizer import load_tokenizer
from starspec.stats import TargetStats

TARGET = "synthetic:vocab=64,step_ms=0,alpha=0.7"
DRAFT = f"{TARGET},role=draft"


def test_the_hub_is_told_of_all_rows_of_a_padded_embedding() -> None:
    config, tokenizer = ModelConfig(model=TARGET, max_model_len=64), load_tokenizer(TARGET)
    info = replace(load_runner(config).info, vocab_size=len(tokenizer) + 28)
    hub = LocalHub(config, info, SpeculativeConfig(model=DRAFT), tokenizer)
    hub.connect().receive(0.0)
    (routed,) = hub._loop._hub._links._links.values()
    assert routed.limits.target_vocab_size == info.vocab_size


@pytest.mark.parametrize("drafts", [{"model": DRAFT}, {"method": "ngram"}], ids=["model", "n-grams"])
@pytest.mark.parametrize(
    "remote",
    [
        {"endpoint": "tcp://h:1"},
        {"fallback": "ngram", "deadline_ms": 50.0},
        {"keys": "keys/"},
        {"insecure": True},
    ],
    ids=lambda remote: next(iter(remote)),
)
def test_settings_of_a_hub_elsewhere_are_refused_by_name(drafts: dict[str, Any], remote: dict[str, Any]) -> None:
    config, tokenizer = ModelConfig(model=TARGET, max_model_len=64), load_tokenizer(TARGET)
    speculative = SpeculativeConfig.from_mapping({**drafts, "remote": remote})
    with pytest.raises(ConfigError) as early:
        check_drafts(config, speculative, tokenizer)
    with pytest.raises(ConfigError) as late:
        local_drafts(config, load_runner(config).info, speculative, TargetStats(), tokenizer)
    for raised in (early, late):
        assert all(f"remote.{name}" in str(raised.value) for name in remote)


def test_target_and_draft_that_fit_only_alone_are_refused_before_weights_are_read(monkeypatch) -> None:
    config, tokenizer = ModelConfig(model=TARGET, max_model_len=64), load_tokenizer(TARGET)
    num_bytes = load_runner(config).cache.num_bytes
    speculative = SpeculativeConfig(model=DRAFT)
    monkeypatch.setattr("starspec.local_star.machine_bytes", lambda: 2 * num_bytes)
    check_drafts(config, speculative, tokenizer)
    monkeypatch.setattr("starspec.local_star.machine_bytes", lambda: 2 * num_bytes - 1)
    with pytest.raises(ConfigError, match=f"take {num_bytes} and {num_bytes} bytes, together more than this machine's"):
        check_drafts(config, speculative, tokenizer)
    check_drafts(config, speculative, tokenizer, is_target_ours=False)
