"""Unmodified Hugging Face modules over the ragged cache: the reference path, for every supported architecture.

The tokens of all segments form one row [1, R] with explicit positions. Everything but attention works token by token,
so it gives the same results as for separate sequences. Attention is replaced: it is registered with transformers under
the name `starspec_ragged`, and it attends to each cache row separately.

What a layer's attention is like is not read from the config, whose keys differ by family. The layers say it themselves
when the first token runs (`LayerSurvey`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from starspec.config import ModelConfig
from starspec.errors import ModelError
from starspec.models.attention.ragged import BatchAttention
from starspec.models.attention.rotary import check_rotary, pin_rotary
from starspec.models.attention.scores import ScoreRule
from starspec.models.batch import PackedBatch
from starspec.models.layers import LayerRange
from starspec.models.linear.interface import StepLinear
from starspec.models.linear.swapped import SwappedLinear
from starspec.models.loading.part import run_part
from starspec.models.packed import FeatureTaps, PackedRunner, make_cache
from starspec.models.runner import ModelInfo

ATTENTION_NAME: Final = "starspec_ragged"
# What the forward that runs in this thread attends to. Not every model passes unknown arguments on to its layers.
CURRENT_BATCH: Final[ContextVar[PackedBatch]] = ContextVar("starspec_batch")
# Arguments by which some models change attention, and which this path does not compute. None always means "without".
UNSUPPORTED: Final = ("position_bias", "head_mask", "cache")


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
    def of(cls, call: Callable[[PackedBatch], Any], one_row: PackedBatch) -> LayerSurvey:
        """Ask all layers of a model.

        Args:
            call: runs the model over a packed batch.
            one_row: a batch of one token; its attention is replaced.
        Raises: ModelError if a layer's attention is not starspec's, or if the layers cannot share a cache.
        """
        survey = cls()
        call(replace(one_row, attention=survey))
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


def check_windows(config: Any, rules: Sequence[ScoreRule], max_model_len: int, first: int = 0) -> None:
    """Refuse a model that has a window by its config of which its layers do not tell attention.

    Such a model shows the window to its own masks only.

    Args:
        config: transformers' config of the model.
        rules: of consecutive layers.
        max_model_len: tokens of the longest sequence.
        first: the layer with the first rule.
    Raises: ModelError that names the window and the largest `max_model_len` at which it has no effect.
    """
    text = config.get_text_config(decoder=True)
    window = getattr(text, "sliding_window", None)
    if window is None or window >= max_model_len:
        return
    kinds = getattr(text, "layer_types", None) or ["sliding_attention"] * (first + len(rules))
    for layer, (kind, rule) in enumerate(zip(kinds[first:], rules, strict=False), start=first):
        if kind == "sliding_attention" and rule.window is None:
            raise ModelError(
                f"layer {layer} does not tell attention of its sliding window of {window} tokens, and sequences may "
                f"have {max_model_len}; use --max-model-len {window} or less"
            )


def takes_positions(model: nn.Module) -> bool:
    """Whether the module that has the layers is told each token's position. Others count the tokens of a forward."""
    bodies = (each for each in model.modules() if any(isinstance(child, nn.ModuleList) for child in each.children()))
    body = next(bodies, None)
    return body is None or "position_ids" in signature(body.forward).parameters


