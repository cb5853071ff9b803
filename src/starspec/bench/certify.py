"""The certificate: drafts change no token, on real models and real prompts.

    exact     float32, greedy: every token is the one that transformers' `generate` gives
    sampled   float32, T 0.7 and 1.0, with and without top-p: every token is that of plain decoding with the same seed
    bits      bfloat16, greedy and sampled: every token is that of plain decoding, decided by logits of the same bits
    pair      as bits, for a target and a draft that are different models

Contenders are plain decoding in batches, prompt lookup, a draft model (in the first three parts the model's own int4
self), a draft that lies, and one that tells the truth up to a random token and lies from there. Requests of a batch
have different lengths, join and leave.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from starspec.bench.baseline import TransformersBaseline
from starspec.bench.datasets import Prompt, hash_prompts, prompt_token_ids, spread
from starspec.bench.liars import LyingDrafts
from starspec.bench.lossless import Advance, Contender, LosslessRow, Truths, compare_with_plain, no_progress
from starspec.bench.provenance import Provenance, collect_provenance
from starspec.bench.workbench import GREEDY, SAMPLED, Sampling, Workbench
from starspec.config import ModelConfig, SpeculativeConfig
from starspec.target.drafts import Drafts, NoDrafts

DraftKind = Literal["off", "ngram", "draft", "liar", "half-liar"]

MAX_PROMPT_TOKENS = 128  # longer prompts are left out: what they cost is prefill, which is the same with and without
MAX_MODEL_LEN = 256
NUM_ROWS = 8
NUM_DRAFT_TOKENS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One claim, and how it is tried."""

    name: str
    claim: str
    dtype: Literal["float32", "bfloat16"]
    num_prompts: int
    max_tokens: int
    samplings: tuple[Sampling, ...]
    contenders: tuple[tuple[DraftKind, int], ...]  # and its batch size
    is_against_transformers: bool = False
    needs_same_bits: bool = False


