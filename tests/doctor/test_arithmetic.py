"""What is said of a number format."""

from collections.abc import Callable

import pytest
import torch

from starspec.doctor import checks as arithmetic
from starspec.doctor.checks import (
    NUM_REPEATS,
    NUM_ROWS,
    SIZE,
    check_arithmetic,
    judge_arithmetic,
    linear_seconds,
)


def test_a_format_that_the_processor_converts_is_advised_against() -> None:
    check = judge_arithmetic("bfloat16", 2.44)
    assert check.severity == "warning"
    assert "2.4 times" in check.sentence
    assert "--dtype float32" in check.sentence


def test_a_format_that_it_knows_is_not() -> None:
    assert judge_arithmetic("bfloat16", 0.6).severity == "ok"


def test_there_is_nothing_to_say_of_float32_and_of_accelerators() -> None:
    assert check_arithmetic("float32", "cpu") == []
    assert check_arithmetic("bfloat16", "cuda:0") == []
    assert len(check_arithmetic("bfloat16", "cpu")) == 1


def test_a_linear_of_the_format_is_run_over_the_rows_of_a_verification(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def pack(weight: torch.Tensor, bias: None) -> Callable[[torch.Tensor], None]:
        return lambda x: seen.append((weight.dtype, x.dtype, x.shape))

    monkeypatch.setattr(arithmetic, "pack_dense", pack)
    linear_seconds(torch.bfloat16)
    assert seen == [(torch.bfloat16, torch.bfloat16, (NUM_ROWS, SIZE))] * NUM_REPEATS
