"""Checkpoints of the Llama family, read without transformers' modelling code.

Importing that code and having it read a checkpoint takes a fifth of the processor time that a hub needs to start. The
fused path needs only the weights under their names. Anything unexpected is left to transformers: it can read more
formats, and users can look up its error messages.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import safe_open
from torch import Tensor, nn

from starspec.models.layers import LayerRange
from starspec.models.loading.part import leave_out
from starspec.models.loading.tensors import UNREADABLE, tensor_files


class _Linear(nn.Linear):
    """Without first numbers, as `_Embedding`."""

    def reset_parameters(self) -> None:
        return


class _Embedding(nn.Embedding):
    """Without first numbers: to draw them on the device "meta" would import torch's compiler, for seconds."""

    def reset_parameters(self) -> None:
        return


class LlamaWeights(nn.Module):
    """The weights of a Llama-family model, in the places where transformers' modules have them. It computes nothing.

    Args:
        config: transformers' config of the model.
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.model = _Body(config)
        self.lm_head = _Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embed_tokens

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def take(self, tensors: dict[str, Tensor]) -> Self:
        """Use these tensors as the weights, without copying them. Returns: itself. Effects: the weights."""
        self.load_state_dict(tensors, strict=False, assign=True)
        if self.config.tie_word_embeddings and isinstance(self.model.embed_tokens, nn.Embedding):  # not left out
            self.lm_head.weight = self.model.embed_tokens.weight
        return self.eval().requires_grad_(requires_grad=False)


class _Body(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.embed_tokens = _Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = _Norm(config.hidden_size, config.rms_norm_eps)


class _Layer(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.self_attn = _Attention(config)
        self.mlp = _Mlp(config)
        self.input_layernorm = _Norm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = _Norm(config.hidden_size, config.rms_norm_eps)


class _Attention(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        hidden_size, num_heads, num_kv_heads = (
            config.hidden_size,
            config.num_attention_heads,
            config.num_key_value_heads,
        )
        self.head_dim: int = getattr(config, "head_dim", None) or hidden_size // num_heads
        self.scaling = self.head_dim**-0.5
        is_qwen2 = config.model_type == "qwen2"  # Qwen2's config does not say which linears have biases
        has_bias = bool(getattr(config, "attention_bias", False))
        self.q_proj = _Linear(hidden_size, num_heads * self.head_dim, bias=has_bias or is_qwen2)
        self.k_proj = _Linear(hidden_size, num_kv_heads * self.head_dim, bias=has_bias or is_qwen2)
        self.v_proj = _Linear(hidden_size, num_kv_heads * self.head_dim, bias=has_bias or is_qwen2)
        self.o_proj = _Linear(num_heads * self.head_dim, hidden_size, bias=has_bias)
        if config.model_type == "qwen3":
            self.q_norm = _Norm(self.head_dim, config.rms_norm_eps)
            self.k_norm = _Norm(self.head_dim, config.rms_norm_eps)


class _Mlp(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        has_bias = bool(getattr(config, "mlp_bias", False))
        self.gate_proj = _Linear(config.hidden_size, config.intermediate_size, bias=has_bias)
        self.up_proj = _Linear(config.hidden_size, config.intermediate_size, bias=has_bias)
        self.down_proj = _Linear(config.intermediate_size, config.hidden_size, bias=has_bias)


class _Norm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.variance_epsilon = eps


def read_llama_checkpoint(
    folder: Path, config: Any, dtype: torch.dtype, layers: LayerRange | None = None
) -> LlamaWeights | None:
    """Read a checkpoint that has exactly the tensors that its config asks for.

    Args:
        folder: the model's folder.
        config: transformers' config of one of `FUSED_FAMILIES`.
        dtype: of the weights in memory.
        layers: those whose tensors are read; None = all.
    Returns: None if tensors are missing or unknown, if one has an unexpected shape or type, or if a file cannot be
        read.
    """
    try:
        with torch.device("meta"):
            model = LlamaWeights(config)
        files = tensor_files(folder)
        if files.keys() != {name for name, _ in model.named_parameters()}:  # a tied head has one name
            return None
        leave_out(model, layers or LayerRange.whole(config.num_hidden_layers))
        wanted = {name: list(each.shape) for name, each in model.named_parameters()}
        by_file = defaultdict(list)
        for name in wanted:
            by_file[files[name]].append(name)
        tensors: dict[str, Tensor] = {}
        for file, names in by_file.items():
            with safe_open(folder / file, framework="pt") as opened:
                if any(opened.get_slice(name).get_shape() != wanted[name] for name in names):
                    return None
                tensors |= {name: opened.get_tensor(name) for name in names}
        if not all(each.is_floating_point() for each in tensors.values()):
            return None
        return model.take({name: each.to(dtype) for name, each in tensors.items()})
    except UNREADABLE:
        return None
