"""A part of a causal LM: some of its layers. What other stages have is left out before any weight is read.

    model.embed_tokens   first stage (with tied embeddings: the last one too, whose head it is)
    model.layers[i]      the stage with layer i; elsewhere a module in its place passes hidden states on unchanged
    model.norm, lm_head  last stage

The model's own code still runs from its embedding to its head, so each layer is called as in the whole model: with its
number, its mask and its rotary angles. Hidden states of the stage before take the place of what arrives at the first
layer of the part; those behind its last layer are kept for the next stage.

Whatever else stands beside the layers and has weights is with both ends, because it does not say where it is used.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import Any, Final

from torch import Tensor, nn

from starspec.errors import ModelError
from starspec.models.layers import LayerRange


@dataclass(slots=True, eq=False)
class _Crossing:
    """Hidden states at the borders of a part, in one forward."""

    entering: Tensor | None  # [1, R, C]; None = it begins with token ids
    leaving: Tensor | None = None  # [1, R, C]


ARGUMENTS: Final = {  # of layers that depend on hidden states, positions and the cache alone
    "hidden_states",
    "attention_mask",
    "position_ids",
    "position_embeddings",
    "past_key_values",
    "layer_past",
    "use_cache",
    "cache_position",
    "output_attentions",
    "encoder_hidden_states",  # of encoder-decoders, which are refused
    "encoder_attention_mask",
}
FINAL_NORMS: Final = ("norm", "ln_f", "final_layer_norm", "final_layernorm")  # names that transformers' models use
_CROSSING: Final[ContextVar[_Crossing]] = ContextVar("starspec_crossing")


class _Elsewhere(nn.Module):
    """In the place of a layer of another stage."""

    def forward(self, hidden: Tensor, *_args: Any, **_kwargs: Any) -> Tensor:
        return hidden


class _NoEmbedding(nn.Module):
    """In the place of an embedding of the first stage. Nobody reads its zeros."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size

    def forward(self, indices: Tensor, *_args: Any, **_kwargs: Any) -> Tensor:
        entering = _CROSSING.get().entering
        assert entering is not None, "only a first stage has embeddings"
        return entering.new_zeros(*indices.shape, self._size)


def leave_out(model: Any, layers: LayerRange) -> None:
    """Leave out of a model what other stages have.

    Where embedding and head are tied, both ends keep both until the weights are read: transformers ties the two by
    their names. `drop_tied` follows.

    Args:
        model: a causal LM of transformers, or `LlamaWeights`; its weights may still be on the device "meta".
    Raises: ModelError if the model's layers are not in one list, or take more than hidden states from those before.
    Effects: the model's modules, and what is tied; none if the part is the whole model.
    """
    if layers.is_whole:
        return
    body, name = _find_layers(model, layers.num_layers)
    modules = getattr(body, name)
    _check_arguments(modules[layers.start])
    for index in range(layers.num_layers):
        if not layers.start <= index < layers.end:
            modules[index] = _Elsewhere()
    if not layers.is_first:
        modules[layers.start].register_forward_pre_hook(_enter)
    if not layers.is_last:
        modules[layers.end - 1].register_forward_hook(_leave)
    is_end = layers.is_first or layers.is_last
    is_tied = is_end and bool(model.config.tie_word_embeddings)
    for name, child in list(body.named_children()):
        is_other = child is not modules and _has_weights(child) and not isinstance(child, nn.Embedding)
        if is_other and not layers.is_last and (name in FINAL_NORMS or not is_end):
            setattr(body, name, nn.Identity())
    _leave_out_tables(model, body, model.get_input_embeddings() if is_tied else None, layers)
    if not is_tied:
        model.all_tied_weights_keys = {}


def drop_tied(model: Any, layers: LayerRange) -> None:
    """The weights are read: the first stage needs no head, and the last one no embedding beside its head."""
    if not layers.is_whole:
        body, _ = _find_layers(model, layers.num_layers)
        _leave_out_tables(model, body, None, layers)


def run_part(model: Any, layers: LayerRange, hidden: Tensor | None, **inputs: Any) -> tuple[Tensor, Any]:
    """Run a model of which `leave_out` has left these layers.

    Args:
        hidden: [R, C], from the stage before; None = the part is the first.
        inputs: as for the whole model.
    Returns: logits [1, T, V] of the last stage, or hidden states [1, R, C] of another; and the model's output.
    """
    crossing = _Crossing(None if hidden is None else hidden.unsqueeze(0))
    before = _CROSSING.set(crossing)
    try:
        output = model(**inputs)
    finally:
        _CROSSING.reset(before)
    if layers.is_last:
        return output.logits, output
    assert crossing.leaving is not None
    return crossing.leaving, output


def _find_layers(model: nn.Module, num_layers: int) -> tuple[Any, str]:
    """The module that has the list of layers, and the list's name in it."""
    for parent in model.modules():
        for name, child in parent.named_children():
            if isinstance(child, nn.ModuleList) and len(child) == num_layers:
                return parent, name
    raise ModelError(f"its {num_layers} layers are not in one list, so it cannot be cut into stages")


def _leave_out_tables(model: Any, body: Any, tied: nn.Module | None, layers: LayerRange) -> None:
    """Leave out embeddings, unless these are the first layers, and the head, unless they are the last.

    Args:
        tied: an embedding that stays, as does the head; None = none does.
    """
    head = model.get_output_embeddings()
    if not layers.is_first:
        for name, child in list(body.named_children()):
            if isinstance(child, nn.Embedding) and child is not tied:
                # a middle stage has no projection behind it, either
                size = child.embedding_dim if layers.is_last else model.config.hidden_size
                setattr(body, name, _NoEmbedding(size))
    if not layers.is_last and tied is None and _has_weights(head):
        name = next(name for name, child in model.named_children() if child is head)
        setattr(model, name, nn.Identity())


def _check_arguments(layer: nn.Module) -> None:
    """Refuse layers that take something from the layers before, or from the embeddings, beside hidden states."""
    variadic = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    taken = [name for name, each in signature(layer.forward).parameters.items() if each.kind not in variadic]
    other = next((name for name in taken if name not in ARGUMENTS), None)
    if other is not None:
        raise ModelError(f"its layers take {other}, which does not travel from stage to stage")


def _has_weights(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def _enter(_module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    entering = _CROSSING.get().entering
    if not args or not isinstance(args[0], Tensor):
        raise ModelError("its layers do not take hidden states first, so it cannot be cut into stages")
    return (entering, *args[1:])


def _leave(_module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
    if not isinstance(output, Tensor):
        raise ModelError("its layers return more than hidden states, so it cannot be cut into stages")
    _CROSSING.get().leaving = output
