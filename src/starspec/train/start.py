"""The start of a training: the head's shape, a vocabulary of frequent tokens, and the first weights."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from starspec.errors import ConfigError
from starspec.models.heads.checkpoint import read_head
from starspec.models.heads.feature_layers import eagle3_layers
from starspec.models.heads.files import read_files
from starspec.models.heads.spec import HeadSpec, HeadWeights, TargetShape
from starspec.train.answer_files import TrainingAnswer
from starspec.train.head import TrainedHead

ZIPF_OFFSET, PRIOR_WEIGHT = 500, 0.5
EMBEDDING = "embed_tokens.weight"


def default_layers(method: Literal["eagle", "eagle3"], num_layers: int) -> tuple[int, ...]:
    """The three layers of EAGLE-3, or as many as a shallow target has; the last layer for EAGLE-1."""
    if method == "eagle":
        return (num_layers,)
    return tuple(sorted({min(max(layer, 0), num_layers) for layer in eagle3_layers(num_layers)}))


def head_spec(
    method: Literal["eagle", "eagle3"], config: Any, target_name: str, draft_vocab_size: int, layers: tuple[int, ...]
) -> HeadSpec:
    """The spec of a head with the target's width and rotary base.

    A scaling of the target's rotary embedding is left out: the head learns its own positions, plain ones.
    """
    num_heads = config.num_attention_heads
    rope = getattr(config, "rope_parameters", None) or {}
    return HeadSpec(
        method=method,
        hidden_size=config.hidden_size,
        target_hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_attention_heads=num_heads,
        num_key_value_heads=getattr(config, "num_key_value_heads", None) or num_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // num_heads,
        vocab_size=config.vocab_size,
        draft_vocab_size=draft_vocab_size,
        feature_layers=layers,
        max_position_embeddings=config.max_position_embeddings,
        rope_theta=float(rope.get("rope_theta", getattr(config, "rope_theta", 10000.0))),
        rms_norm_eps=config.rms_norm_eps,
        target_name=target_name,
    )


def frequent_tokens(answers: Iterable[TrainingAnswer], num: int, vocab_size: int) -> Tensor:
    """The ids of the draft vocabulary, increasing: the most frequent ones in the answers, smoothed.

    Some hundred thousand tokens name the rare words of their own topics only, and a tokenizer's ids follow the
    frequency in far more text than ours: so half of the weight is Zipf's law over the ids.
    """
    said = Counter[int]()
    for answer in answers:
        said.update(answer.answer_ids)
    zipf = [1 / (token_id + ZIPF_OFFSET) for token_id in range(vocab_size)]
    per_said, per_zipf = 1 / max(said.total(), 1), PRIOR_WEIGHT / sum(zipf)
    ranked = sorted(range(vocab_size), key=lambda token_id: -(said[token_id] * per_said + zipf[token_id] * per_zipf))
    return torch.tensor(sorted(ranked[:num]))


@torch.no_grad()
def begin_like_target(head: TrainedHead, model: Any) -> None:
    """Start with the weights of the target's last layer, so that minutes of training are enough.

    Effects: the head's weights; those that have no counterpart in the target stay small and random.
    """
    spec, layer = head.spec, head.layer
    own = dict(model.model.layers[-1].named_parameters())
    size = spec.hidden_size
    for name in ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "self_attn.o_proj", "post_attention_layernorm"):
        layer.get_parameter(f"{name}.weight").copy_(own[f"{name}.weight"])
    for name in ("q_proj", "k_proj", "v_proj"):
        weight = layer.self_attn.get_parameter(f"{name}.weight")
        weight[:, : weight.shape[1] - size].normal_(0, 0.02)
        weight[:, -size:] = own[f"self_attn.{name}.weight"]
    head.fc.weight.normal_(0, 0.002)
    head.fc.weight[:, -size:] += torch.eye(size, device=head.fc.weight.device)
    if spec.is_eagle3:
        layer.hidden_norm.weight.copy_(own["input_layernorm.weight"])
        head.norm.weight.copy_(model.model.norm.weight)


def begin_like_head(head: TrainedHead, folder: Path, num_layers: int, embedding: Tensor) -> None:
    """Start with the weights of an earlier head.

    Args:
        embedding: the target's, [V, C]; a copy in the head's files may only repeat it.
    Effects: the head's weights.
    Raises: as `earlier_head`; ConfigError if the head has not all weights, or an embedding of its own.
    """
    earlier, own = earlier_head(folder, head.spec, num_layers), head.state_dict()
    if missing := own.keys() - earlier.tensors.keys():
        raise ConfigError(f"'{folder}' cannot be started from: it has no {min(missing)}")
    theirs = earlier.tensors.get(EMBEDDING)
    if theirs is not None and not torch.equal(theirs, embedding.to("cpu", theirs.dtype)):
        raise ConfigError(f"'{folder}' cannot be started from: its embedding is not its target's, and not trained here")
    head.load_state_dict({name: earlier.tensors[name].to(value.dtype) for name, value in own.items()})


def hash_head(folder: Path) -> str:
    """sha256 over the tensors of a head only. Other files of its folder may change without a new head.

    Raises: ModelError if it cannot be read.
    """
    _, tensors = read_files(str(folder))
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name}\0{tensor.dtype}\0{list(tensor.shape)}\0".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def earlier_head(folder: Path, spec: HeadSpec, num_layers: int) -> HeadWeights:
    """An earlier head of this shape, trained on any data and with any vocabulary.

    Args:
        num_layers: of the target.
    Raises: ModelError if it cannot be read; ConfigError if it has another shape, or weights that are not trained here:
        an LM head of its own, where ours speak through their target's, or an EAGLE-3 head's bias.
    """
    earlier = read_head(
        folder,
        target=TargetShape(num_layers=num_layers, hidden_size=spec.target_hidden_size, vocab_size=spec.vocab_size),
    )
    for name, what in (("lm_head.weight", "an LM head of its own"), ("fc.bias", "a bias of fc")):
        if name in earlier.tensors and (name, spec.method) != ("fc.bias", "eagle"):
            raise ConfigError(f"'{folder}' cannot be started from: it has {what}, which is not trained here")
    free = {"draft_vocab_size", "target_name", "max_position_embeddings"}
    for name in (each.name for each in fields(HeadSpec) if each.name not in free):
        theirs, ours = getattr(earlier.spec, name), getattr(spec, name)
        if theirs != ours:
            raise ConfigError(f"'{folder}' cannot be started from: its {name} is {theirs}, here it is {ours}")
    return earlier
