"""vLLM's CPU sampler loses numbers on their way to the draft tokens: found, patched, left alone elsewhere."""

from typing import Any

import pytest
import torch
from toy_sampler import add_sampler

from starspec.integrations.vllm.cpu_sampler import expand_batch_to_tokens, patch_sampler


def broken(x: torch.Tensor, cu_num_tokens: torch.Tensor, num_tokens: int, **_: Any) -> torch.Tensor:
    """As vLLM 0.32 on CPU, with something certain in the place of what happened to be in memory."""
    return torch.full((num_tokens,), 3.3, dtype=x.dtype)


def test_a_broken_one_is_mended(vllm_config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = add_sampler(monkeypatch, broken)
    assert patch_sampler()
    assert sampler.expand_batch_to_tokens is expand_batch_to_tokens
    assert not patch_sampler()


@pytest.mark.parametrize("is_cpu", [True, False])
def test_others_are_left_alone(is_cpu: bool, vllm_config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def theirs(*arguments: Any, **options: Any) -> torch.Tensor:
        assert is_cpu, "kernels of a GPU are not tried"
        return expand_batch_to_tokens(*arguments, **options)

    sampler = add_sampler(monkeypatch, theirs, is_cpu)
    assert not patch_sampler()
    assert sampler.expand_batch_to_tokens is theirs


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.int64])
def test_each_token_gets_the_number_of_its_request(dtype: torch.dtype) -> None:
    x, ends = torch.tensor([7, 0, 5], dtype=dtype), torch.tensor([2, 2, 5], dtype=torch.int32)
    assert expand_batch_to_tokens(x, ends, 5).tolist() == [7, 7, 5, 5, 5]
    ends = torch.tensor([1, 3, 4], dtype=torch.int32)
    assert expand_batch_to_tokens(x, ends, 4, replace_from=0, replace_to=1).tolist() == [7, 1, 1, 5]
