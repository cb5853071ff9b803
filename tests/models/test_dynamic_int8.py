import pytest
import torch
import torch.nn.functional as F

from starspec.models.linear import quantized_cpu
from starspec.models.linear.quantize import INT8_MAX, quantize_int8
from starspec.models.linear.quantized_cpu import DynamicInt8Linear, can_multiply_int8, largest_weight_code

pytestmark = pytest.mark.skipif(
    not can_multiply_int8(torch.empty(1, 1)), reason="this processor has no kernels for integer products"
)
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def random_weight(num_outputs=64, num_inputs=96, dtype=torch.float32):
    return (torch.randn(num_outputs, num_inputs, generator=torch.Generator().manual_seed(1)) * 0.1).to(dtype)


def random_rows(num_rows, num_inputs=96, dtype=torch.float32):
    return torch.randn(num_rows, num_inputs, generator=torch.Generator().manual_seed(2)).to(dtype)


def as_rounded(rows):
    """What the codes of the rows stand for, in float64."""
    step = rows.double().abs().amax(1, keepdim=True) / INT8_MAX
    return torch.where(step > 0, (rows.double() / step).round() * step, 0.0)


@pytest.mark.parametrize("shape", [(64, 96), (1, 1), (7, 5), (40, 33), (130, 257)])
@pytest.mark.parametrize("num_rows", [1, 2, 5, 64])
def test_the_product_is_that_of_what_the_codes_stand_for(shape, num_rows):
    weight, rows = random_weight(*shape), random_rows(num_rows, shape[1])
    expected = as_rounded(rows) @ quantize_int8(weight.bfloat16(), largest_weight_code()).dequantized().double().t()
    out = DynamicInt8Linear(weight, None)(rows)
    assert out.shape == (num_rows, shape[0])
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-2)  # a code that lies between two


def test_no_sum_is_cut_off():
    """The largest codes of both: where products are added in 16 bits, two of them must fit."""
    weight, rows = torch.full((16, 64), 1.0), torch.full((3, 64), 1.0)
    weight[1::2] = -1.0
    rows[1] = -1.0
    out = DynamicInt8Linear(weight, None)(rows)
    torch.testing.assert_close(out, rows @ weight.t(), rtol=1e-2, atol=0)  # scales are bfloat16


@pytest.mark.parametrize("dtype", DTYPES)
def test_rounding_both_costs_little_in_any_dtype(dtype):
    weight, rows, bias = random_weight(dtype=dtype), random_rows(17, dtype=dtype), torch.ones(64, dtype=dtype)
    out, exact = DynamicInt8Linear(weight, bias)(rows), F.linear(rows.double(), weight.double(), bias.double())
    assert out.dtype == dtype
    assert (out.double() - exact).norm() / exact.norm() < 0.03


def test_a_weight_of_zeros_is_zero_in_any_dtype():
    for dtype in DTYPES:
        assert torch.equal(
            DynamicInt8Linear(torch.zeros(8, 16, dtype=dtype), None)(random_rows(2, 16, dtype)),
            torch.zeros(2, 8, dtype=dtype),
        )


@pytest.mark.parametrize("largest", [1e-30, 1e-3, 1e4, 1e30])
def test_a_row_has_a_scale_of_its_own(largest):
    """One whose numbers are large takes nothing from its neighbours."""
    linear, rows = DynamicInt8Linear(random_weight(), None), random_rows(3)
    alone = linear(rows[:1])
    rows[1] *= largest
    beside = linear(rows)
    assert torch.equal(beside[:1], alone)
    torch.testing.assert_close(beside[1] / largest, linear(random_rows(3))[1], rtol=1e-3, atol=1e-3)


def test_a_row_does_not_depend_on_the_others():
    linear, rows = DynamicInt8Linear(random_weight(), None), random_rows(64)
    whole = linear(rows)
    assert all(torch.equal(linear(rows[:n]), whole[:n]) for n in range(1, 64))


def test_a_row_of_zeros_gives_the_bias():
    bias = torch.arange(64.0)
    assert torch.equal(DynamicInt8Linear(random_weight(), bias)(torch.zeros(2, 96)), bias.expand(2, -1))


def test_the_weight_may_be_freed_and_a_byte_a_weight_is_kept():
    weight = random_weight()
    linear, rows = DynamicInt8Linear(weight, None), random_rows(2)
    before = linear(rows)
    weight.zero_()
    assert torch.equal(linear(rows), before)
    assert linear.num_bytes == weight.numel() + 4 * len(weight)


def test_processors_without_kernels_for_it_are_told_apart(monkeypatch):
    weight = random_weight()
    assert not can_multiply_int8(weight.to("meta"))
    for capability, can in (("AVX2", True), ("AVX512", True), ("DEFAULT", False), ("SVE256", False)):
        monkeypatch.setattr(quantized_cpu.torch.backends.cpu, "get_cpu_capability", lambda each=capability: each)
        assert can_multiply_int8(weight) == can
