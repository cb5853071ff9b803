"""A star of one's own: the hub runs on the target's thread, while the target waits for it.

A hub that runs ahead computes while the target does, so it gets a process of its own (`child_hub.py`).
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import Any

from starspec.cache.memory import check_together, machine_bytes
from starspec.child_hub import ChildHub, ChildHubDrafts
from starspec.config import HubConfig, ModelConfig, SpeculativeConfig
from starspec.draft_methods import drafts_itself
from starspec.engine.drafts import Drafts, NoDrafts, own_drafts
from starspec.engine.remote_drafts import RemoteDrafts
from starspec.errors import ConfigError
from starspec.fingerprint import vocab_fingerprint
from starspec.hub.build import LoadedDrafter, build_hub, load_drafter, terms_of
from starspec.hub.checks import suited_to
from starspec.hub.handshake import admit
from starspec.hub.loop import HubLoop
from starspec.ids import TargetId
from starspec.models.heads.load import check_head
from starspec.models.loading.load import check_loadable
from starspec.models.loading.tokenizer import check_vocabularies, load_tokenizer
from starspec.models.resolve import DraftSpec, resolve_draft
from starspec.models.runner import ModelInfo
from starspec.policy.length.make import make_policy
from starspec.policy.length.snapshot import LengthPolicy
from starspec.stats import TargetStats
from starspec.wire.messages import PROTOCOL_VERSION, Hello
from starspec.wire.transports.memory import MemoryHub, MemoryTarget

DEFAULT_HUB = HubConfig()
NO_DEADLINE_S = 3600.0  # a target has nothing else to do than wait for its own hub


def local_drafts(
    target: ModelConfig,
    info: ModelInfo,
    speculative: SpeculativeConfig | None,
    stats: TargetStats,
    tokenizer: Any,
    max_num_seqs: int | None = None,
) -> Drafts:
    """The drafts of a target without a hub elsewhere. `shutdown` must be called: it may end a process.

    Args:
        info: what was found when the target was loaded.
        tokenizer: the target's. It is compared with the draft's.
        max_num_seqs: largest number of sequences in a round; None = unknown.
    Raises: ConfigError if the config names a hub elsewhere or no draft; VocabularyMismatch; ModelError.
    """
    if speculative is None:
        return NoDrafts()
    speculative.check_alone()
    policy = make_policy(speculative, max_num_seqs)
    own = own_drafts(speculative.method, speculative, policy, stats)
    if own is not None:
        return own
    if speculative.runs_ahead:
        return _child_drafts(target, info, speculative, tokenizer, policy, stats)
    return LocalHub(target, info, speculative, tokenizer).drafts(policy, stats)


def check_drafts(
    target: ModelConfig, speculative: SpeculativeConfig | None, tokenizer: Any = None, *, is_target_ours: bool = True
) -> None:
    """Check what `local_drafts` needs as far as small files show it, so that a mistake does not cost a long load.

    Args:
        tokenizer: the target's; None = it is loaded if it is needed.
        is_target_ours: the target's cache is on this machine, too: both must fit into its memory together. False for a
            target of another server, such as vLLM.
    Raises: as local_drafts; as check_loadable for the target.
    """
    if speculative is None:
        return
    speculative.check_alone()
    if drafts_itself(speculative.method):
        return
    draft = _resolved(target.model, speculative, tokenizer or load_tokenizer(target.model))
    model = _draft_model(target, draft)
    if model is None:
        return
    draft_bytes = _check_draft(model, target.model, draft)
    if is_target_ours:
        check_caches(target, draft_bytes if model.device == target.device else 0)


def check_caches(target: ModelConfig, draft_bytes: int) -> int:
    """Check that the caches of a target and of a draft on this machine fit into its memory together.

    Args:
        draft_bytes: of the draft's cache, which is on the target's device.
    Returns: the bytes of the target's cache.
    Raises: ConfigError if they do not fit; as check_loadable.
    """
    target_bytes = check_loadable(target)
    if target.device == "cpu":  # torch knows the memory of other devices
        check_together(target_bytes, draft_bytes, machine_bytes())
    return target_bytes


def draft_cache_bytes(target: ModelConfig, draft: DraftSpec) -> int:
    """The bytes of the cache that a draft has beside this target. Raises: as check_loadable."""
    model = _draft_model(target, draft)
    return 0 if model is None else _check_draft(model, target.model, draft)


def _check_draft(model: ModelConfig, target: str, draft: DraftSpec) -> int:
    """Returns: the bytes of the draft's cache. Raises: as check_loadable."""
    return check_loadable(model) if draft.head is None else check_head(model, target, draft.config)


