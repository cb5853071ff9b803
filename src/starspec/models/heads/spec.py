"""The shape and tensors of an EAGLE head, independent of the dialect of its checkpoint.

EAGLE (Li et al., 2024) drafts with one decoder layer that takes the target's own hidden states, its *features*, as
input:

    slot i      input: the target's feature of position i, and the embedding of token i + 1
                output: token i + 2, and a substitute for the feature of position i + 1 while that is only drafted

EAGLE-1/2 takes the target's last hidden state and uses the target's LM head. EAGLE-3 takes three layers, joined by
`fc`, and has a smaller vocabulary: its token i is the target's token `draft_token_ids[i]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadSpec:
    """The shape of a head, with the names of Hugging Face configs."""

    method: Literal["eagle", "eagle3"]  # "eagle" is EAGLE-1 and EAGLE-2, which differ only in the tree
    hidden_size: int  # C
    target_hidden_size: int  # of one feature layer
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int  # rows of the target's embedding
    draft_vocab_size: int  # rows of the head's LM head; vocab_size if it has the target's vocabulary
    feature_layers: tuple[int, ...]  # indices into the target's Hugging Face `hidden_states`: 0 = embeddings
    max_position_embeddings: int
    rope_theta: float = 10000.0
    rope_scaling: Mapping[str, object] | None = field(default=None, hash=False)  # rope_parameters; None = no scaling
    rms_norm_eps: float = 1e-5
    norm_before_residual: bool = False  # eagle3: the residual is the normed feature
    has_input_norm: bool = False  # eagle: the layer norms its input (the published heads do not)
    target_name: str | None = None  # the model that it was trained for, as its checkpoint names it

    @property
    def is_eagle3(self) -> bool:
        """Whether it is an EAGLE-3 head. Otherwise it is an EAGLE-1 head."""
        return self.method == "eagle3"

    @property
    def feature_size(self) -> int:
        """Size of one position's features: all layers side by side."""
        return self.target_hidden_size * len(self.feature_layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetShape:
    """The shape of a target, which a head must fit."""

    num_layers: int  # L
    hidden_size: int
    vocab_size: int  # rows of the embedding


@dataclass(frozen=True, slots=True)
class HeadWeights:
    """A head's shape, and its tensors under the names of `speculators`.

        fc.weight [C, F or 2 C], fc.bias          layers.0.hidden_norm.weight, layers.0.input_layernorm.weight (eagle3)
        layers.0.self_attn.{q,k,v,o}_proj.weight  layers.0.mlp.{gate,up,down}_proj.weight
        layers.0.post_attention_layernorm.weight  norm.weight (eagle3)
        lm_head.weight [Vd, C]                    embed_tokens.weight [V, C]

    If a checkpoint leaves out one of the last two, the target's is used; of its LM head, the rows `draft_token_ids`.
    """

    spec: HeadSpec
    tensors: dict[str, Tensor]
    draft_token_ids: Tensor | None  # [Vd] int64, increasing: the target's id of each token of the head; None = the same
