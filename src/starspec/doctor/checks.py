"""What can be said of a target and a draft without running them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from starspec.config import SpeculativeConfig
from starspec.errors import ModelError, VocabularyMismatch
from starspec.models.heads.checkpoint import read_head
from starspec.models.heads.load import TargetTensors
from starspec.models.loading.tokenizer import check_vocabularies
from starspec.models.runner import ModelInfo


@dataclass(frozen=True, slots=True)
class Check:
    """One finding."""

    what: str
    severity: Literal["ok", "warning", "fatal"]  # fatal: the pair cannot be used
    story: str


def check_tokenizers(target: Any, draft: Any) -> list[Check]:
    """Vocabulary and chat template of two tokenizers."""
    return [_check_vocabulary(target, draft), _check_chat_template(target, draft)]


def check_head(target: str, speculative: SpeculativeConfig, tokenizer: Any) -> list[Check]:
    """Shape, vocabulary and chat template of a target and an EAGLE head, which has no tokenizer of its own."""
    assert speculative.model is not None
    shape = TargetTensors.of(target).shape
    try:
        spec = read_head(speculative.model, target=shape, feature_layers=speculative.feature_layers).spec
    except ModelError as error:
        return [Check("fit", "fatal", str(error))]
    layers = ", ".join(map(str, spec.feature_layers))
    trained_for = f", made for {spec.target_name}" if spec.target_name else ""
    return [
        Check(
            "fit",
            "ok",
            f"a head of method {spec.method}{trained_for}; it reads the hidden states {layers} of 0 to "
            f"{shape.num_layers}, {shape.hidden_size} numbers each",
        ),
        Check(
            "vocabulary",
            "ok",
            f"the target's tokenizer; the head says {spec.draft_vocab_size} of its {spec.vocab_size} tokens",
        ),
        _check_chat_template(tokenizer, tokenizer),
    ]


def check_lengths(target: ModelInfo, draft: ModelInfo) -> Check:
    """Whether the draft can follow as far as the target goes."""
    if draft.max_model_len >= target.max_model_len:
        story = f"target {target.max_model_len} tokens, draft {draft.max_model_len}"
        return Check("length", "ok", story)
    return Check(
        "length",
        "warning",
        f"the draft holds {draft.max_model_len} tokens, the target {target.max_model_len}: "
        f"beyond {draft.max_model_len} tokens decoding goes on without drafts",
    )


def check_sizes(target: ModelInfo, draft: ModelInfo) -> Check:
    """Whether the draft reads fewer bytes a step than the target: otherwise it cannot be faster."""
    story = f"a step reads {_mib(target)} of the target, {_mib(draft)} of the draft"
    if draft.num_weight_bytes < target.num_weight_bytes:
        return Check("size", "ok", story)
    return Check("size", "warning", f"{story}: not fewer, so a draft token costs what a token of the target costs")


def _check_vocabulary(target: Any, draft: Any) -> Check:
    try:
        check_vocabularies(target, draft)
    except VocabularyMismatch as error:
        return Check("vocabulary", "fatal", str(error))
    return Check("vocabulary", "ok", f"{len(target.get_vocab())} tokens, the same ids in both")


def _check_chat_template(target: Any, draft: Any) -> Check:
    ours, theirs = (getattr(tokenizer, "chat_template", None) for tokenizer in (target, draft))
    if ours is None:
        return Check("chat template", "warning", "the target has none: /v1/chat/completions will not work")
    if ours == theirs:
        return Check("chat template", "ok", "the target's, for both")
    return Check(
        "chat template",
        "warning",
        "the draft has another one or none; the target's is used for both, and the draft may guess worse in chats",
    )


def _mib(info: ModelInfo) -> str:
    return f"{info.num_weight_bytes / 2**20:.0f} MiB"
