"""Unmodified Hugging Face modules over the ragged cache: the reference path, for every supported architecture.

The tokens of all segments form one row [1, R] with explicit positions. Everything but attention works token by token,
so it gives the same results as for separate sequences. Attention is replaced: it is registered with transformers under
the name `starspec_ragged`, and it attends to each cache row separately.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from starspec.config import ModelConfig
from starspec.errors import ModelError
from starspec.models.attention.rotary import check_rotary
from starspec.models.batch import PackedBatch
from starspec.models.linear.interface import StepLinear
from starspec.models.packed import FeatureTaps, PackedRunner, make_cache
from starspec.models.runner import ModelInfo, Segment

ATTENTION_NAME: Final = "starspec_ragged"
# Arguments by which some models change attention, and which this path does not compute. None always means "without".
UNSUPPORTED: Final = ("sliding_window", "softcap", "s_aux", "position_bias", "head_mask", "cache")


def ragged_attention(
    module: nn.Module,
    query: Tensor,  # [1, Hq, R, D]
    key: Tensor,  # [1, H, R, D]
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    starspec_batch: PackedBatch | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The attention function that transformers calls in every layer.

    Returns: [1, R, Hq, D], and None for the weights.
    Raises: ModelError for any argument that would change the result and is not computed here.
    Effects: the cache slots of the batch's tokens.
    """
    if starspec_batch is None:
        raise ModelError("its layers do not pass keyword arguments on to attention")
    unsupported = [name for name in UNSUPPORTED if kwargs.get(name) is not None]
    if unsupported or attention_mask is not None or dropout or kwargs.get("is_causal") is False:
        names = ", ".join(unsupported) or "a mask or dropout of its own"
        raise ModelError(f"its attention uses {names}")
    layer: int = module.layer_idx  # type: ignore[assignment]
    keys_values = torch.stack((key[0], value[0])).permute(2, 0, 1, 3)  # [R, 2, H, D]
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    out = starspec_batch.attention(layer, query[0].transpose(0, 1).contiguous(), keys_values, scaling)
    return out.view(1, -1, query.shape[1], query.shape[3]), None


AttentionInterface.register(ATTENTION_NAME, ragged_attention)


class TransformersRunner(PackedRunner):
    """Runs a `transformers` causal LM with its own modules.

    Args:
        model: in evaluation mode, on its device, in its dtype.
        config: rows and lengths of the cache.
        info: facts about the model.
    Raises: ModelError if the model's attention is not plain causal attention; one token is run to find out.
    Effects: switches the model's attention implementation.
    """

    def __init__(self, model: PreTrainedModel, config: ModelConfig, info: ModelInfo) -> None:
        check_rotary(model.config)
        num_heads = model.config.get_text_config(decoder=True).num_attention_heads
        super().__init__(
            info, make_cache(model, config, info), num_heads, model.get_output_embeddings().weight.shape[0]
        )
        model.set_attn_implementation(ATTENTION_NAME)
        self._model = model.eval()
        self._try_one_token()

    def _run(self, batch: PackedBatch, taps: FeatureTaps) -> Tensor:
        output = self._model(
            input_ids=batch.token_ids.unsqueeze(0),
            position_ids=batch.positions.unsqueeze(0),
            use_cache=False,
            logits_to_keep=batch.logit_rows,
            output_hidden_states=taps.is_open,
            starspec_batch=batch,
        )
        for layer, hidden in enumerate(output.hidden_states if taps.is_open else ()):
            taps.show(layer, hidden[0])
        return output.logits[0]  # type: ignore[no-any-return]

    @property
    def step_linears(self) -> list[StepLinear]:
        return [
            StepLinear(partial(_call_as_batch, module), module.weight.shape[1], _num_bytes(module))
            for module in self._model.modules()
            if isinstance(getattr(module, "weight", None), Tensor)
            and module.weight.dim() == 2
            and not isinstance(module, nn.Embedding)
        ]

    def _try_one_token(self) -> None:
        row = self._cache.lease()
        try:
            self.forward([Segment(row, [0], 1)])
        finally:
            self._cache.free(row)


def _call_as_batch(module: nn.Module, x: Tensor) -> Tensor:
    return module(x.unsqueeze(0))[0]  # type: ignore[no-any-return]


def _num_bytes(module: Any) -> int:
    """Bytes of weights that one call reads. A packed linear knows this itself; its weight is only a shape."""
    return int(getattr(module, "num_bytes", module.weight.numel() * module.weight.element_size()))
