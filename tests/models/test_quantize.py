"""Rounding of weights to int8 and int4 codes."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from starspec.models.linear.quantize import INT4_GROUP, INT4_LEVELS, quantize_int4, quantize_int8


def random_weight(num_outputs=48, num_inputs=96, seed=0, dtype=torch.bfloat16):
    return torch.randn(num_outputs, num_inputs, generator=torch.Generator().manual_seed(seed)).to(dtype) * 0.05


def by_extremes(weight):
    """The plain rule: the ends of each group's range become codes 0 and 15."""
    groups = weight.float().unflatten(1, (-1, INT4_GROUP))
    low, high = groups.aminmax(dim=-1, keepdim=True)
    scale = ((high - low) / (INT4_LEVELS - 1)).to(weight.dtype).float()
    zero = (low + INT4_LEVELS / 2 * scale).to(weight.dtype).float()
    codes = ((groups - zero) / scale + INT4_LEVELS / 2).round().clamp(0, INT4_LEVELS - 1)
    return ((codes - INT4_LEVELS / 2) * scale + zero).flatten(1)


def squared_error(approximation, weight):
    return (approximation - weight.float()).square().sum().item()


@pytest.mark.parametrize("seed", range(3))
def test_int4_fits_better_than_the_extremes_of_each_group(seed):
    weight = random_weight(num_inputs=512, seed=seed)
    assert squared_error(quantize_int4(weight).dequantized(), weight) < 0.92 * squared_error(
        by_extremes(weight), weight
    )


def test_an_outlier_does_not_cost_its_whole_group():
    weight = random_weight(16, 32)
    weight[:, 5] = 1.0
    assert squared_error(quantize_int4(weight).dequantized(), weight) < squared_error(by_extremes(weight), weight)


@given(values=st.lists(st.integers(0, 15), min_size=30, max_size=30), scale=st.sampled_from((0.25, 0.03125)))
def test_groups_that_are_sixteen_levels_already_are_kept(values, scale):
    """A checkpoint that was made of 4-bit groups, as most GGUF files, loses nothing."""
    weight = (torch.tensor([[0, 15, *values]], dtype=torch.float32) - 4) * scale
    torch.testing.assert_close(quantize_int4(weight).dequantized(), weight, atol=scale / 100, rtol=0)


@pytest.mark.parametrize("value", [0.0, 0.5, -3.0])
def test_a_constant_group_is_kept(value):
    weight = torch.full((16, 64), value, dtype=torch.bfloat16)
    torch.testing.assert_close(quantize_int4(weight).dequantized(), weight.float())


def test_int4_rounds_every_row_by_itself():
    """Rows are rounded in chunks; the chunk's size must not show."""
    weight = random_weight(num_outputs=64)
    whole, half = quantize_int4(weight), quantize_int4(weight[:32])
    assert all(torch.equal(of_all[:32], of_half) for of_all, of_half in zip(whole, half, strict=True))


def test_int8_errs_by_half_a_step_at_most():
    weight = random_weight(dtype=torch.float32)
    rows = quantize_int8(weight)
    assert ((rows.dequantized() - weight).abs() <= 0.501 * rows.scales.unsqueeze(1)).all()
    assert (rows.codes.abs().amax(1) == 127).all()


def test_int8_keeps_a_row_of_zeros():
    assert torch.equal(quantize_int8(torch.zeros(2, 32)).dequantized(), torch.zeros(2, 32))
