"""The start of a training: checks of its plan, the head's shape, a vocabulary of frequent tokens, the first weights."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from starspec.errors import ConfigError, ModelError
from starspec.models.heads.checkpoint import read_head
from starspec.models.heads.feature_layers import eagle3_layers
from starspec.models.heads.files import read_files
from starspec.models.heads.spec import HeadSpec, HeadWeights, TargetShape
from starspec.models.loading.config_json import read_config
from starspec.models.loading.load import check_loadable
from starspec.models.loading.locate import is_synthetic, locate
from starspec.train.answer_files import TrainingAnswer
from starspec.train.head import TrainedHead
from starspec.train.plan import HeadPlan

ZIPF_OFFSET, PRIOR_WEIGHT = 500, 0.5
EMBEDDING = "embed_tokens.weight"
FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "smollm3", "seed_oss")  # by transformers' model_type


def check_plan(plan: HeadPlan) -> tuple[int, ...]:
    """Check everything but the data, so that a mistake costs seconds and not hours.

    Returns: the feature layers.
    Raises: ConfigError or ModelError in one sentence.
    """
    answers = plan.answers
    if answers.max_new_tokens >= answers.max_model_len:
        raise ConfigError(
            f"answers of {answers.max_new_tokens} tokens leave no room for a prompt in {answers.max_model_len}: "
            "give a smaller --max-new-tokens or a larger --max-model-len"
        )
    if (plan.out / "README.md").exists() and not (plan.out / "provenance.json").exists():
        raise ConfigError(f"'{plan.out}' has a README.md that is not a model card of ours: give another --out")
    if (plan.out / "config.json").exists() and not (plan.out / "provenance.json").exists():
        raise ConfigError(f"'{plan.out}' holds a model that we did not train: give another --out")
    if (plan.out / "config.json").exists() and not (plan.out / "work").exists():
        raise ConfigError(
            f"'{plan.out}' holds a trained head, which would be lost, and no work/ to go on with: give another --out"
        )
    if plan.start_from is not None and plan.start_from.resolve() == plan.out.resolve():
        raise ConfigError(f"'{plan.out}' cannot be both started from and renewed: give another --out")
    config = _read_config(answers.target)
    layers = plan.feature_layers or default_layers(plan.method, config.num_hidden_layers)
    _check_layers(plan.method, layers, config.num_hidden_layers)
    _check_family(answers.target, config)
    if plan.start_from is not None:
        spec = head_spec(plan.method, config, answers.target, config.vocab_size, layers)
        earlier_head(plan.start_from, spec, config.num_hidden_layers)
    check_loadable(answers.model)
    return layers


def _read_config(target: str) -> Any:
    if is_synthetic(target):
        raise ConfigError(f"'{target}' has no weights, so nothing can be learnt from it")
    return read_config(target, locate(target))


def _check_layers(method: str, layers: tuple[int, ...], num_layers: int) -> None:
    if not all(0 <= layer <= num_layers for layer in layers):
        raise ModelError(f"feature layers {layers}: this target has 0 (embeddings) to {num_layers}")
    if any(later <= layer for layer, later in pairwise(layers)):
        raise ModelError(f"feature layers {layers} should be increasing")
    if method == "eagle" and len(layers) != 1:
        raise ModelError(f"feature layers {layers}: an EAGLE-1 head takes one hidden state as input")
    if method == "eagle" and layers != (num_layers,):
        raise ModelError(f"feature layers {layers}: an EAGLE-1 head learns to predict the last, {num_layers}")


def _check_family(target: str, config: Any) -> None:
    """Check that features and weights lie where the Llama and Qwen families have them."""
    if config.model_type not in FAMILIES or getattr(config, "hidden_act", "silu") != "silu":
        raise ModelError(f"'{target}' ({config.model_type}): heads can be trained for the Llama and Qwen families")


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
