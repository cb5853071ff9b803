"""Rotary position embedding for all heads of a forward at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn

from starspec.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

BATCH_DEPENDENT: Final = ("dynamic", "longrope")  # types whose frequencies depend on the longest position of the batch


class Rotation:
    """The rotary embedding of one forward, for every head of the fused linear at once; values rotate by 0.

    The two halves of D are the coordinates of pairs, in the layout of transformers:

        low'  = low cos - high sin
        high' = high cos + low sin

    Args:
        cos, sin: [R, Hq + 2 H, D].
        num_queries: Hq.
    """

    def __init__(self, cos: Tensor, sin: Tensor, num_queries: int) -> None:
        num_tokens, num_heads, head_dim = cos.shape
        self._cos = cos
        self._sin_low, self._sin_high = sin.chunk(2, dim=-1)
        self._out = torch.empty_like(cos)
        self._out_low, self._out_high = self._out.chunk(2, dim=-1)
        self.queries = self._out[:, :num_queries]  # [R, Hq, D], the result of the last `turn`
        self.keys_values = self._out[:, num_queries:].view(num_tokens, 2, (num_heads - num_queries) // 2, head_dim)

    def turn(self, x: Tensor) -> None:
        """Rotate x [R, Hq + 2 H, D]. Effects: `queries` and `keys_values` hold the result."""
        low, high = x.chunk(2, dim=-1)
        torch.mul(x, self._cos, out=self._out)
        self._out_low.addcmul_(high, self._sin_low, value=-1)
        self._out_high.addcmul_(low, self._sin_high)


def rotary_table(config: PreTrainedConfig, num_positions: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[2, num_positions, D]: cosines and sines as the Llama family's modules compute them.

    Args:
        config: one that `check_rotary` accepts.
        num_positions: S.
        dtype, device: of the table.
    """
    frequencies, scaling = _frequencies(config)
    positions = torch.arange(num_positions, device=device).unsqueeze(-1)
    angles = positions.float() * frequencies.to(device)  # [S, D / 2]
    angles = torch.cat((angles, angles), dim=-1)
    return torch.stack((angles.cos() * scaling, angles.sin() * scaling)).to(dtype)


def _frequencies(config: PreTrainedConfig) -> tuple[Tensor, float]:
    """[D / 2] radians for each position, and the factor of cosines and sines."""
    kind = config.rope_parameters["rope_type"]
    if kind != "default":
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS  # noqa: PLC0415 (a second to import)

        frequencies, scaling = ROPE_INIT_FUNCTIONS[kind](config)
        return frequencies, scaling
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    halves = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    return 1.0 / config.rope_parameters["rope_theta"] ** halves, 1.0


def check_rotary(model: str, config: PreTrainedConfig, max_model_len: int) -> None:
    """Refuse frequencies that depend on the batch: those that transformers switches by its longest position.

    Up to a certain length they are one constant table, and then the model is supported.

    Args:
        model: name for the error message.
        config: transformers' config of the model.
        max_model_len: tokens of the longest sequence.
    Raises: ModelError that names the length up to which the model can be run.
    """
    text = config.get_text_config(decoder=True)
    settings = getattr(text, "rope_parameters", None) or {}
    for each in [settings, *(nested for nested in settings.values() if isinstance(nested, Mapping))]:
        kind = each.get("rope_type", "default")
        if kind not in BATCH_DEPENDENT:
            continue
        own = text.max_position_embeddings
        constant_len = own if kind == "dynamic" else each.get("original_max_position_embeddings") or own
        if max_model_len > constant_len:
            raise ModelError(
                f"'{model}' is not supported at this length: beyond {constant_len} tokens, rotary type '{kind}' makes "
                f"a sequence depend on its batch, and sequences may have {max_model_len}; use --max-model-len "
                f"{constant_len} or less"
            )


def pin_rotary(model: nn.Module) -> None:
    """Keep the frequencies of rotary modules as they are now, also for positions of drafts behind the longest sequence.

    transformers decides by the type whether it computes them anew.

    Effects: the type of modules whose frequencies depend on the batch.
    """
    module: Any
    for module in model.modules():
        kind = getattr(module, "rope_type", None)
        if isinstance(kind, dict):  # by layer type
            module.rope_type = {key: _pinned(each) for key, each in kind.items()}
        elif kind is not None:
            module.rope_type = _pinned(kind)


def _pinned(kind: str) -> str:
    return "default" if kind in BATCH_DEPENDENT else kind
