"""What a target in stages checks before it connects to them."""

from __future__ import annotations

import pytest

from starspec.config import LengthConfig, ModelConfig, SpeculativeConfig, TargetConfig
from starspec.errors import ConfigError
from starspec.models.runner import ModelInfo
from starspec.stages.open import check_size

INFO = ModelInfo("m", 100, 100, 1, 1, (), hidden_size=8192)  # stages take 2048 tokens at once in 32 bits, 4096 in 16
DRAFTS = SpeculativeConfig(method="ngram", num_speculative_tokens=7, length=LengthConfig(policy="fixed"))


def test_rounds_that_stages_would_not_take_are_refused_at_the_start() -> None:
    model = ModelConfig(model="m", dtype="float32")
    check_size(INFO, model, TargetConfig(max_num_seqs=256), DRAFTS)
    check_size(INFO, model, TargetConfig(max_num_seqs=2048), None)
    with pytest.raises(ConfigError, match=r"may have 2056 tokens.* take 2048 at once: lower --max-num-seqs"):
        check_size(INFO, model, TargetConfig(max_num_seqs=257), DRAFTS)
    with pytest.raises(ConfigError, match="may have 2049 tokens"):
        check_size(INFO, model, TargetConfig(max_num_seqs=2049), None)


def test_hidden_states_in_16_bits_take_half_as_much() -> None:
    model = ModelConfig(model="m", dtype="bfloat16")
    check_size(INFO, model, TargetConfig(max_num_seqs=512), DRAFTS)
    with pytest.raises(ConfigError, match="take 4096 at once"):
        check_size(INFO, model, TargetConfig(max_num_seqs=513), DRAFTS)
