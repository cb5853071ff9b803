"""The certificate: drafts change no token, on real models and real prompts.

    exact     float32, greedy: every token is the one that transformers' `generate` gives
    sampled   float32, T 0.7 and 1.0, with and without top-p: every token is that of plain decoding with the same seed
    bits      bfloat16, greedy and sampled: every token is that of plain decoding, decided by logits of the same bits
    pair      as bits, for a target and a draft that are different models
    batch     float32, greedy and sampled: every token is that of plain decoding alone, however a batch is laid out
    batch-pair    as batch, for a target and a draft that are different models

Contenders are plain decoding in batches, prompt lookup, chains and trees of a draft model (in the first three parts the
model's own int4 self), a draft that lies, one that tells the truth up to a random token and lies from there, and one
that hides the truth in a tree of lies. Requests of a batch have different lengths, join and leave.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from starspec.bench.baseline import TransformersBaseline
from starspec.bench.datasets import Prompt, hash_prompts, prompt_token_ids, spread
from starspec.bench.liars import LyingDrafts, LyingTrees
from starspec.bench.lossless import Advance, Contender, LosslessRow, Truths, compare_with_plain, no_progress, num_turns
from starspec.bench.provenance import Provenance, collect_provenance
from starspec.bench.workbench import GREEDY, SAMPLED, Sampling, Workbench
from starspec.config import WINDOW_BATCHES, BatchingConfig, ModelConfig, SpeculativeConfig
from starspec.errors import ConfigError
from starspec.target.drafts import Drafts, NoDrafts

PartName = Literal["exact", "sampled", "bits", "pair", "batch", "batch-pair"]
DraftKind = Literal["off", "ngram", "draft", "tree", "liar", "half-liar", "lying-tree"]

MAX_PROMPT_TOKENS = 128  # longer prompts are left out: what they cost is prefill, which is the same with and without
MAX_MODEL_LEN = 256
NUM_ROWS = 8
NUM_DRAFT_TOKENS = 4
ALL_BATCHINGS = tuple(BatchingConfig(method=method) for method in ("ragged", "eqspec", "exspec", "rollback"))
CHAIN = SpeculativeConfig(quantization="int4", num_speculative_tokens=NUM_DRAFT_TOKENS, max_model_len=MAX_MODEL_LEN)
TREE = replace(CHAIN, num_steps=4, eagle_topk=3, num_draft_tokens=13)  # 12 nodes: the root counts here


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One claim, and how it is tried."""

    name: PartName
    claim: str
    dtype: Literal["float32", "bfloat16"]
    num_prompts: int
    max_tokens: int
    samplings: tuple[Sampling, ...]
    contenders: tuple[tuple[DraftKind, int], ...]  # and its batch size
    batchings: tuple[BatchingConfig, ...] = (BatchingConfig(),)  # each contender is tried with each
    num_rows: int = NUM_ROWS
    max_model_len: int | None = MAX_MODEL_LEN  # None = the model's own
    max_prompt_tokens: int = MAX_PROMPT_TOKENS
    is_against_transformers: bool = False
    needs_same_bits: bool = False


EXACT = Part(
    name="exact",
    claim="float32 greedy: every token is the one of transformers' generate",
    dtype="float32",
    num_prompts=200,
    max_tokens=24,
    samplings=(GREEDY,),
    contenders=(("draft", 1), ("off", 4), ("draft", 4), ("draft", 8), ("tree", 1), ("tree", 4), ("tree", 8)),
    is_against_transformers=True,
)
SAMPLED_PART = Part(
    name="sampled",
    claim="float32 sampled: every token is the one of plain decoding with the same seed",
    dtype="float32",
    num_prompts=200,
    max_tokens=12,
    samplings=SAMPLED,
    contenders=(
        ("off", 8),
        ("ngram", 4),
        ("draft", 8),
        ("tree", 8),
        ("liar", 8),
        ("half-liar", 4),
        ("lying-tree", 4),
    ),
)
BITS = Part(
    name="bits",
    claim="bfloat16, default numerics: every token is the one of plain decoding, from logits of the same bits",
    dtype="bfloat16",
    num_prompts=200,
    max_tokens=12,
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
        ("half-liar", 12),
        ("draft", 16),
        ("tree", 1),
        ("lying-tree", 4),
        ("tree", 8),
        ("off", 16),
    ),
    num_rows=16,
    needs_same_bits=True,
)
PAIR = Part(
    name="pair",
    claim="as bits, for a target and a draft that are different models",
    dtype="bfloat16",
    num_prompts=48,
    max_tokens=8,
    samplings=(GREEDY, *SAMPLED),
    contenders=(
        ("draft", 1),
        ("half-liar", 2),
        ("lying-tree", 3),
        ("tree", 4),
        ("ngram", 5),
        ("liar", 6),
        ("off", 7),
        ("draft", 8),
    ),
    needs_same_bits=True,
)
MAX_BATCH_SIZE = 16
BATCH = Part(
    name="batch",
    claim="float32: every token is the one of plain decoding alone, ragged, realigned, grouped or rolled back",
    dtype="float32",
    num_prompts=480,
    max_tokens=64,
    samplings=(GREEDY, Sampling(temperature=0.7)),
    contenders=(("draft", 1), ("half-liar", 2), ("draft", 4), ("half-liar", 8), ("draft", MAX_BATCH_SIZE)),
    batchings=ALL_BATCHINGS,
    num_rows=WINDOW_BATCHES * MAX_BATCH_SIZE,
    max_model_len=None,
    max_prompt_tokens=3072,  # all of Spec-Bench but for a few articles
)
BATCH_PAIR = replace(BATCH, name="batch-pair", num_prompts=100)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Subjects:
    """What the claims are tried on."""

    model: str  # of the parts with one model
    pair: tuple[str, str] | None = None  # target and draft of one more part; None = there is none
    num_threads: int | None = None
    part_names: tuple[PartName, ...] = get_args(PartName)  # those that are tried

    def parts(self) -> list[tuple[Part, str, str]]:
        """Every part with its target and draft."""
        parts = [(part, self.model, self.model) for part in (EXACT, SAMPLED_PART, BITS, BATCH)]
        if self.pair:
            parts += [(part, *self.pair) for part in (PAIR, BATCH_PAIR)]
        return [each for each in parts if each[0].name in self.part_names]

    def models(self) -> dict[str, str]:
        """For the provenance."""
        return {"model": self.model} | ({"target": self.pair[0], "draft": self.pair[1]} if self.pair else {})


