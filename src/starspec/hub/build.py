"""From configs to a drafter and its hub."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import assert_never

from starspec.config import EAGLE_METHODS, HubConfig, ModelConfig, SpeculativeConfig
from starspec.draft_methods import HEAD
from starspec.errors import ConfigError
from starspec.fingerprint import vocab_fingerprint
from starspec.hub.drafter import Drafter
from starspec.hub.eagle import FEATURE_WINDOW, EagleDrafter
from starspec.hub.grow import CausalDrafter
from starspec.hub.handshake import FeatureTerms, HubTerms
from starspec.hub.hub import DraftHub
from starspec.hub.ngram import NgramDrafter
from starspec.models.heads.load import is_head, load_head
from starspec.models.loading.load import load_runner
from starspec.models.loading.tokenizer import load_tokenizer
from starspec.tracing import Tracer


@dataclass(frozen=True, slots=True)
class LoadedDrafter:
    """A drafter, and what must be known of it from outside."""

    drafter: Drafter
    vocab_fingerprint: str | None  # None: any vocabulary will do
    num_rows: int  # sequences that can grow at once
    num_cache_bytes: int  # when every slot of every row is in use
    features: FeatureTerms | None = None  # what it reads of the target besides token ids


def load_drafter(
    speculative: SpeculativeConfig, model: ModelConfig | None, num_ngram_rows: int, target: str | None = None
) -> LoadedDrafter:
    """Load what the method asks for.

    Args:
        model: the draft model or head and how it runs; unused by method 'ngram'.
        target: the model that an EAGLE head drafts for; unused by others.
        num_ngram_rows: sequences whose n-gram index is kept; unused by others.
    Raises: ConfigError if there is no draft model; ModelError if it is missing, corrupt or not supported.
    """
    match speculative.method:
        case "ngram":
            lookup = (speculative.prompt_lookup_min, speculative.prompt_lookup_max)
            return LoadedDrafter(NgramDrafter(*lookup, num_ngram_rows), None, num_ngram_rows, 0)
        case "draft_model" | "eagle" | "eagle3":
            if model is None:
                raise ConfigError(f"method '{speculative.method}' needs a draft: give its model")
            # its config.json alone may say that it is a head
            return _load_eagle(speculative, model, target) if is_head(speculative) else _load_causal(model)
        case _:
            assert_never(speculative.method)


def _load_causal(model: ModelConfig) -> LoadedDrafter:
    runner = load_runner(model)
    fingerprint = vocab_fingerprint(load_tokenizer(model.model))
    return LoadedDrafter(CausalDrafter(runner), fingerprint, runner.cache.num_rows, runner.cache.num_bytes)


def _load_eagle(speculative: SpeculativeConfig, model: ModelConfig, target: str | None) -> LoadedDrafter:
    if target is None:
        raise ConfigError("an EAGLE head borrows its target's embedding: give --target MODEL too")
    head = load_head(model, target, speculative.feature_layers)
    spec = head.spec
    if speculative.method in EAGLE_METHODS and speculative.method != spec.method:
        raise ConfigError(f"'{model.model}' is a head of method '{spec.method}', not '{speculative.method}'")
    terms = FeatureTerms(layers=spec.feature_layers, hidden_size=spec.target_hidden_size, window=FEATURE_WINDOW)
    fingerprint = vocab_fingerprint(load_tokenizer(target))
    return LoadedDrafter(EagleDrafter(head), fingerprint, head.cache.num_rows, head.cache.num_bytes, terms)


def suited_to(speculative: SpeculativeConfig, config: HubConfig) -> HubConfig:
    """What the drafter can do of what the hub is told: where it cannot run ahead, run-ahead `auto` is off.

    Raises: ConfigError if it is told to run ahead, or to share prefixes between targets, and cannot.
    """
    traits = HEAD if is_head(speculative) else speculative.traits  # its config.json alone may say that it is one
    if traits.why_not_ahead is None:
        return config
    told = f"is of draft models: this draft {traits.why_not_ahead}, leave the option out"
    if config.run_ahead in ("chain", "outcomes"):
        raise ConfigError(f"--run-ahead {config.run_ahead} {told}")
    if config.share_prefixes == "hub":
        raise ConfigError(f"--share-prefixes hub {told}")
    return replace(config, run_ahead="off")


def build_hub(
    loaded: LoadedDrafter, config: HubConfig, clock: Callable[[], float] = time.monotonic, trace: Tracer | None = None
) -> DraftHub:
    """A hub with the config's limits, which keeps of features what its drafter asks for."""
    window = loaded.features.window if loaded.features else 0
    return DraftHub(loaded.drafter, clock, config, feature_window=window, trace=trace)


def terms_of(loaded: LoadedDrafter, config: HubConfig) -> HubTerms:
    """What the hub offers to targets that say Hello."""
    return HubTerms(
        draft_name=loaded.drafter.name,
        vocab_fingerprint=loaded.vocab_fingerprint,
        max_targets=config.max_targets,
        max_draft_tokens=config.max_draft_tokens,
        lease_s=config.lease_s,
        features=loaded.features,
        is_plain_speed_wanted=config.admission == "n_max",
    )
