"""Which form each linear of a model gets: the only place that turns a config's quantization into linears."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from torch import Tensor

from starspec.config import ModelConfig
from starspec.models.linear import quantized_cpu, quantized_cuda
from starspec.models.linear.dense import is_dense, pack_dense
from starspec.models.linear.interface import PackedLinear, Packer
from starspec.models.linear.quantized_cpu import DynamicInt8Linear, RefinedHead, can_multiply_int8
from starspec.models.linear.switching import RowLimit, SwitchingLinear


def make_packer(
    config: ModelConfig, vocab_size: int | None, limit: RowLimit | None = None, *, rounds_inputs: bool = True
) -> Packer:
    """The packer that a config asks for.

    A weight whose shape the quantized kernel cannot handle stays dense. With `numerics="fast"`, a quantized linear has
    a second form for many rows. Otherwise one form serves any number of rows, so that a row's bits do not depend on it.

    Args:
        config: of the model.
        vocab_size: outputs of the layer that gives the logits, by which that layer is recognised; None = it is not
            packed by this packer.
        limit: how many rows count as few for quantized weights on a CPU; None = measured on this packer's linears.
        rounds_inputs: whether the form for many rows may round its inputs. It must not where parts of an input are much
            larger than others.
    """
    tried = limit or RowLimit()

    def pack(weight: Tensor, bias: Tensor | None) -> PackedLinear:
        kind = _kind(config.quantization, weight)
        if kind is None:
            return pack_dense(weight, bias)
        is_head = weight.shape[0] == vocab_size

        def form(packer: Packer) -> PackedLinear:
            linear = packer(weight, bias)
            return RefinedHead(linear, weight, bias) if is_head and not is_dense(linear) else linear

        for_few = form(kind.for_few)
        if config.numerics != "fast":
            return for_few
        for_many = form(kind.for_many if rounds_inputs else pack_dense)
        linear = SwitchingLinear(for_few, for_many, kind.limit or tried, weight.shape[1], weight.dtype)
        if kind.limit is None and not is_head:
            tried.try_on(linear)
        return linear

    return pack


@dataclass(frozen=True, slots=True)
class _Kind:
    """The quantized forms of a linear."""

    for_few: Packer  # for few rows
    fits: Callable[[Tensor], bool]  # whether its kernel takes a weight [N, K]
    for_many: Packer = pack_dense  # for many rows
    limit: RowLimit | None = None  # how many rows are few; None = measured


def pack_for_many_rows(weight: Tensor, bias: Tensor | None) -> PackedLinear:
    """The fastest linear on a CPU for the prefills and batches of a draft."""
    return DynamicInt8Linear(weight, bias) if can_multiply_int8(weight) else pack_dense(weight, bias)


KINDS: Final[Mapping[tuple[str, str], _Kind]] = {
    ("cpu", "int8"): _Kind(quantized_cpu.Int8Linear, quantized_cpu.fits_int8, pack_for_many_rows),
    ("cpu", "int4"): _Kind(quantized_cpu.Int4Linear, quantized_cpu.fits_int4, pack_for_many_rows),
    ("cuda", "int8"): _Kind(
        quantized_cuda.CompiledInt8Linear, lambda _: True, limit=RowLimit(quantized_cuda.MAX_INT8_ROWS)
    ),
    ("cuda", "int4"): _Kind(
        quantized_cuda.TorchaoInt4Linear, quantized_cuda.fits_int4, limit=RowLimit(quantized_cuda.MAX_INT4_ROWS)
    ),
}


def _kind(quantization: str, weight: Tensor) -> _Kind | None:
    """The quantized forms for a weight; None if nothing is to be quantized, or if this weight cannot be."""
    kind = KINDS.get((weight.device.type, quantization))
    return kind if kind is not None and kind.fits(weight) else None
