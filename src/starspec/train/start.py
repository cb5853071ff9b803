"""What a training begins with: the head's shape, a vocabulary of frequent tokens, weights near the target's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor

from starspec.models.eagle_spec import HeadSpec
from starspec.train.answers import Answer
from starspec.train.head import EagleHead


def default_layers(method: Literal["eagle", "eagle3"], num_layers: int) -> tuple[int, ...]:
    """EAGLE-3's three, or those of them that a shallow target has; the last for EAGLE-1."""
    if method == "eagle":
        return (num_layers,)
    return tuple(sorted({min(2, num_layers), num_layers // 2, max(num_layers - 3, 0)}))


def head_spec(
    method: Literal["eagle", "eagle3"], config: Any, target_name: str, draft_vocab_size: int, layers: tuple[int, ...]
) -> HeadSpec:
    """A head of the target's own width."""
    num_heads = config.num_attention_heads
    rope = getattr(config, "rope_parameters", None) or {}
    return HeadSpec(
        method=method,
        hidden_size=config.hidden_size,
        target_hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_attention_heads=num_heads,
        num_key_value_heads=getattr(config, "num_key_value_heads", None) or num_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // num_heads,
        vocab_size=config.vocab_size,
        draft_vocab_size=draft_vocab_size,
        feature_layers=layers,
        max_position_embeddings=config.max_position_embeddings,
        rope_theta=float(rope.get("rope_theta", getattr(config, "rope_theta", 10000.0))),
        rms_norm_eps=config.rms_norm_eps,
        target_name=target_name,
    )


def frequent_tokens(answers: Iterable[Answer], num: int, vocab_size: int) -> Tensor:
    """The ids that a head will know, increasing: the most frequent of the answers, then of the prompts."""
    said, asked = Counter[int](), Counter[int]()
    for answer in answers:
        said.update(answer.answer_ids)
        asked.update(answer.prompt_ids)
    ranked = [*(each for each, _ in said.most_common()), *(each for each, _ in asked.most_common()), *range(vocab_size)]
    return torch.tensor(sorted(list(dict.fromkeys(ranked))[: min(num, vocab_size)]))


@torch.no_grad()
def begin_like_target(head: EagleHead, model: Any) -> None:
    """Start from the target's last layer, reading its last feature: a training of minutes has little time to waste.

    Effects: the head's weights; those that have no counterpart in the target stay small and random.
    """
    spec, layer = head.spec, head.layer
    own = dict(model.model.layers[-1].named_parameters())
    size = spec.hidden_size
    for name in ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "self_attn.o_proj", "post_attention_layernorm"):
        layer.get_parameter(f"{name}.weight").copy_(own[f"{name}.weight"])
    for name in ("q_proj", "k_proj", "v_proj"):
        weight = layer.self_attn.get_parameter(f"{name}.weight")
        weight[:, : weight.shape[1] - size].normal_(0, 0.02)
        weight[:, -size:] = own[f"self_attn.{name}.weight"]
    head.fc.weight.normal_(0, 0.002)
    head.fc.weight[:, -size:] += torch.eye(size)
    if spec.method == "eagle3":
        layer.hidden_norm.weight.copy_(own["input_layernorm.weight"])
        head.norm.weight.copy_(model.model.norm.weight)