def _resolved(target: str, speculative: SpeculativeConfig, tokenizer: Any) -> DraftSpec:
    """What drafts. Raises: ConfigError if it is elsewhere or not named; VocabularyMismatch."""
    speculative.check_alone()
    if speculative.model is None:
        raise ConfigError("speculative config: give the draft's model")
    draft = resolve_draft(speculative)
    suited_to(draft, DEFAULT_HUB)
    if draft.head is None and speculative.model != target:
        check_vocabularies(tokenizer, load_tokenizer(speculative.model))
    return draft


class LocalHub:
    """A hub that runs on its targets' thread.

    Args: as local_drafts.
        config: of the hub; its network and its draft are not used.
    Raises: as local_drafts. Effects: loads the draft.
    """

    def __init__(
        self,
        target: ModelConfig,
        info: ModelInfo,
        speculative: SpeculativeConfig,
        tokenizer: Any,
        config: HubConfig = DEFAULT_HUB,
    ) -> None:
        draft = _resolved(target.model, speculative, tokenizer)
        if speculative.runs_ahead:
            raise ConfigError("run_ahead: this hub takes turns with its target, so it cannot run ahead: leave it out")
        self._method = speculative.rejection_sample_method
        self.loaded = _load_draft(target, draft)
        self._transport = MemoryHub(partial(admit, terms_of(self.loaded, config)), is_coded=False)
        self._loop = HubLoop(build_hub(self.loaded, config), self._transport, time.monotonic)
        self._hello = _hello(info, tokenizer)

    def connect(self) -> MemoryTarget:
        """A link for one more target. The hub works while a target waits."""
        return self._transport.connect(self._hello, partial(self._loop.run_once, 0.0))

    def drafts(self, policy: LengthPolicy, stats: TargetStats) -> RemoteDrafts:
        """Drafts for one more target.

        They know the hub's feature layers from the start, so they send the features of whole prompts.
        """
        drafts = RemoteDrafts(self.connect(), policy, stats, deadline_s=NO_DEADLINE_S, method=self._method)
        drafts.poll()
        return drafts


def _child_drafts(
    target: ModelConfig,
    info: ModelInfo,
    speculative: SpeculativeConfig,
    tokenizer: Any,
    policy: LengthPolicy,
    stats: TargetStats,
) -> Drafts:
    """Drafts from a hub in a process of its own. Args, raises: as local_drafts."""
    model = _draft_model(target, _resolved(target.model, speculative, tokenizer))
    assert model is not None  # a draft that runs ahead has one
    hub = ChildHub(speculative, model, target.model)
    return ChildHubDrafts(hub, _hello(info, tokenizer), policy, stats, speculative.rejection_sample_method)


def _hello(info: ModelInfo, tokenizer: Any) -> Hello:
    fingerprint = vocab_fingerprint(tokenizer)
    return Hello(PROTOCOL_VERSION, TargetId("llm"), info.vocab_size, fingerprint, info.num_layers, info.hidden_size)


def _draft_model(target: ModelConfig, draft: DraftSpec) -> ModelConfig | None:
    """The draft's model. It runs as the target does, with as many cache rows, except for what its own config says."""
    return draft.config.draft_model(replace(target, num_threads=None, kv_budget_bytes=None))


def _load_draft(target: ModelConfig, draft: DraftSpec) -> LoadedDrafter:
    model = _draft_model(target, draft)
    return load_drafter(draft, model, target.num_rows, None if draft.head is None else target.model)
