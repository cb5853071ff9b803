import pytest
import torch
import torch.nn.functional as F

from starspec.config import ModelConfig
from starspec.models.linear import dense, packer, switching
from starspec.models.linear.dense import PlainLinear, PrepackedLinear, can_prepack, pack_dense
from starspec.models.linear.packer import make_packer
from starspec.models.linear.quantize import quantize_int4, quantize_int8
from starspec.models.linear.quantized_cpu import (
    DynamicInt8Linear,
    Int4Linear,
    Int8Linear,
    RefinedHead,
    can_multiply_int8,
)
from starspec.models.linear.switching import UNTRIED, SwitchingLinear

VOCAB_SIZE = 1024
SHAPE = (64, 96)


def random_linear(num_outputs=SHAPE[0], num_inputs=SHAPE[1], dtype=torch.bfloat16, bias=False):
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(num_outputs, num_inputs, generator=generator).to(dtype) * 0.1
    return weight, torch.randn(num_outputs, generator=generator).to(dtype) if bias else None


def random_rows(num_rows, num_inputs=SHAPE[1], dtype=torch.bfloat16):
    return torch.randn(num_rows, num_inputs, generator=torch.Generator().manual_seed(2)).to(dtype)


def relative_gap(out, expected):
    return ((out.float() - expected.float()).norm() / expected.float().norm()).item()


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16])
@pytest.mark.parametrize("num_rows", [1, 2, 5, 17])
@pytest.mark.parametrize(("kind", "quantize"), [(Int8Linear, quantize_int8), (Int4Linear, quantize_int4)])
def test_the_kernel_multiplies_by_what_the_codes_stand_for(kind, quantize, num_rows, dtype, bias):
    weight, shift = random_linear(dtype=dtype, bias=bias)
    rows = random_rows(num_rows, dtype=dtype)
    out = kind(weight, shift)(rows)
    codes = quantize(weight.bfloat16()).dequantized()
    expected = F.linear(rows.bfloat16().float(), codes, None if shift is None else shift.float())
    assert out.dtype == dtype
    assert relative_gap(out, expected) < 0.01  # bfloat16 sums


@pytest.mark.parametrize("kind", [Int8Linear, Int4Linear])
def test_a_quantized_row_does_not_depend_on_the_others(kind):
    linear, rows = kind(*random_linear()), random_rows(16)
    whole = linear(rows)
    assert all(torch.equal(linear(rows[:n]), whole[:n]) for n in range(1, 16))


def test_the_refined_head_gives_its_best_candidates_their_dense_logits():
    weight, bias = random_linear(VOCAB_SIZE, bias=True)
    rows = random_rows(3)
    rough, dense = Int4Linear(weight, bias), F.linear(rows, weight, bias)
    out = RefinedHead(rough, weight, bias)(rows)
    best = dense.topk(4).indices
    torch.testing.assert_close(out.gather(1, best), dense.gather(1, best), atol=0.02, rtol=0.01)
    assert relative_gap(rough(rows).gather(1, best), dense.gather(1, best)) > relative_gap(
        out.gather(1, best), dense.gather(1, best)
    )
    assert relative_gap(out, dense) < 0.2  # the others stay as rough as they were


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("num_rows", [1, 2, 33])
def test_a_dense_linear_is_the_linear(dtype, bias, num_rows):
    weight, shift = random_linear(dtype=dtype, bias=bias)
    rows = random_rows(num_rows, dtype=dtype)
    out = pack_dense(weight, shift)(rows)
    assert relative_gap(out, F.linear(rows, weight, shift)) < {torch.float32: 1e-6}.get(dtype, 0.01)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_dtype_without_arithmetic_is_multiplied_as_float32(monkeypatch, dtype):
    monkeypatch.setattr(dense, "is_native", lambda each: each == torch.float32)
    weight, bias = random_linear(dtype=dtype, bias=True)
    rows = random_rows(17, dtype=dtype)
    linear = pack_dense(weight, bias)
    out = linear(rows)
    exact = F.linear(rows.double(), weight.double(), bias.double())
    assert out.dtype == dtype
    assert relative_gap(out, exact) < 1.05 * relative_gap(exact.to(dtype), exact)  # rounded once
    assert all(torch.equal(linear(rows[:n]), out[:n]) for n in range(2, 17))
    assert linear.num_bytes == 4 * (weight.numel() + bias.numel())


def test_only_what_onednn_multiplies_is_prepacked():
    weight = random_linear(dtype=torch.float32)[0]
    assert isinstance(pack_dense(weight, None), PrepackedLinear)
    assert isinstance(pack_dense(weight.to("meta"), None), PlainLinear)
    assert not can_prepack(weight.double())


def pack(quantization, numerics, shape, bias=False):
    config = ModelConfig(model="tiny", quantization=quantization, numerics=numerics)
    return make_packer(config, VOCAB_SIZE)(*random_linear(*shape, bias=bias))


