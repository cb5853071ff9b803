"""What a target in stages checks before it connects to them."""

from __future__ import annotations

import pytest

from starspec.config import Dtype, ModelConfig, TargetConfig
from starspec.errors import ConfigError
from starspec.models.runner import ModelInfo
from starspec.stages.open import check_size

INFO = ModelInfo("m", 100, 100, 1, 1, (), hidden_size=8192)


@pytest.mark.parametrize(("dtype", "most"), [("float32", 2048), ("bfloat16", 4096)])
def test_chunks_and_rounds_that_stages_would_not_take_are_refused_at_the_start(dtype: Dtype, most: int) -> None:
    model = ModelConfig(model="m", dtype=dtype)
    assert check_size(INFO, model, TargetConfig(max_num_seqs=most, prefill_chunk=most)) == most
    with pytest.raises(ConfigError, match=f"--max-num-seqs must be at most {most} for stages of this model"):
        check_size(INFO, model, TargetConfig(max_num_seqs=most + 1))
    with pytest.raises(ConfigError, match=f"--prefill-chunk must be at most {most} for stages of this model"):
        check_size(INFO, model, TargetConfig(prefill_chunk=most + 1))
