"""Which layers of the target a head takes as input, as indices into Hugging Face's `hidden_states`.

    hidden_states[0] = embeddings   hidden_states[i] = input of layer i   hidden_states[L] = output of the final norm

There are two interpretations of a checkpoint's list of layers. vLLM and speculators mean the *input* of a layer, which
is the index itself. SGLang and SpecForge mean the *output* of a layer, which is the next index. All agree on the layers
of a head without a list. Only the acceptance rate shows which interpretation is right, so both are given.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from starspec.errors import ModelError
from starspec.models.heads.dialect import HeadConfig
from starspec.models.heads.spec import TargetShape

LAYER_LIST = "eagle_aux_hidden_state_layer_ids"


@dataclass(frozen=True, slots=True)
class FeatureLayers:
    """The layers that a head is assumed to take as input, and those of the other interpretation of its list."""

    layers: tuple[int, ...]
    reason: str
    other: tuple[int, ...] | None  # None: there is only one interpretation


def resolve_layers(
    config: HeadConfig, target: TargetShape | None, given: tuple[int, ...] | None = None
) -> FeatureLayers:
    """The layers that a head takes as input.

    Args:
        config: of the head.
        target: its target; None = not known, which is possible if the head has a list.
        given: layers that the operator names; they take precedence.
    Raises: ModelError if the layers are not layers of the target, or cannot be known without it.
    """
    found = FeatureLayers(given, "as given", None) if given is not None else _read(config, target)
    _check(config, target, found.layers)
    other = found.other
    if other is not None and target is not None and other[-1] > target.num_layers:
        return FeatureLayers(found.layers, found.reason, None)
    return found


def _read(config: HeadConfig, target: TargetShape | None) -> FeatureLayers:
    listed = config.get(LAYER_LIST)
    if listed is not None and (config.is_eagle3 or config.dialect == "speculators"):
        return _listed(config, listed)
    if target is None:
        raise ModelError(f"'{config.head}' does not list its target's layers ({LAYER_LIST}): name its target")
    num_layers = target.num_layers
    if not config.is_eagle3:
        return FeatureLayers((num_layers,), "EAGLE-1 takes the last hidden state", None)
    layers = eagle3_layers(num_layers)
    return FeatureLayers(layers, "its config.json lists none, so EAGLE-3's own", _one_later(layers))


def eagle3_layers(num_layers: int) -> tuple[int, int, int]:
    """The three layers of EAGLE-3's own code. They are not increasing if the target has few layers."""
    return (2, num_layers // 2, num_layers - 3)


def _listed(config: HeadConfig, listed: object) -> FeatureLayers:
    if not isinstance(listed, list) or not listed or not all(type(each) is int for each in listed):
        raise ModelError(f"the config.json of '{config.head}' has {LAYER_LIST} {listed!r}, not a list of layers")
    entering = tuple(listed)
    if not config.is_eagle3:
        return FeatureLayers(entering, "as its config.json lists them", None)
    if config.dialect == "SpecForge":
        return FeatureLayers(_one_later(entering), f"{listed} are outputs of layers, as SGLang reads them", entering)
    return FeatureLayers(entering, f"{listed} are inputs of layers, as vLLM reads them", _one_later(entering))


def _one_later(layers: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(each + 1 for each in layers)


def _check(config: HeadConfig, target: TargetShape | None, layers: tuple[int, ...]) -> None:
    if not config.is_eagle3 and len(layers) != 1:
        raise ModelError(f"'{config.head}' is an EAGLE-1 head, which takes one hidden state, not {list(layers)}")
    named = f"'{config.head}' takes as input the hidden states {list(layers)}"
    if not layers or any(later <= layer for layer, later in pairwise(layers)):
        raise ModelError(f"{named}, which should be increasing")
    if layers[0] < 0 or (target is not None and layers[-1] > target.num_layers):
        last = f"0 to {target.num_layers}" if target is not None else "0 and more"
        raise ModelError(f"{named}, and its target has {last}")
