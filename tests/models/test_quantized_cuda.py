import sys

import pytest
import torch

from starspec.errors import ConfigError
from starspec.models.linear import quantized_cuda
from starspec.models.linear.quantized_cuda import CompiledInt8Linear, TorchaoInt4Linear


def test_without_torchao_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchao.quantization", None)
    with pytest.raises(ConfigError, match=r"need torchao; install starspec\[cuda\]"):
        TorchaoInt4Linear(torch.zeros(64, 64), None)


@pytest.mark.parametrize("with_bias", [False, True])
def test_int8_of_one_row_goes_to_the_compiled_product_and_every_other_does_not(monkeypatch, with_bias):
    met = []

    def one_row(x, *others):
        met.append(tuple(x.shape))
        return quantized_cuda._product(x, *others)

    monkeypatch.setattr(quantized_cuda, "product_of_a_row", lambda: one_row)
    generator = torch.Generator().manual_seed(0)
    weight, bias, x = (torch.randn(shape, generator=generator) for shape in ((48, 32), (48,), (3, 32)))
    linear = CompiledInt8Linear(weight, bias if with_bias else None)
    expected = x @ weight.t() + (bias if with_bias else 0)
    for rows in (x, x[:1]):
        # a weight is off by up to 1/254 of its row's largest, about 3 here; 32 of them with random signs
        torch.testing.assert_close(linear(rows), expected[: len(rows)], atol=0.3, rtol=0)
    assert met == [(1, 32)]
    assert linear.num_bytes == 48 * 32 + 4 * 48 * (2 if with_bias else 1)
