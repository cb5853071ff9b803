"""Which form each linear of a model takes: the one place where a config's quantization becomes layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D  # GPT-2's linear, with its weight the other way round

from starspec.config import ModelConfig
from starspec.models import quantized_cuda, weight_only
from starspec.models.linear import PackedLinear, Packer
from starspec.models.prepack import num_dense_bytes, pack_dense
from starspec.models.weight_only import NarrowOrWide, RefinedHead


def make_packer(config: ModelConfig, vocab_size: int | None) -> Packer:
    """The packer that a config asks for.

    Weights whose shape a quantized kernel does not take stay dense. With `numerics="fast"` a quantized linear keeps a
    dense form beside it for many rows; else it is quantized for any number, so that a row's bits do not depend on it.

    Args:
        vocab_size: outputs of the layer that gives the logits, by which it is recognised; None = it is not among those
            that are packed.
    """

    def pack(weight: Tensor, bias: Tensor | None) -> PackedLinear:
        kind = _kind(config.quantization, weight)
        if kind is None:
            return pack_dense(weight, bias)
        narrow = kind.linear(weight, bias)
        if weight.shape[0] == vocab_size:
            narrow = RefinedHead(narrow, weight, bias)
        is_fast = config.numerics == "fast"
        return NarrowOrWide(narrow, pack_dense(weight, bias), kind.max_rows(weight)) if is_fast else narrow

    return pack


def swap_linears(model: nn.Module, pack: Packer) -> None:
    """Replace every plain linear of a model by its packed form.

    Effects: the model's modules; weights that nothing else holds are freed.
    """
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) in (nn.Linear, Conv1D):
                setattr(parent, name, SwappedLinear(child, pack))


class SwappedLinear(nn.Module):
    """A linear module whose product is computed by a packed linear."""

    def __init__(self, linear: Any, pack: Packer) -> None:
        super().__init__()
        weight: Tensor = linear.weight.t() if isinstance(linear, Conv1D) else linear.weight  # [N, K]
        bias: Tensor | None = linear.bias
        self.out_features, self.in_features = weight.shape
        self._packed = pack(weight.detach(), None if bias is None else bias.detach())
        # shape and dtype without memory, for code that asks a layer about its weight
        self.weight = torch.empty_like(weight, device="meta", requires_grad=False)

    @property
    def num_bytes(self) -> int:
        """Bytes of weights read by one call."""
        return self._packed.num_bytes

    def forward(self, x: Tensor) -> Tensor:
        """x [..., K] -> [..., N]."""
        out = self._packed(x.reshape(-1, x.shape[-1]))
        return out.view(*x.shape[:-1], out.shape[-1])


def num_step_bytes(model: nn.Module) -> int:
    """Bytes of weights that one decoding step reads: everything but the rows of the embedding that it skips."""
    linears = [each for each in model.modules() if type(each) is nn.Linear]
    swapped = [each for each in model.modules() if isinstance(each, SwappedLinear)]
    embeddings = [each for each in model.modules() if isinstance(each, nn.Embedding)]
    # a tied weight belongs to the linear: it is counted there and the embedding is not
    known = {id(parameter) for each in (*linears, *embeddings) for parameter in each.parameters()}
    others = [each for each in model.parameters() if id(each) not in known]
    return (
        sum(num_dense_bytes(each.weight, each.bias) for each in linears)
        + sum(each.num_bytes for each in swapped)
        + sum(num_dense_bytes(each, None) for each in others)
    )


@dataclass(frozen=True, slots=True)
class _Kind:
    """A quantized form of a linear."""

    linear: Packer
    fits: Callable[[Tensor], bool]  # whether its kernel takes a weight [N, K]
    max_rows: Callable[[Tensor], int]  # more of them are faster with a dense weight [N, K]


KINDS: Final[Mapping[tuple[str, str], _Kind]] = {
    ("cpu", "int8"): _Kind(weight_only.Int8Linear, weight_only.fits_int8, weight_only.max_rows),
    ("cpu", "int4"): _Kind(weight_only.Int4Linear, weight_only.fits_int4, weight_only.max_rows),
    ("cuda", "int8"): _Kind(quantized_cuda.CompiledInt8Linear, lambda _: True, lambda _: quantized_cuda.MAX_INT8_ROWS),
    ("cuda", "int4"): _Kind(
        quantized_cuda.TorchaoInt4Linear, quantized_cuda.fits_int4, lambda _: quantized_cuda.MAX_INT4_ROWS
    ),
}


def _kind(quantization: str, weight: Tensor) -> _Kind | None:
    """None if nothing is to be quantized, or this weight cannot be."""
    kind = KINDS.get((weight.device.type, quantization))
    return kind if kind is not None and kind.fits(weight) else None
