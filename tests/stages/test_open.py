"""What a target in stages checks at its start: sizes, and whether the stages are its model."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from starspec.config import MAX_DRAFT_TOKENS, Dtype, ModelConfig, TargetConfig
from starspec.errors import ConfigError
from starspec.ids import PipeEpoch, StageId, TargetId
from starspec.models.runner import ModelInfo
from starspec.stages.open import check_model, check_size, warn_of_rows
from starspec.stages.pipe import Pipe
from starspec.wire.messages import Attached

INFO = ModelInfo("m", 100, 100, 1, 1, (), num_layers=2, hidden_size=8192, fingerprint="f")
MODEL = ModelConfig(model="m", dtype="float32")


def pipe(**last: object) -> Pipe:
    """Two stages of the model, but for what is said of the last one."""
    stages = [
        Attached(
            PipeEpoch(1), layer, layer + 1, 2, "f", 8, 100 + MAX_DRAFT_TOKENS, StageId(str(layer) * 16), dtype="float32"
        )
        for layer in range(2)
    ]
    return Pipe(("a", "b"), (stages[0], msgspec.structs.replace(stages[1], **last)), PipeEpoch(1), 9.0, TargetId("t"))


@pytest.mark.parametrize(("dtype", "most"), [("float32", 2048), ("bfloat16", 4096)])
def test_chunks_and_rounds_that_stages_would_not_take_are_refused_at_the_start(dtype: Dtype, most: int) -> None:
    model = ModelConfig(model="m", dtype=dtype)
    assert check_size(INFO, model, TargetConfig(max_num_seqs=most, prefill_chunk=most)) == most
    with pytest.raises(ConfigError, match=f"--max-num-seqs must be at most {most} for stages of this model"):
        check_size(INFO, model, TargetConfig(max_num_seqs=most + 1))
    with pytest.raises(ConfigError, match=f"--prefill-chunk must be at most {most} for stages of this model"):
        check_size(INFO, model, TargetConfig(prefill_chunk=most + 1))


def test_a_stage_with_fewer_rows_than_the_target_may_use_is_named_with_its_option() -> None:
    with capture_logs() as logs:
        warn_of_rows(pipe(num_rows=2), TargetConfig(max_num_seqs=2))
        assert not logs
        warn_of_rows(pipe(num_rows=2), TargetConfig(max_num_seqs=8))
    [line] = logs
    assert (line["rows"], line["wanted"]) == (2, 8)
    assert line["why"] == "stage b has 2: start it with a higher --max-num-seqs for more"


@pytest.mark.parametrize(
    ("last", "why"),
    [
        ({"fingerprint": "other"}, "stages a and b have different models or weights"),
        ({"dtype": "bfloat16"}, "stage a computes in float32, and stage b in bfloat16: give both the same --dtype"),
    ],
)
def test_stages_that_do_not_compute_one_model_are_refused_in_one_sentence(last: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigError, match=f"^{why}$"):
        pipe(**last)


@pytest.mark.parametrize(
    ("last", "info", "model", "why"),
    [
        ({}, {"fingerprint": "other"}, {}, "the stages have another model than 'm' here, or other weights"),
        ({}, {"num_layers": 3, "fingerprint": ""}, {}, "the stages' model has 2 layers, and 'm' 3"),
        (
            {},
            {},
            {"dtype": "bfloat16"},
            "the stages compute in float32, and the target is told bfloat16: give all the same --dtype",
        ),
        (
            {"max_len": 99 + MAX_DRAFT_TOKENS},
            {},
            {},
            "stage b holds sequences of 99 tokens, and the target may have 100: give all the same --max-model-len",
        ),
    ],
)
def test_stages_that_are_not_the_targets_model_are_refused_in_one_sentence(
    last: dict[str, object], info: dict[str, Any], model: dict[str, Any], why: str
) -> None:
    check_model(pipe(), INFO, MODEL)
    with pytest.raises(ConfigError, match=f"^{re.escape(why)}$"):
        check_model(pipe(**last), replace(INFO, **info), replace(MODEL, **model))
