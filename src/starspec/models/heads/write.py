"""Writing an EAGLE head in the layout of `speculators`: its config.json, its tensors and their names."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save
from torch import Tensor

from starspec.models.heads.feature_layers import LAYER_LIST
from starspec.models.heads.spec import HeadSpec, HeadWeights
from starspec.models.heads.tensors import check_tensors, draft_token_mask, offsets_of, token_ids_of

VERSION: Final = "0.9.0"
PROPOSED_TOKENS: Final = 5  # the speculation length that a written head suggests to other engines
EAGLE1_NAMES: Final = {"fc.": "fusion_fc.", "layers.0.": "transformer."}


def write_head(folder: str | Path, weights: HeadWeights, provenance: Mapping[str, object]) -> None:
    """Write a head in the layout of `speculators`, in bfloat16.

    Args:
        folder: where; it is made if it does not exist.
        weights: the head.
        provenance: how it was made; must be JSON.
    Effects: config.json, model.safetensors and provenance.json in the folder. Each file appears complete or not at all,
        config.json last. Other files in the folder stay.
    Raises: ModelError if the tensors do not fit the spec.
    """
    spec, token_ids = weights.spec, weights.draft_token_ids
    check_tensors(str(folder), spec, weights.tensors)
    assert spec.draft_vocab_size == (spec.vocab_size if token_ids is None else len(token_ids))
    tensors = {stored_name(spec, name): _stored(tensor) for name, tensor in weights.tensors.items()}
    if token_ids is not None:
        # convert there and back, so that nothing is written that a reader would refuse
        token_ids = token_ids_of(str(folder), offsets_of(token_ids.cpu()), None, spec.vocab_size)
        assert bool((token_ids.diff() > 0).all()), "draft_token_ids must be increasing"
        tensors |= {"d2t": offsets_of(token_ids), "t2d": draft_token_mask(token_ids, spec.vocab_size)}
    config = speculators_config(spec, has_bias="fc.bias" in weights.tensors)
    write_files(Path(folder), tensors, {"config.json": config, "provenance.json": provenance})


def stored_name(spec: HeadSpec, name: str) -> str:
    """The name of a tensor of `HeadWeights` in `speculators`."""
    if not spec.is_eagle3:
        for ours, theirs in EAGLE1_NAMES.items():
            if name.startswith(ours):
                return theirs + name.removeprefix(ours)
    return name


def speculators_config(spec: HeadSpec, *, has_bias: bool) -> dict[str, Any]:
    """The config.json of a head.

    Args:
        spec: the head's shape.
        has_bias: whether `fc` has a bias.
    """
    is_eagle3 = spec.is_eagle3
    if is_eagle3:
        own: dict[str, Any] = {
            "norm_before_residual": spec.norm_before_residual,
            "norm_before_fc": False,
            "fc_norm": False,
            "norm_output": False,
            "embed_requires_grad": False,
        }
    else:
        own = {"transformer_layer_architecture": "LlamaDecoderLayer", "layernorms": False, "fusion_bias": has_bias}
    is_narrow = spec.target_hidden_size != spec.hidden_size
    return {
        "architectures": ["Eagle3Speculator" if is_eagle3 else "EagleSpeculator"],
        "speculators_model_type": spec.method,
        "speculators_version": VERSION,
        "dtype": "bfloat16",
        "tie_word_embeddings": False,
        "draft_vocab_size": spec.draft_vocab_size,
        "target_hidden_size": spec.target_hidden_size if is_narrow else None,
        LAYER_LIST: list(spec.feature_layers),
        **own,
        "speculators_config": {
            "algorithm": spec.method,
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "proposal_type": "greedy",
                    "speculative_tokens": PROPOSED_TOKENS,
                    "verifier_accept_k": 1,
                    "accept_tolerance": 0.0,
                }
            ],
            "verifier": {"name_or_path": spec.target_name, "architectures": []},
        },
        "transformer_layer_config": _layer_config(spec),
    }


def _layer_config(spec: HeadSpec) -> dict[str, Any]:
    scaling = dict(spec.rope_scaling) if spec.rope_scaling is not None else None
    return {
        "model_type": "llama",
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": spec.num_attention_heads,
        "num_key_value_heads": spec.num_key_value_heads,
        "head_dim": spec.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": spec.max_position_embeddings,
        "rms_norm_eps": spec.rms_norm_eps,
        "rope_theta": spec.rope_theta,
        "rope_scaling": scaling,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
    }


def _stored(tensor: Tensor) -> Tensor:
    contiguous = torch.contiguous_format
    # copies, so that tied tensors are stored separately
    return tensor.detach().to("cpu", torch.bfloat16, memory_format=contiguous, copy=True)


def write_files(folder: Path, tensors: Mapping[str, Tensor], jsons: Mapping[str, Mapping[str, object]]) -> None:
    """Write a head's files, config.json last: whoever finds that file finds a complete head.

    Args:
        folder: where.
        tensors: by name.
        jsons: file name -> content.
    Effects: makes the folder; replaces each file of the same name in one step, and leaves other files.
    """
    contents = {"model.safetensors": save(dict(tensors), metadata={"format": "pt"})}
    for name in sorted(jsons, key=lambda name: name == "config.json"):
        contents[name] = (json.dumps(jsons[name], indent=2) + "\n").encode()
    folder.mkdir(parents=True, exist_ok=True)
    partials = {name: folder / f".{name}.{os.getpid()}" for name in contents}
    try:
        for name, content in contents.items():
            partials[name].write_bytes(content)
        for name, partial in partials.items():
            partial.replace(folder / name)
    finally:
        for partial in partials.values():
            partial.unlink(missing_ok=True)
