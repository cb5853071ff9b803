"""What drafts: found out once from a speculative config and the draft's config.json, then passed on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from starspec.config import SpeculativeConfig
from starspec.draft_methods import HEAD, MethodTraits
from starspec.errors import ConfigError
from starspec.models.heads.detect import looks_like_a_head
from starspec.models.loading.locate import announced_name, folder_name

DraftKind = Literal["draft_model", "head", "ngram"]


@dataclass(frozen=True, slots=True)
class DraftSpec:
    """What drafts, and the settings that it drafts by."""

    kind: DraftKind
    traits: MethodTraits  # of what drafts, which may be a head although the method does not say so
    config: SpeculativeConfig

    @property
    def head(self) -> str | None:
        """Folder or hub id of the EAGLE head; None if something else drafts."""
        return self.config.model if self.kind == "head" else None


def draft_name(draft: DraftSpec) -> str:
    """What a hub calls a draft that is a model: a head by its folder, a draft model as targets call theirs."""
    assert draft.config.model is not None
    return announced_name(draft.config.model) if draft.head is None else folder_name(draft.head)


def resolve_draft(config: SpeculativeConfig) -> DraftSpec:
    """Find out what drafts: an EAGLE head if the method says so or the draft's config.json does, else the method.

    The config.json of SafeAILab's EAGLE-1 looks like that of a small Llama: there the method must say so.

    Raises: ConfigError if it is told the layers that a head reads, and is none.
    Effects: reads the draft's config.json if the method is `draft_model`; downloads a hub id that is not cached.
    """
    if config.traits.reads_features or (config.method == "draft_model" and looks_like_a_head(config.model)):
        return DraftSpec("head", HEAD, config)
    if config.feature_layers is not None:
        raise ConfigError(
            f"feature_layers: for EAGLE heads, and '{config.model}' does not say that it is one: leave it out, or give "
            "the method that it is of"
        )
    return DraftSpec("draft_model" if config.traits.needs_model else "ngram", config.traits, config)
