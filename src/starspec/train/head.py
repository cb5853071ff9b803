"""An EAGLE head as a plain torch module in float32, over whole sequences: for training, and as the slow reference.

    eagle   residual = fc(embedding | feature)        reads  residual
    eagle3  residual = g = fc(feature layers)         reads  norm(embedding) | norm(g)

Either then is a Llama layer, `h = residual + attention(reads); h = h + mlp(norm(h))`. h stands for the feature of the
next position, and the LM head reads h (eagle) or norm(h) (eagle3).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from starspec.errors import ModelError
from starspec.models.heads.spec import HeadSpec, HeadWeights


class RMSNorm(nn.Module):
    """RMSNorm as in Llama, in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), self.weight.shape, self.weight.float(), self.eps)


class SelfAttention(nn.Module):
    """The projections only. The caller computes the attention."""

    def __init__(self, spec: HeadSpec, in_features: int) -> None:
        super().__init__()
        self.spec = spec
        self.q_proj = nn.Linear(in_features, spec.num_attention_heads * spec.head_dim, bias=False)
        self.k_proj = nn.Linear(in_features, spec.num_key_value_heads * spec.head_dim, bias=False)
        self.v_proj = nn.Linear(in_features, spec.num_key_value_heads * spec.head_dim, bias=False)
        self.o_proj = nn.Linear(spec.num_attention_heads * spec.head_dim, spec.hidden_size, bias=False)

    def queries(self, x: Tensor, positions: Tensor) -> Tensor:  # x: [B, T, in], positions: [B, T]
        """Returns: [B, Hkv, G, T, D], the query heads by the key head that they share."""
        q = self.q_proj(x).unflatten(-1, (self.spec.num_key_value_heads, -1, self.spec.head_dim))
        return rotate(q.permute(0, 2, 3, 1, 4), positions[:, None, None], self.spec.rope_theta)

    def keys_values(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Returns: twice [B, Hkv, T, D]."""
        k = self.k_proj(x).unflatten(-1, (self.spec.num_key_value_heads, self.spec.head_dim)).transpose(1, 2)
        v = self.v_proj(x).unflatten(-1, (self.spec.num_key_value_heads, self.spec.head_dim)).transpose(1, 2)
        return rotate(k, positions[:, None], self.spec.rope_theta), v

    def output(self, attended: Tensor) -> Tensor:  # [B, Hkv, G, T, D]
        """Returns: [B, T, C]."""
        projected: Tensor = self.o_proj(attended.permute(0, 3, 1, 2, 4).flatten(2))
        return projected


class MLP(nn.Module):
    """The MLP of Llama."""

    def __init__(self, spec: HeadSpec) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(spec.hidden_size, spec.intermediate_size, bias=False)
        self.up_proj = nn.Linear(spec.hidden_size, spec.intermediate_size, bias=False)
        self.down_proj = nn.Linear(spec.intermediate_size, spec.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        projected: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return projected


class DecoderLayer(nn.Module):
    """The decoder layer of a head."""

    def __init__(self, spec: HeadSpec) -> None:
        super().__init__()
        is_eagle3 = spec.is_eagle3
        self.self_attn = SelfAttention(spec, spec.hidden_size * (2 if is_eagle3 else 1))
        self.mlp = MLP(spec)
        if is_eagle3:
            self.hidden_norm = RMSNorm(spec.hidden_size, spec.rms_norm_eps)
        if is_eagle3 or spec.has_input_norm:
            self.input_layernorm = RMSNorm(spec.hidden_size, spec.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(spec.hidden_size, spec.rms_norm_eps)

    def after_attention(self, residual: Tensor, attended: Tensor) -> Tensor:
        """Returns: h [B, T, C] float32."""
        h = residual + self.self_attn.output(attended).float()
        out: Tensor = h + self.mlp(self.post_attention_layernorm(h)).float()
        return out


class TrainedHead(nn.Module):
    """A head without embedding and LM head. It uses the frozen ones of the target.

    Raises: ModelError if the spec scales its rotary embedding: that is not trained here.
    """

    def __init__(self, spec: HeadSpec) -> None:
        if spec.rope_scaling is not None:
            raise ModelError(f"a head with rotary type '{spec.rope_scaling.get('rope_type')}' cannot be trained")
        super().__init__()
        self.spec = spec
        is_eagle3 = spec.is_eagle3
        in_features = spec.feature_size if is_eagle3 else spec.hidden_size + spec.feature_size
        self.fc = nn.Linear(in_features, spec.hidden_size, bias=not is_eagle3)
        self.layers = nn.ModuleList([DecoderLayer(spec)])
        if is_eagle3:
            self.norm = RMSNorm(spec.hidden_size, spec.rms_norm_eps)

    @property
    def layer(self) -> DecoderLayer:
        layer = self.layers[0]
        assert isinstance(layer, DecoderLayer)
        return layer

    def join(self, features: Tensor) -> Tensor:  # [..., F]
        """Combine the target's features into one: [..., C]."""
        if not self.spec.is_eagle3:
            return features
        joined: Tensor = self.fc(features.to(self.fc.weight.dtype))
        return joined.float()

    def read(self, embedded: Tensor, feature: Tensor) -> tuple[Tensor, Tensor]:  # twice [..., C]
        """Returns: the input of the attention, and the residual."""
        if not self.spec.is_eagle3:
            residual = self.fc(torch.cat([embedded, feature], -1).to(self.fc.weight.dtype)).float()
            return (self.layer.input_layernorm(residual) if self.spec.has_input_norm else residual), residual
        normed = self.layer.hidden_norm(feature)
        x = torch.cat([self.layer.input_layernorm(embedded), normed], -1)
        return x, normed if self.spec.norm_before_residual else feature

    def spoken(self, h: Tensor) -> Tensor:
        """The input of the LM head, whose output are the logits of the head."""
        normed: Tensor = self.norm(h) if self.spec.is_eagle3 else h
        return normed

    def weights(self, draft_token_ids: Tensor | None, dtype: torch.dtype = torch.bfloat16) -> HeadWeights:
        """A copy of the weights in the layout of checkpoints."""
        tensors = {name: tensor.detach().to("cpu", dtype) for name, tensor in self.state_dict().items()}
        return HeadWeights(self.spec, tensors, draft_token_ids)


def rotate(x: Tensor, positions: Tensor, theta: float) -> Tensor:  # x: [..., T, D], positions: [..., T]
    """Rotary embedding with halves as in Llama."""
    half = x.shape[-1] // 2
    frequencies = theta ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angles = positions[..., None].float() * frequencies
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
