"""What an EAGLE head is made of, whichever dialect its checkpoint is written in.

EAGLE (Li et al., 2024) drafts with one decoder layer that reads the target's own hidden states, its *features*:

    slot i      reads the target's feature of position i and the embedding of token i + 1
                says  token i + 2, and what stands for the feature of position i + 1 while that one is only guessed

EAGLE-1/2 reads the target's last hidden state and speaks through the target's LM head. EAGLE-3 reads three layers,
joined by `fc`, and has a smaller vocabulary: its token i is the target's token `draft_token_ids[i]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadSpec:
    """The shape of a head, in the words of Hugging Face configs."""

    method: Literal["eagle", "eagle3"]  # "eagle" is EAGLE-1 and EAGLE-2: they differ in the tree alone
    hidden_size: int  # C
    target_hidden_size: int  # of one feature layer
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int  # rows of the target's embedding
    draft_vocab_size: int  # rows of the head's LM head; vocab_size if it speaks the target's vocabulary
    feature_layers: tuple[int, ...]  # indices into the target's Hugging Face `hidden_states`: 0 = embeddings
    max_position_embeddings: int
    rope_theta: float = 10000.0
    rope_scaling: Mapping[str, object] | None = field(default=None, hash=False)  # rope_parameters; None = no scaling
    rms_norm_eps: float = 1e-5
    norm_before_residual: bool = False  # eagle3: the residual is the normed feature
    has_input_norm: bool = False  # eagle: layer 0 norms its input (the published ones do not)
    target_name: str | None = None  # the model that it was trained for, as its checkpoint names it

    @property
    def feature_size(self) -> int:
        """Numbers of one position's features: those of all layers side by side."""
        return self.target_hidden_size * len(self.feature_layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetShape:
    """What a head must fit: the shape of its target."""

    num_layers: int  # L
    hidden_size: int
    vocab_size: int  # rows of the embedding


@dataclass(frozen=True, slots=True)
class HeadWeights:
    """A head as read: its shape, and its tensors under the names that `speculators` gives them.

        fc.weight [C, F or 2 C], fc.bias          layers.0.hidden_norm.weight, layers.0.input_layernorm.weight (eagle3)
        layers.0.self_attn.{q,k,v,o}_proj.weight  layers.0.mlp.{gate,up,down}_proj.weight
        layers.0.post_attention_layernorm.weight  norm.weight (eagle3)
        lm_head.weight [Vd, C]                    embed_tokens.weight [V, C]

    What a checkpoint leaves out of the last two is the target's; of its LM head the rows `draft_token_ids`.
    """

    spec: HeadSpec
    tensors: dict[str, Tensor]
    draft_token_ids: Tensor | None  # [Vd] int64, increasing: the target's id of each token of the head; None = the same