def ragged_attention(
    module: nn.Module,
    query: Tensor,  # [1, Hq, R, Dk]
    key: Tensor,  # [1, H, R, Dk]
    value: Tensor,  # [1, H, R, Dv]
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The attention function that transformers calls in every layer.

    Returns: [1, R, Hq, Dv], and None for the weights.
    Raises: ModelError for any argument that would change the result and is not computed here.
    Effects: the cache slots of the batch's tokens.
    """
    layer = getattr(module, "layer_idx", None)
    if layer is None:
        raise ModelError("its layers do not say which of them they are")
    unsupported = [name for name in UNSUPPORTED if kwargs.get(name) is not None]
    is_bidirectional = kwargs.get("is_causal") is False or getattr(module, "is_causal", True) is False
    if unsupported or attention_mask is not None or dropout or is_bidirectional:
        names = ", ".join(unsupported) or "a mask or dropout of its own"
        raise ModelError(f"its attention uses {names}")
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    rule = ScoreRule(scaling, sliding_window, softcap, s_aux)
    value_dim = value.shape[-1]
    width = max(query.shape[-1], value_dim)  # the cache has one size for both; zeros change no product and no sum
    queries, keys, values = (_widened(each[0], width) for each in (query, key, value))
    keys_values = torch.stack((keys, values)).permute(2, 0, 1, 3)  # [R, 2, H, D]
    out = CURRENT_BATCH.get().attention(layer, queries.transpose(0, 1).contiguous(), keys_values, rule)
    return out.view(1, -1, len(queries), width)[..., :value_dim], None


def _widened(x: Tensor, width: int) -> Tensor:
    return x if x.shape[-1] == width else F.pad(x, (0, width - x.shape[-1]))


AttentionInterface.register(ATTENTION_NAME, ragged_attention)


@dataclass(frozen=True, slots=True)
class _Renumbered:
    """`BatchAttention` for layers that count from the beginning of the model."""

    attention: BatchAttention
    first: int  # layer of the model that is layer 0 of the attention

    def __call__(self, layer: int, query: Tensor, keys_values: Tensor, rule: ScoreRule) -> Tensor:
        return self.attention(layer - self.first, query, keys_values, rule)


class TransformersRunner(PackedRunner):
    """Runs a `transformers` causal LM with its own modules.

    Args:
        model: in evaluation mode, on its device, in its dtype.
        config: rows and lengths of the cache.
        info: facts about the model.
        layers: those that `leave_out` has left; None = all.
    Raises: ModelError if the model's attention is not causal attention over keys and values; one token is run to find
        out.
    Effects: switches the model's attention implementation, and pins its rotary frequencies.
    """

    def __init__(
        self, model: PreTrainedModel, config: ModelConfig, info: ModelInfo, layers: LayerRange | None = None
    ) -> None:
        check_rotary(info.name, model.config, info.max_model_len)
        pin_rotary(model)
        model.set_attn_implementation(ATTENTION_NAME)
        self._model = model.eval()
        self._layers = layers or LayerRange.whole(model.config.get_text_config(decoder=True).num_hidden_layers)
        try:
            if not takes_positions(model):
                raise ModelError("its code takes no positions, so its sequences cannot share a forward")
            survey = LayerSurvey.of(self._call, self._one_row())
            check_windows(model.config, survey.rules, info.max_model_len, self._layers.start)
        except ModelError as error:
            raise ModelError(f"'{info.name}' is not supported: {error}") from error
        num_heads, num_kv_heads, head_dim = survey.shape
        cache = make_cache(
            model, config, info, num_layers=len(survey.rules), num_kv_heads=num_kv_heads, head_dim=head_dim
        )
        super().__init__(info, self._layers, cache, num_heads)
        self.score_rules = survey.rules

    def _one_row(self) -> PackedBatch:
        """A batch to ask the layers with: one token, and attention that is still to be put in."""
        model = self._model
        zeros = torch.zeros(1, dtype=torch.int64, device=model.device)
        size = model.config.get_text_config(decoder=True).hidden_size
        hidden = None if self._layers.is_first else torch.zeros(1, size, dtype=model.dtype, device=model.device)
        return PackedBatch(zeros, zeros, attention=LayerSurvey(), logit_rows=zeros, num_logits=1, hidden=hidden)

    def _run(self, batch: PackedBatch, taps: FeatureTaps) -> Tensor:
        try:
            computed, output = self._call(batch, output_hidden_states=taps.is_open)
        except ModelError as error:
            raise ModelError(f"'{self.info.name}' is not supported: {error}") from error
        seen = output.hidden_states if taps.is_open else ()  # the input of each layer here, then what leaves the norm
        for layer, hidden in enumerate(seen, start=self._layers.start):
            taps.show(layer, hidden[0])
        return computed[0]

    def _call(self, batch: PackedBatch, *, output_hidden_states: bool = False) -> tuple[Tensor, Any]:
        """As `run_part`."""
        if not self._layers.is_first:  # modules know their number in the whole model, and the cache only these layers
            batch = replace(batch, attention=_Renumbered(batch.attention, self._layers.start))
        before = CURRENT_BATCH.set(batch)
        try:
            return run_part(
                self._model,
                self._layers,
                batch.hidden,
                input_ids=batch.token_ids.unsqueeze(0),
                position_ids=batch.positions.unsqueeze(0),
                use_cache=False,
                logits_to_keep=batch.logit_rows,
                output_hidden_states=output_hidden_states,
            )
        finally:
            CURRENT_BATCH.reset(before)

    @property
    def step_linears(self) -> list[StepLinear]:
        return [
            StepLinear(partial(_call_as_batch, module), _in_features(module), _num_bytes(module))
            for module in self._model.modules()
            if isinstance(module, nn.Linear | Conv1D | SwappedLinear)  # norms and routers may have matrices too
        ]


def _call_as_batch(module: nn.Module, x: Tensor) -> Tensor:
    return module(x.unsqueeze(0))[0]  # type: ignore[no-any-return]


def _in_features(module: Any) -> int:
    return int(module.nx if isinstance(module, Conv1D) else module.in_features)


def _num_bytes(module: Any) -> int:
    """Bytes of weights that one call reads. A packed linear knows this itself; its weight is only a shape."""
    return int(getattr(module, "num_bytes", module.weight.numel() * module.weight.element_size()))