@pytest.mark.parametrize("shape", [(60, 96), (64, 80), (64, 33)], ids=["outputs", "inputs", "odd"])
def test_a_weight_that_the_int4_kernel_does_not_take_stays_dense(shape):
    linear = pack("int4", "invariant", shape, bias=True)
    weight, bias = random_linear(*shape, bias=True)
    rows = random_rows(3, shape[1])
    assert relative_gap(linear(rows), F.linear(rows, weight, bias)) < 0.01


def test_a_weight_that_the_int8_kernel_would_read_past_stays_dense():
    weight, _ = random_linear(64, 40)
    assert isinstance(pack("int8", "invariant", (64, 40)), type(pack_dense(weight, None)))


def test_of_as_many_outputs_as_a_vocabulary_has_tokens_only_the_logits_layer_is_refined():
    config, weight = ModelConfig(model="tiny", quantization="int4"), random_linear(*SHAPE)[0]
    assert isinstance(make_packer(config, SHAPE[0])(weight, None), RefinedHead)
    assert not isinstance(make_packer(config, None)(weight, None), RefinedHead)


@pytest.mark.parametrize(("can_multiply", "gap"), [(True, 0.05), (False, 0.01)])
def test_with_fast_numerics_many_rows_are_multiplied_as_integers_or_dense_and_few_are_not(
    monkeypatch, can_multiply, gap
):
    monkeypatch.setattr(packer, "can_multiply_int8", lambda _: can_multiply)
    linear = pack("int4", "fast", SHAPE)
    weight, _ = random_linear()
    few, many = random_rows(UNTRIED), random_rows(UNTRIED + 1)
    assert isinstance(linear, SwitchingLinear)
    assert isinstance(linear.for_many, DynamicInt8Linear) == can_multiply
    assert relative_gap(linear(many), F.linear(many, weight)) < gap < relative_gap(linear(few), F.linear(few, weight))


@pytest.mark.parametrize(("rows", "form"), [(0, "for_many"), (1, "for_few")])
def test_all_linears_of_a_model_but_its_output_layer_are_tried_and_share_what_is_found(monkeypatch, rows, form):
    tried = []
    monkeypatch.setattr(switching, "SAMPLE_BYTES", 2 * SHAPE[0] * SHAPE[1] * 5 // 8)
    monkeypatch.setattr(switching, "most_rows_for_few", lambda linears, _: tried.extend(linears) or rows)
    packer = make_packer(ModelConfig(model="tiny", quantization="int4", numerics="fast"), VOCAB_SIZE)
    head = packer(*random_linear(VOCAB_SIZE))
    linears = [packer(*random_linear()) for _ in range(3)]
    assert tried == linears[:2]
    for each in (head, *linears):
        assert each.num_bytes == getattr(each, form).num_bytes


def test_where_inputs_may_not_be_rounded_many_rows_are_dense():
    config = ModelConfig(model="tiny", quantization="int4", numerics="fast")
    assert isinstance(make_packer(config, None, rounds_inputs=False)(*random_linear()).for_many, PrepackedLinear)


def test_both_forms_of_an_output_layer_are_refined_if_they_round(monkeypatch):
    linear = pack("int4", "fast", (VOCAB_SIZE, 96))
    assert isinstance(linear.for_few, RefinedHead)
    assert isinstance(linear.for_many, RefinedHead) == can_multiply_int8(random_linear()[0])
    monkeypatch.setattr(packer, "can_multiply_int8", lambda _: False)
    assert isinstance(pack("int4", "fast", (VOCAB_SIZE, 96)).for_many, PrepackedLinear)


def test_with_invariant_numerics_a_row_never_depends_on_the_others():
    linear, rows = pack("int4", "invariant", SHAPE), random_rows(32)
    assert all(torch.equal(linear(rows[:n]), linear(rows)[:n]) for n in (1, UNTRIED, UNTRIED + 1))


def test_the_output_layer_is_refined_and_no_other():
    assert isinstance(pack("int4", "invariant", (VOCAB_SIZE, 96)), RefinedHead)
    assert isinstance(pack("int4", "invariant", SHAPE), Int4Linear)


def test_int4_is_five_bits_a_weight_and_int8_is_eight():
    num_weights = SHAPE[0] * SHAPE[1]
    assert pack("int4", "invariant", SHAPE).num_bytes == num_weights * 5 // 8
    assert pack("int8", "invariant", SHAPE).num_bytes == num_weights + 2 * SHAPE[0]


@pytest.mark.parametrize("offset", [1, 2, 8, 16])
@pytest.mark.parametrize("kind", [Int8Linear, Int4Linear])
def test_the_input_may_lie_anywhere(kind, offset):
    """Views of received bytes are not aligned like torch's own memory: torch's int8 kernel crashed on them."""
    linear = kind(torch.randn(64, 96).to(torch.bfloat16), None)
    rows = torch.randn(2 * 96 + offset).to(torch.bfloat16)[offset:].view(2, 96)
    assert torch.equal(linear(rows), linear(rows.clone()))
