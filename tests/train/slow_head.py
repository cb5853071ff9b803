"""A head in the slowest words: one chain at a time, one slot at a time, one attention head at a time."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from starspec.train.head import TrainedHead, rotate


@torch.no_grad()
def slow_chain(
    head: TrainedHead, features: Tensor, token_ids: list[int], anchor: int, num_steps: int, embedding: Tensor
) -> list[Tensor]:
    """h of each step of one anchor's chain; token k + 1 is read by step k."""
    slots: list[tuple[Tensor, Tensor]] = []  # what attention reads in each slot, and its residual
    for slot in range(anchor + 1):
        slots.append(head.read(embedding[token_ids[slot + 1]], head.join(features[slot])))
    spoken = [_last(head, slots)]
    for step in range(1, num_steps):
        slots.append(head.read(embedding[token_ids[anchor + 1 + step]], spoken[-1]))
        spoken.append(_last(head, slots))
    return spoken


def _last(head: TrainedHead, slots: list[tuple[Tensor, Tensor]]) -> Tensor:
    """h of the last slot, which sees all."""
    spec, attention = head.spec, head.layer.self_attn
    group = spec.num_attention_heads // spec.num_key_value_heads
    last = len(slots) - 1
    q = attention.q_proj(slots[last][0]).view(spec.num_attention_heads, spec.head_dim)
    out = []
    for number in range(spec.num_attention_heads):
        query = _turned(q[number], last, spec.rope_theta)
        scores, values = [], []
        for place, (x, _) in enumerate(slots):
            key = attention.k_proj(x).view(spec.num_key_value_heads, spec.head_dim)[number // group]
            scores.append(float(query @ _turned(key, place, spec.rope_theta)) / math.sqrt(spec.head_dim))
            values.append(attention.v_proj(x).view(spec.num_key_value_heads, spec.head_dim)[number // group])
        weights = torch.tensor(scores).softmax(0)
        out.append(sum(weight * value for weight, value in zip(weights, values, strict=True)))
    h = slots[last][1] + attention.o_proj(torch.cat(out))
    return h + head.layer.mlp(head.layer.post_attention_layernorm(h))


def _turned(vector: Tensor, position: int, theta: float) -> Tensor:
    return rotate(vector[None], torch.tensor([position]), theta)[0]
