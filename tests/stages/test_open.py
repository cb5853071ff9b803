"""What a target in stages checks before it connects to them."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from starspec.config import Dtype, ModelConfig, TargetConfig
from starspec.errors import ConfigError
from starspec.ids import PipeEpoch, StageId, TargetId
from starspec.models.runner import ModelInfo
from starspec.stages.open import check_size, warn_of_rows
from starspec.stages.pipe import Pipe
from starspec.wire.messages import Attached

INFO = ModelInfo("m", 100, 100, 1, 1, (), hidden_size=8192)


@pytest.mark.parametrize(("dtype", "most"), [("float32", 2048), ("bfloat16", 4096)])
def test_chunks_and_rounds_that_stages_would_not_take_are_refused_at_the_start(dtype: Dtype, most: int) -> None:
    model = ModelConfig(model="m", dtype=dtype)
    assert check_size(INFO, model, TargetConfig(max_num_seqs=most, prefill_chunk=most)) == most
    with pytest.raises(ConfigError, match=f"--max-num-seqs must be at most {most} for stages of this model"):
        check_size(INFO, model, TargetConfig(max_num_seqs=most + 1))
    with pytest.raises(ConfigError, match=f"--prefill-chunk must be at most {most} for stages of this model"):
        check_size(INFO, model, TargetConfig(prefill_chunk=most + 1))


def test_a_stage_with_fewer_rows_than_the_target_may_use_is_named_with_its_option() -> None:
    stages = [
        Attached(PipeEpoch(1), layer, layer + 1, 2, "f", num_rows, 100, StageId(str(layer) * 16))
        for layer, num_rows in enumerate((8, 2))
    ]
    pipe = Pipe(("a", "b"), tuple(stages), PipeEpoch(1), 9.0, TargetId("t"))
    with capture_logs() as logs:
        warn_of_rows(pipe, TargetConfig(max_num_seqs=2))
        assert not logs
        warn_of_rows(pipe, TargetConfig(max_num_seqs=8))
    [line] = logs
    assert (line["rows"], line["wanted"]) == (2, 8)
    assert line["why"] == "stage b has 2: start it with a higher --max-num-seqs for more"