def certify(
    subjects: Subjects,
    prompt_files: Sequence[Sequence[Prompt]],
    max_prompts: int | None = None,
    advance: Advance = no_progress,
) -> Certificate:
    """Try every claim.

    Args:
        prompt_files: used in equal shares.
        max_prompts: at most so many for each part; None = as the parts say.
        advance: called with what was run, `count_turns` times.
    Raises: as load_runner and local_drafts.
    """
    results = []
    for part, target, draft in subjects.parts():
        config = ModelConfig(
            model=target,
            dtype=part.dtype,
            num_rows=part.num_rows,
            max_model_len=part.max_model_len,
            num_threads=subjects.num_threads,
        )
        results.append(try_part(part, config, draft, prompt_files, _num_prompts(part, max_prompts), advance))
    return Certificate(
        provenance=collect_provenance(subjects.models()),
        holds=all(each.holds for each in results),
        parts=results,
    )


def count_turns(subjects: Subjects, max_prompts: int | None) -> int:
    """How often `certify` advances, if the files hold as many prompts as it wants."""
    return sum(
        num_turns(
            _num_prompts(part, max_prompts),
            len(part.samplings),
            len(part.contenders) * len(part.batchings) + part.is_against_transformers,
        )
        for part, _, _ in subjects.parts()
    )


def try_part(
    part: Part,
    target: ModelConfig,
    draft: str,
    prompt_files: Sequence[Sequence[Prompt]],
    num_prompts: int,
    advance: Advance = no_progress,
) -> PartResult:
    """Try one claim. Effects: loads the models. Raises: as certify."""
    started_s = time.perf_counter()
    bench = Workbench(target)
    longest = min(part.max_prompt_tokens, bench.runner.info.max_model_len - part.max_tokens)
    prompts = short_prompts(bench, prompt_files, num_prompts, longest)
    if not prompts:
        raise ConfigError(f"none of the prompts has at most {longest} tokens, so there is nothing to certify")
    baseline = None
    if part.is_against_transformers:
        baseline = TransformersBaseline(target.model, part.dtype, bench.runner.info.eos_token_ids)
    truths = Truths()
    kinds = {kind: _drafts(bench, kind, draft, truths) for kind, _ in part.contenders}
    rows = compare_with_plain(
        bench,
        prompts,
        part.samplings,
        [
            Contender(kind, batch_size, kinds[kind], batching)
            for batching in part.batchings
            for kind, batch_size in part.contenders
        ],
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


def short_prompts(
    bench: Workbench, prompt_files: Sequence[Sequence[Prompt]], num: int, max_tokens: int = MAX_PROMPT_TOKENS
) -> list[Prompt]:
    """`num` prompts of at most `max_tokens` tokens, in equal shares from each file, one file after the other."""
    chosen: list[Prompt] = []
    for index, prompts in enumerate(prompt_files):
        short = [each for each in prompts if len(prompt_token_ids(bench.tokenizer, each)) <= max_tokens]
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
        case "draft" | "tree":
            shape = CHAIN if kind == "draft" else TREE
            return bench.drafts(replace(shape, model=draft, max_model_len=bench.config.max_model_len))
        case "liar":
            return LyingDrafts(vocab_size, NUM_DRAFT_TOKENS, seed=1)
        case "half-liar":
            return LyingDrafts(vocab_size, NUM_DRAFT_TOKENS, seed=2, truth=truths)
        case "lying-tree":
            return LyingTrees(vocab_size, NUM_DRAFT_TOKENS, width=3, seed=3, truth=truths)


def _num_prompts(part: Part, max_prompts: int | None) -> int:
    return part.num_prompts if max_prompts is None else min(part.num_prompts, max_prompts)
