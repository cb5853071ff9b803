"""What lies between the fused query-key-value linear of a layer and its output projection."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from starspec.models.attention.ragged import BatchAttention
from starspec.models.attention.rotary import Rotation
from starspec.models.fused_layer import FusedLayer


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """How the outputs of the fused linear are shared out: Hq query heads, H key heads, H value heads, D each."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scaling: float

    def rotation(self, table: Tensor, positions: Tensor) -> Rotation:
        """The rotation of one forward: queries and keys turn by their positions, values by 0.

        Args:
            table: [2, S, D] cosines and sines.
            positions: [R].
        """
        cos, sin = table[:, positions].unsqueeze(2)  # [R, 1, D] each
        num_rotated = self.num_heads + self.num_kv_heads
        shape = (len(positions), num_rotated + self.num_kv_heads, self.head_dim)
        all_cos, all_sin = cos.new_ones(shape), sin.new_zeros(shape)
        all_cos[:, :num_rotated] = cos
        all_sin[:, :num_rotated] = sin
        return Rotation(all_cos, all_sin, self.num_heads)

    def attend(
        self, index: int, layer: FusedLayer, qkv: Tensor, rotation: Rotation, attention: BatchAttention
    ) -> Tensor:
        """Attention of layer `index` before its output projection.

        Args:
            qkv: [R, (Hq + 2 H) D] of the fused linear; changed in place if the layer norms queries and keys.
        Returns: [R, Hq D], valid until the next layer. Effects: the cache slots of the batch's tokens.
        """
        heads = qkv.view(len(qkv), -1, self.head_dim)  # [R, Hq + 2 H, D]
        if layer.query_norm is not None and layer.key_norm is not None:
            keys = slice(self.num_heads, self.num_heads + self.num_kv_heads)
            heads[:, : self.num_heads] = layer.query_norm(heads[:, : self.num_heads])
            heads[:, keys] = layer.key_norm(heads[:, keys])
        rotation.turn(heads)
        return attention(index, rotation.queries, rotation.keys_values, self.scaling)