EXACT = Part(
    name="exact",
    claim="float32 greedy: every token is the one of transformers' generate",
    dtype="float32",
    num_prompts=200,
    max_tokens=24,
    samplings=(GREEDY,),
    contenders=(("draft", 1), ("off", 4), ("draft", 4), ("draft", 8)),
    is_against_transformers=True,
)
SAMPLED_PART = Part(
    name="sampled",
    claim="float32 sampled: every token is the one of plain decoding with the same seed",
    dtype="float32",
    num_prompts=72,
    max_tokens=16,
    samplings=SAMPLED,
    contenders=(("off", 8), ("ngram", 4), ("draft", 8), ("liar", 8), ("half-liar", 4)),
)
BITS = Part(
    name="bits",
    claim="bfloat16, default numerics: every token is the one of plain decoding, from logits of the same bits",
    dtype="bfloat16",
    num_prompts=24,
    max_tokens=16,
    samplings=(GREEDY, *SAMPLED),
    contenders=(
        ("draft", 1),
        ("half-liar", 2),
        ("draft", 3),
        ("half-liar", 4),
        ("ngram", 5),
        ("half-liar", 6),
        ("liar", 7),
        ("draft", 8),
        ("off", 8),
    ),
    needs_same_bits=True,
)
PAIR = Part(
    name="pair",
    claim="as bits, for a target and a draft that are different models",
    dtype="bfloat16",
    num_prompts=12,
    max_tokens=12,
    samplings=(GREEDY, SAMPLED[1]),
    contenders=(("draft", 1), ("draft", 4), ("draft", 8), ("off", 8), ("half-liar", 3)),
    needs_same_bits=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartResult:
    """What a part found."""

    name: str
    claim: str
    dtype: str
    target: str
    draft: str
    numerics: str  # what the probe found
    num_prompts: int
    prompts_sha256: str
    holds: bool
    rows: list[LosslessRow]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """The receipt."""

    provenance: Provenance
    holds: bool
    parts: list[PartResult]


def certify(
    model: str,
    pair: tuple[str, str] | None,
    prompt_files: Sequence[Sequence[Prompt]],
    parts: Sequence[Part] = (EXACT, SAMPLED_PART, BITS),
    num_prompts: int | None = None,
    advance: Advance = no_progress,
) -> Certificate:
    """Try every claim.

    Args:
        model: of the parts with one model.
        pair: target and draft of one more part; the draft's weights become int4. None = there is none.
        prompt_files: used in equal shares.
        num_prompts: at most so many for each part; None = as the parts say.
    Raises: as load_runner and local_drafts.
    """
    tried = [(part, model, model) for part in parts]
    tried += [(PAIR, *pair)] if pair else []
    results = [
        try_part(part, target, draft, prompt_files, min(part.num_prompts, num_prompts or part.num_prompts), advance)
        for part, target, draft in tried
    ]
    models = {"model": model} | ({"target": pair[0], "draft": pair[1]} if pair else {})
    return Certificate(provenance=collect_provenance(models), holds=all(each.holds for each in results), parts=results)


def try_part(
    part: Part,
    target: str,
    draft: str,
    prompt_files: Sequence[Sequence[Prompt]],
    num_prompts: int,
    advance: Advance = no_progress,
) -> PartResult:
    """Try one claim. Args, raises: as certify."""
    started_s = time.perf_counter()
    bench = Workbench(ModelConfig(model=target, dtype=part.dtype, num_rows=NUM_ROWS, max_model_len=MAX_MODEL_LEN))
    prompts = short_prompts(bench, prompt_files, num_prompts)
    baseline = None
    if part.is_against_transformers:
        baseline = TransformersBaseline(target, part.dtype, bench.runner.info.eos_token_ids)
    truths = Truths()
    kinds = {kind: _drafts(bench, kind, draft, truths) for kind, _ in part.contenders}
    rows = compare_with_plain(
        bench,
        prompts,
        part.samplings,
        [Contender(kind, batch_size, kinds[kind]) for kind, batch_size in part.contenders],
        part.max_tokens,
        reference=baseline.answer_all if baseline else None,
        truths=truths,
        advance=lambda what: advance(f"{part.name}: {what}"),
    )
    return PartResult(
        name=part.name,
        claim=part.claim,
        dtype=part.dtype,
        target=bench.runner.info.name,
        draft=draft.rpartition("/")[2],
        numerics=bench.numerics_report,
        num_prompts=len(prompts),
        prompts_sha256=hash_prompts(prompts),
        holds=all(row.is_identical and (row.is_bitwise or not part.needs_same_bits) for row in rows),
        rows=rows,
        seconds=round(time.perf_counter() - started_s, 1),
    )


def short_prompts(bench: Workbench, prompt_files: Sequence[Sequence[Prompt]], num: int) -> list[Prompt]:
    """`num` prompts of at most MAX_PROMPT_TOKENS tokens, in equal shares from each file, one file after the other."""
    chosen: list[Prompt] = []
    for index, prompts in enumerate(prompt_files):
        short = [each for each in prompts if len(prompt_token_ids(bench.tokenizer, each)) <= MAX_PROMPT_TOKENS]
        num_left = len(prompt_files) - index
        chosen += spread(short, -(-(num - len(chosen)) // num_left))
    return chosen


def _drafts(bench: Workbench, kind: DraftKind, draft: str, truths: Truths) -> Drafts:
    vocab_size = bench.runner.info.vocab_size
    match kind:
        case "off":
            return NoDrafts()
        case "ngram":
            return bench.drafts(SpeculativeConfig(method="ngram", num_speculative_tokens=NUM_DRAFT_TOKENS))
        case "draft":
            speculative = SpeculativeConfig(
                model=draft, quantization="int4", num_speculative_tokens=NUM_DRAFT_TOKENS, max_model_len=MAX_MODEL_LEN
            )
            return bench.drafts(speculative)
        case "liar":
            return LyingDrafts(vocab_size, NUM_DRAFT_TOKENS, seed=1)
        case "half-liar":
            return LyingDrafts(vocab_size, NUM_DRAFT_TOKENS, seed=2, truth=truths)
