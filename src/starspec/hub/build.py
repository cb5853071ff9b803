"""From configs to a drafter and its hub."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from starspec.config import HubConfig, ModelConfig, SpeculativeConfig
from starspec.draft_methods import DraftMethod
from starspec.errors import ConfigError
from starspec.fingerprint import vocab_fingerprint
from starspec.hub.causal import CausalDrafter
from starspec.hub.checks import target_of_head
from starspec.hub.drafter import Drafter
from starspec.hub.eagle import FEATURE_WINDOW, EagleDrafter
from starspec.hub.handshake import FeatureTerms, HubTerms
from starspec.hub.hub import DraftHub
from starspec.hub.ngram import NgramDrafter
from starspec.models.heads.load import check_method, load_head
from starspec.models.loading.load import load_runner
from starspec.models.loading.tokenizer import check_pair, load_tokenizer
from starspec.models.resolve import DraftSpec
from starspec.tracing import Tracer


@dataclass(frozen=True, slots=True)
class LoadedDrafter:
    """A drafter, and what the hub tells others about it."""

    drafter: Drafter
    vocab_fingerprint: str | None  # None: any vocabulary will do
    num_rows: int  # sequences that can grow at once
    num_cache_bytes: int  # when all rows are full
    features: FeatureTerms | None = None  # the hidden states that it takes from the target
    method: DraftMethod = "draft_model"


def load_drafter(
    draft: DraftSpec, model: ModelConfig | None, num_ngram_rows: int, target: str | None = None
) -> LoadedDrafter:
    """Load what drafts.

    Args:
        model: the draft model or head and how it runs; unused by prompt lookup.
        target: the model that an EAGLE head drafts for, and whose vocabulary a draft model must share.
        num_ngram_rows: sequences whose n-gram index prompt lookup keeps; unused by others.
    Raises: ConfigError if there is no draft model; ModelError if it is missing, corrupt or not supported;
        VocabularyMismatch.
    """
    config = draft.config
    if draft.kind == "ngram":
        drafter = NgramDrafter(config.prompt_lookup_min, config.prompt_lookup_max, num_ngram_rows)
        return LoadedDrafter(drafter, None, num_ngram_rows, 0, method="ngram")
    if model is None:
        raise ConfigError(f"method '{config.method}' needs a draft: give its model")
    return _load_eagle(config, model, target_of_head(target)) if draft.head else _load_causal(model, target)


def _load_causal(model: ModelConfig, target: str | None) -> LoadedDrafter:
    if target is not None and target != model.model:
        check_pair(target, model.model)
    runner = load_runner(model)
    fingerprint = vocab_fingerprint(load_tokenizer(model.model))
    return LoadedDrafter(CausalDrafter(runner), fingerprint, runner.cache.num_rows, runner.cache.num_bytes)


def _load_eagle(config: SpeculativeConfig, model: ModelConfig, target: str) -> LoadedDrafter:
    head = load_head(model, target, config.feature_layers)
    spec = head.spec
    check_method(model.model, spec, config)
    terms = FeatureTerms(layers=spec.feature_layers, hidden_size=spec.target_hidden_size, window=FEATURE_WINDOW)
    fingerprint = vocab_fingerprint(load_tokenizer(target))
    method: DraftMethod = config.method if config.traits.reads_features else "eagle"  # it was found to be a head
    return LoadedDrafter(EagleDrafter(head), fingerprint, head.cache.num_rows, head.cache.num_bytes, terms, method)


def build_hub(
    loaded: LoadedDrafter, config: HubConfig, clock: Callable[[], float] = time.monotonic, trace: Tracer | None = None
) -> DraftHub:
    """A hub with the config's limits, and a feature window as long as its drafter needs."""
    window = loaded.features.window if loaded.features else 0
    return DraftHub(loaded.drafter, clock, config, feature_window=window, trace=trace)


def terms_of(loaded: LoadedDrafter, config: HubConfig) -> HubTerms:
    """What the hub answers to a target's Hello."""
    return HubTerms(
        draft_name=loaded.drafter.name,
        vocab_fingerprint=loaded.vocab_fingerprint,
        max_targets=config.max_targets,
        max_draft_tokens=config.max_draft_tokens,
        lease_s=config.lease_s,
        features=loaded.features,
        is_plain_speed_wanted=config.admission == "n_max",
        method=loaded.method,
    )
