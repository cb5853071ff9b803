"""Checks of a target, a draft and this processor that need no decoding."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch

from starspec.config import ModelConfig, SpeculativeConfig
from starspec.errors import ConfigError, ModelError, VocabularyMismatch
from starspec.local_star import check_caches, draft_cache_bytes
from starspec.models.heads.checkpoint import read_head
from starspec.models.heads.load import TargetTensors
from starspec.models.linear.dense import pack_dense
from starspec.models.loading.tokenizer import check_vocabularies
from starspec.models.resolve import DraftSpec
from starspec.models.runner import ModelInfo


@dataclass(frozen=True, slots=True)
class Check:
    """One finding."""

    what: str
    severity: Literal["ok", "warning", "fatal"]  # fatal: the pair cannot be used
    sentence: str


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
            f"a head of method {spec.method}{trained_for}; it takes as input the hidden states {layers} of 0 to "
            f"{shape.num_layers}, {shape.hidden_size} numbers each",
        ),
        Check(
            "vocabulary",
            "ok",
            f"the target's tokenizer; the head says {spec.draft_vocab_size} of its {spec.vocab_size} tokens",
        ),
        _check_chat_template(tokenizer, tokenizer),
    ]


def check_memory(target: ModelConfig, draft: DraftSpec) -> Check:
    """Whether the caches of both fit into this machine, as `LLM` checks it. Raises: as check_loadable."""
    draft_bytes = draft_cache_bytes(target, draft)
    try:
        target_bytes = check_caches(target, draft_bytes)
    except ConfigError as error:
        return Check("memory", "fatal", str(error))
    return Check(
        "memory",
        "ok",
        f"the caches of {target.num_rows} sequences take at most {target_bytes / 2**20:,.0f} MiB for the target and "
        f"{draft_bytes / 2**20:,.0f} MiB for the draft",
    )


def check_lengths(target: ModelInfo, draft: ModelInfo) -> Check:
    """Whether the draft's context is as long as the target's."""
    if draft.max_model_len >= target.max_model_len:
        sentence = f"target {target.max_model_len} tokens, draft {draft.max_model_len}"
        return Check("length", "ok", sentence)
    return Check(
        "length",
        "warning",
        f"the draft holds {draft.max_model_len} tokens, the target {target.max_model_len}: "
        f"beyond {draft.max_model_len} tokens decoding goes on without drafts",
    )


def check_sizes(target: ModelInfo, draft: ModelInfo) -> Check:
    """Whether the draft has fewer weight bytes than the target. Otherwise it cannot be faster."""
    sentence = f"a step reads {_mib(target)} of the target, {_mib(draft)} of the draft"
    if draft.num_weight_bytes < target.num_weight_bytes:
        return Check("size", "ok", sentence)
    return Check("size", "warning", f"{sentence}: not fewer, so a draft token costs what a token of the target costs")


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


SIZE: Final = 1024  # of the square matrix, as in a small model
NUM_ROWS: Final = 8  # of a verification
NUM_REPEATS: Final = 20  # the fastest run counts, because other load only slows runs
TOLERABLE: Final = 1.25  # accepted ratio to the time in float32


def check_arithmetic(dtype: str, device: str) -> list[Check]:
    """How fast a half-precision format is; no check of float32 or of accelerators."""
    if dtype == "float32" or device != "cpu":
        return []
    ratio = linear_seconds(getattr(torch, dtype)) / linear_seconds(torch.float32)
    return [judge_arithmetic(dtype, ratio)]


def judge_arithmetic(dtype: str, ratio: float) -> Check:
    """Args: ratio: time of a verification's linear in `dtype`, against float32."""
    if ratio <= TOLERABLE:
        return Check("arithmetic", "ok", f"{NUM_ROWS} tokens take {ratio:.2f} times as long in {dtype} as in float32")
    return Check(
        "arithmetic",
        "warning",
        f"this processor is slow in {dtype}: {NUM_ROWS} tokens take {ratio:.1f} times as long as in float32, so that"
        " verifying drafts is dear; try --dtype float32",
    )


@torch.inference_mode()
def linear_seconds(dtype: torch.dtype) -> float:
    """Time of the fastest run of a linear over the rows of a verification."""
    generator = torch.Generator().manual_seed(0)
    linear = pack_dense(torch.randn(SIZE, SIZE, generator=generator).to(dtype), None)
    x = torch.randn(NUM_ROWS, SIZE, generator=generator).to(dtype)
    times = []
    for _ in range(NUM_REPEATS):
        started_s = time.perf_counter()
        linear(x)
        times.append(time.perf_counter() - started_s)
    return min(times)
