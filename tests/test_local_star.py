"""What a hub within the process is told of its target."""

from __future__ import annotations

from dataclasses import replace

from starspec.config import ModelConfig, SpeculativeConfig
from starspec.local_star import LocalHub
from starspec.models.loading.load import load_runner
from starspec.models.loading.tokenizer import load_tokenizer

TARGET = "synthetic:vocab=64,step_ms=0,alpha=0.7"
DRAFT = f"{TARGET},role=draft"


def test_the_hub_is_told_of_all_rows_of_a_padded_embedding() -> None:
    config, tokenizer = ModelConfig(model=TARGET, max_model_len=64), load_tokenizer(TARGET)
    info = replace(load_runner(config).info, vocab_size=len(tokenizer) + 28)
    hub = LocalHub(config, info, SpeculativeConfig(model=DRAFT), tokenizer)
    hub.connect().receive(0.0)
    (routed,) = hub._loop._hub._links._links.values()
    assert routed.limits.target_vocab_size == info.vocab_size
