"""What the attention of a transformers model is like: one token runs, and every layer is asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from starspec.errors import ModelError
from starspec.models.attention.scores import ScoreRule
from starspec.models.batch import PackedBatch


class AttentionSize(NamedTuple):
    """Hq, H and D of a layer. D is the larger of the sizes of keys and of values."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


class LayerSurvey:
    """`BatchAttention` that attends to nothing and remembers what each layer asked for."""

    def __init__(self) -> None:
        self._sizes: dict[int, AttentionSize] = {}
        self._rules: dict[int, ScoreRule] = {}

    @classmethod
    @torch.inference_mode()
    def of(cls, call: Callable[[PackedBatch], Any], device: torch.device) -> LayerSurvey:
        """Ask all layers of a model.

        Args:
            call: runs the model over a packed batch.
            device: of the model.
        Raises: ModelError if a layer's attention is not starspec's, or if the layers cannot share a cache.
        """
        survey = cls()
        zeros = torch.zeros(1, dtype=torch.int64, device=device)
        call(PackedBatch(token_ids=zeros, positions=zeros, attention=survey, logit_rows=zeros, num_logits=1))
        if sorted(survey._rules) != list(range(len(survey._rules))) or not survey._rules:
            raise ModelError("not all of its layers attend through transformers' attention interface")
        if len(set(survey._sizes.values())) > 1:
            raise ModelError("its layers have different numbers or sizes of keys and values")
        return survey

    def __call__(self, layer: int, query: Tensor, keys_values: Tensor, rule: ScoreRule) -> Tensor:
        """As `BatchAttention`, without effects. Raises: ModelError if the layer attends twice."""
        if layer in self._rules:
            raise ModelError(f"its layer {layer} attends more than once")
        self._sizes[layer] = AttentionSize(query.shape[1], *keys_values.shape[2:])
        self._rules[layer] = rule
        return query.new_zeros(len(query), query.shape[1] * query.shape[2])

    @property
    def shape(self) -> AttentionSize:
        """The size that all layers have."""
        return self._sizes[0]

    @property
    def rules(self) -> list[ScoreRule]:
        """The rule of each layer."""
        return [self._rules[layer] for layer in range(len(self._rules))]


def check_windows(config: Any, rules: Sequence[ScoreRule], max_model_len: int) -> None:
    """Refuse a model that has a window by its config of which its layers do not tell attention.

    Such a model shows the window to its own masks only.

    Raises: ModelError that names the window and the largest `max_model_len` at which it has no effect.
    """
    text = config.get_text_config(decoder=True)
    window = getattr(text, "sliding_window", None)
    if window is None or window >= max_model_len:
        return
    kinds = getattr(text, "layer_types", None) or ["sliding_attention"] * len(rules)
    for layer, (kind, rule) in enumerate(zip(kinds, rules, strict=False)):
        if kind == "sliding_attention" and rule.window is None:
            raise ModelError(
                f"layer {layer} does not tell attention of its sliding window of {window} tokens, and sequences may "
                f"have {max_model_len}; use --max-model-len {window} or less"
            )
