"""The plan of a training, and all checks of it that need no data."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from starspec.errors import ConfigError, ModelError
from starspec.models.loading.config_json import read_config
from starspec.models.loading.locate import is_synthetic, locate
from starspec.train.answers import AnswerPlan
from starspec.train.start import default_layers, earlier_head, head_spec
from starspec.train.trainer import TrainPlan

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "smollm3", "seed_oss")  # by transformers' model_type


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadPlan:
    """How one head is trained."""

    method: Literal["eagle", "eagle3"]
    prompts: Path
    out: Path
    answers: AnswerPlan  # names the target
    training: TrainPlan
    start_from: Path | None = None  # a head that was trained before; None = the target's last layer
    draft_vocab_size: int | None = 8192  # None = all tokens of the target, as EAGLE-1 always has
    feature_layers: tuple[int, ...] | None = None  # None = those of the method
    target_name: str | None = None  # name of the target in the checkpoint
    data_licence: str = "not stated"
    learn_prompts: bool = False  # learn the target's predictions within prompts, too
    held_out_every: int = 33  # one of so many prompts is held out for measuring
    num_threads: int | None = None


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
    if plan.start_from is not None and plan.start_from.resolve() == plan.out.resolve():
        raise ConfigError(f"'{plan.out}' cannot be both started from and renewed: give another --out")
    config = _read_config(answers.target)
    layers = plan.feature_layers or default_layers(plan.method, config.num_hidden_layers)
    _check_layers(plan.method, layers, config.num_hidden_layers)
    _check_family(answers.target, config)
    if plan.start_from is not None:
        spec = head_spec(plan.method, config, answers.target, config.vocab_size, layers)
        earlier_head(plan.start_from, spec, config.num_hidden_layers)
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
        raise ModelError(f"feature layers {layers}: an EAGLE-1 head reads one hidden state")
    if method == "eagle" and layers != (num_layers,):
        raise ModelError(f"feature layers {layers}: an EAGLE-1 head learns to foretell the last, {num_layers}")


def _check_family(target: str, config: Any) -> None:
    """Check that features and weights lie where the Llama and Qwen families have them."""
    if config.model_type not in FAMILIES or getattr(config, "hidden_act", "silu") != "silu":
        raise ModelError(f"'{target}' ({config.model_type}): heads can be trained for the Llama and Qwen families")
