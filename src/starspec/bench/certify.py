"""The certificate that drafts change no token, on real models and prompts. `claims` lists what is tested and how."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TypeVar, get_args

from starspec.bench.baseline import TransformersBaseline
from starspec.bench.claims import (
    BATCH,
    BATCH_PAIR,
    BITS,
    CHAIN,
    EXACT,
    HEAD_BITS,
    HEAD_EXACT,
    MAX_PROMPT_TOKENS,
    NUM_DRAFT_TOKENS,
    PAIR,
    SAMPLED_PART,
    STAGES,
    TREE,
    DraftKind,
    Part,
    PartName,
)
from starspec.bench.lossless import (
    Advance,
    Contender,
    LosslessRow,
    PlainAnswers,
    compare_with_plain,
    lossless_blocks,
    no_progress,
    num_turns,
)
from starspec.bench.random_drafts import RandomDrafts, RandomTrees
from starspec.config import FIXED_LENGTH, ModelConfig, SpeculativeConfig
from starspec.engine.drafts import Drafts, NoDrafts
from starspec.errors import ConfigError
from starspec.harness.cut_target import CutTarget
from starspec.harness.datasets import Prompt, fitting_prompts, hash_prompts, spread
from starspec.harness.provenance import Provenance, collect_provenance
from starspec.harness.table import Block
from starspec.harness.workbench import Workbench
from starspec.local_star import check_drafts
from starspec.models.loading.load import max_len_of

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Shard:
    """One of `of` equal parts of the prompts, so that hours of work can be split over several runs or machines.

    Every prompt is in exactly one shard.

    Raises: ConfigError if there is no such shard.
    """

    number: int = 1  # from 1
    of: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.of:
            raise ConfigError(f"there is no shard {self.number} of {self.of}: they count from 1")

    def choose(self, entries: Sequence[T]) -> list[T]:
        """The entries of this shard: every `of`-th one, so that each shard has entries of each kind."""
        return list(entries[self.number - 1 :: self.of])


@dataclass(frozen=True, slots=True, kw_only=True)
class PartResult:
    """The result of one part."""

    name: str
    claim: str
    dtype: str
    device: str  # of target and draft; transformers' own `generate` runs on the CPU
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
    shard: Shard  # of the prompts that the claims name
    parts: list[PartResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subjects:
    """The models that the claims are tested with."""

    model: str  # of the parts with one model
    head: str | None = None  # an EAGLE head of `model`, for parts of its own; None = there are none
    pair: tuple[str, str] | None = None  # target and draft of further parts; None = there are none
    device: str = "cpu"
    num_threads: int | None = None
    part_names: tuple[PartName, ...] = get_args(PartName)  # those that are tested
    shard: Shard = Shard()
    is_small: bool = False  # each part in a small version

    def parts(self) -> list[tuple[Part, str, str]]:
        """The parts that are tested, each with its target and draft."""
        parts = [(part, self.model, self.model) for part in (EXACT, SAMPLED_PART, BITS, BATCH, STAGES)]
        if self.head:
            parts += [(part, self.model, self.head) for part in (HEAD_EXACT, HEAD_BITS)]
        if self.pair:
            parts += [(part, *self.pair) for part in (PAIR, BATCH_PAIR)]
        return [
            (part.in_small() if self.is_small else part, target, draft)
            for part, target, draft in parts
            if part.name in self.part_names
        ]

    def models(self) -> dict[str, str]:
        """For the provenance."""
        head = {"head": self.head} if self.head else {}
        return {"model": self.model} | head | ({"target": self.pair[0], "draft": self.pair[1]} if self.pair else {})


def certify(
    subjects: Subjects,
    prompt_files: Sequence[Sequence[Prompt]],
    max_prompts: int | None = None,
    advance: Advance = no_progress,
) -> Certificate:
    """Test every claim.

    Args:
        prompt_files: used in equal shares.
        max_prompts: limit for each part; None = as many as the parts say.
        advance: called with what was run, `count_turns` times.
    Raises: as load_runner and local_drafts.
    """
    for target, draft in dict.fromkeys((target, draft) for _, target, draft in subjects.parts()):
        check_drafts(ModelConfig(model=target, device=subjects.device), SpeculativeConfig(model=draft))
    results = []
    for part, target, draft in subjects.parts():
        config = ModelConfig(
            model=target,
            dtype=part.dtype,
            device=subjects.device,
            num_rows=part.num_rows,
            max_model_len=min(part.max_model_len, max_len_of(target) or part.max_model_len),
            num_threads=subjects.num_threads,
        )
        num_prompts = _num_prompts(part, max_prompts)
        results.append(try_part(part, config, draft, prompt_files, num_prompts, subjects.shard, advance))
    return Certificate(
        provenance=collect_provenance(subjects.models()),
        holds=all(each.holds for each in results),
        shard=subjects.shard,
        parts=results,
    )


def count_turns(subjects: Subjects, max_prompts: int | None) -> int:
    """How often `certify` calls `advance`, if the files hold enough prompts."""
    return sum(
        num_turns(
            len(subjects.shard.choose(range(_num_prompts(part, max_prompts)))),
            len(part.samplings),
            part.num_contenders // part.num_sharing + part.is_against_transformers,
        )
        for part, _, _ in subjects.parts()
    )


def try_part(
    part: Part,
    target: ModelConfig,
    draft: str,
    prompt_files: Sequence[Sequence[Prompt]],
    num_prompts: int,
    shard: Shard = Shard(),
    advance: Advance = no_progress,
) -> PartResult:
    """Test one claim on a shard of `num_prompts` prompts. Effects: loads the models. Raises: as certify."""
    started_s = time.perf_counter()
    bench = Workbench(target)
    longest = min(part.max_prompt_tokens, bench.runner.info.max_model_len - part.max_tokens)
    short = short_prompts(bench, prompt_files, num_prompts, longest)
    if not short:
        raise ConfigError(f"none of the prompts has at most {longest} tokens, so there is nothing to certify")
    prompts = shard.choose(short)
    if not prompts:
        raise ConfigError(f"shard {shard.number}/{shard.of} of {len(short)} prompts is empty: use fewer shards")
    baseline = None
    if part.is_against_transformers:
        baseline = TransformersBaseline(target.model, part.dtype, bench.runner.info.eos_token_ids)
    plain_answers = PlainAnswers()
    kinds = {kind: _drafts(bench, kind, draft, plain_answers) for kind, _ in part.contenders}
    with ExitStack() as stack:
        cut = {num: stack.enter_context(CutTarget(target, num)) for num in part.stages if num > 1}
        contenders = [
            Contender(kind, batch_size, kinds[kind], batching, cut.get(num_stages))
            for num_stages in part.stages
            for batching in part.batchings
            for kind, batch_size in part.contenders
        ]
        rows = compare_with_plain(
            bench,
            prompts,
            part.samplings,
            contenders,
            part.max_tokens,
            reference=baseline.answer_all if baseline else None,
            plain_answers=plain_answers,
            prefills_once=part.reads_prompts_once,
            num_sharing=part.num_sharing,
            first_turn=shard.number - 1,
            advance=lambda what: advance(f"{part.name}: {what}"),
        )
    return PartResult(
        name=part.name,
        claim=part.claim,
        dtype=part.dtype,
        device=target.device,
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
        short = fitting_prompts(bench.tokenizer, prompts, max_tokens)
        num_left = len(prompt_files) - index
        chosen += spread(short, -(-(num - len(chosen)) // num_left))
    return chosen


def _drafts(bench: Workbench, kind: DraftKind, draft: str, plain_answers: PlainAnswers) -> Drafts:
    vocab_size = bench.runner.info.vocab_size
    match kind:
        case "off":
            return NoDrafts()
        case "ngram":
            return bench.drafts(
                SpeculativeConfig(method="ngram", num_speculative_tokens=NUM_DRAFT_TOKENS, length=FIXED_LENGTH)
            )
        case "draft" | "tree":
            shape = CHAIN if kind == "draft" else TREE
            return bench.drafts(replace(shape, model=draft, max_model_len=bench.config.max_model_len))
        case "liar":
            return RandomDrafts(vocab_size, NUM_DRAFT_TOKENS, seed=1)
        case "half-liar":
            return RandomDrafts(vocab_size, NUM_DRAFT_TOKENS, seed=2, true_tokens=plain_answers)
        case "lying-tree":
            return RandomTrees(vocab_size, NUM_DRAFT_TOKENS, width=3, seed=3, true_tokens=plain_answers)


def _num_prompts(part: Part, max_prompts: int | None) -> int:
    return part.num_prompts if max_prompts is None else min(part.num_prompts, max_prompts)


def blocks(certificate: Certificate) -> list[Block]:
    """What people read."""
    return [block for part in certificate.parts for block in _part_blocks(part)]


def _part_blocks(part: PartResult) -> list[Block]:
    return [
        *lossless_blocks(part.rows, f"{part.name}: {part.claim} ({part.target}, {part.seconds:.0f} s)"),
        f"numerics: {part.numerics}",
        f"[bold]{part.name}: {'holds' if part.holds else 'DOES NOT HOLD'}[/]",
    ]
