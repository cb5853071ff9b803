"""`starspec bench vllm`: a vLLM server with a hub's drafts, beside vLLM's own draft model and plain decoding."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median

from starspec.bench.vllm.methods import (
    DRAFT_MODEL,
    HUB,
    PLAIN,
    SILENT_HUB,
    VllmAnswer,
    VllmMethod,
    VllmModels,
    ask_all,
    partings,
    start_rival,
    start_star,
)
from starspec.errors import ConfigError
from starspec.harness.datasets import Prompt, hash_prompts, prompt_token_ids, spread
from starspec.harness.decode import Advance
from starspec.harness.provenance import collect_provenance
from starspec.harness.report import Report, Spread
from starspec.harness.table import Block, Column, Table, ratio_lines, share
from starspec.local_star import check_drafts
from starspec.models.loading.tokenizer import load_tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmPlan:
    """How much to measure."""

    num_prompts: int = 4  # of each file
    max_tokens: int = 96
    batch_sizes: tuple[int, ...] = (1, 4)
    num_repeats: int = 3
    lengths: tuple[int, ...] = (3, 5)  # draft lengths of vLLM's own draft model

    def __post_init__(self) -> None:
        if min(self.lengths) < 1:
            raise ConfigError(f"vLLM's own draft model drafts at least 1 token, not {min(self.lengths)}")


QUICK = VllmPlan(max_tokens=12, num_repeats=1, lengths=(4,))


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmRow:
    """One way of drafting at one batch size."""

    method: str
    num_draft_tokens: int
    rival: str  # what took turns with the hub's server; rows of one rival are compared
    batch_size: int
    tokens_per_s: Spread  # prompts included
    acceptance_length: float  # tokens of a verification by vLLM's counters, median of the repeats
    num_answers: int  # of the last repeat
    num_identical: int  # to plain decoding at batch 1
    num_near_ties: int  # answers that differ where the two tokens were almost equally likely
    gaps: list[float | None]  # nats between the two tokens, for each answer that differs


def measure_vllm(
    models: VllmModels, prompt_files: Sequence[Sequence[Prompt]], plan: VllmPlan, advance: Advance
) -> Iterator[Report]:
    """Start a hub and its server, then one rival server after the other. Each rival takes turns with the hub's server.

    A small machine cannot hold all servers at once, and each ratio needs only two.

    Args:
        prompt_files: `plan.num_prompts` of each are used, evenly spread.
    Yields: the report so far, after each rival: the whole takes hours and may be interrupted.
    Raises: as check_drafts; PeerLost if a server or the hub does not come up, or a request fails; ConfigError as
        VllmServer, or if a batch size is larger than the number of prompts.
    """
    chosen = [prompt for file in prompt_files for prompt in spread(file, plan.num_prompts)]
    if max(plan.batch_sizes) > len(chosen):
        raise ConfigError(
            f"{len(chosen)} prompts do not fill a batch of {max(plan.batch_sizes)}: use a larger --num-prompts, more"
            " files, or smaller --batch-sizes"
        )
    tokenizer = load_tokenizer(models.target)
    check_drafts(models.target_config(), models.speculative(), tokenizer, is_target_ours=False)
    prompts = [prompt_token_ids(tokenizer, prompt) for prompt in chosen]
    plain_answers: list[VllmAnswer] = []
    rows: list[VllmRow] = []
    with ExitStack() as staying:
        advance("starting the hub", None)
        star = start_star(models, staying)
        for length in (0, *plan.lengths):
            with ExitStack() as leaving:
                rival = start_rival(models, length, leaving)
                methods = star.methods(rival)
                _await_servers(methods, advance)
                if rival.name == PLAIN:
                    advance("answers of plain decoding", 1)
                    plain_answers = asyncio.run(_plain_answers(rival, prompts, plan))
                for block in _blocks(methods, plan.batch_sizes):
                    asyncio.run(_run_in_turns(block, prompts, plan, advance))
                    rows += [
                        _row(method, block.rival, size, plain_answers)
                        for method in block.methods
                        for size in method.rates
                    ]
                version = star.server.status().version
            yield _report(models, plan, chosen, version, rows)


def _report(
    models: VllmModels, plan: VllmPlan, prompts: Sequence[Prompt], vllm_version: str, rows: Sequence[VllmRow]
) -> Report:
    notes = {
        "num_prompts": len(prompts),
        "prompts_sha256": hash_prompts(prompts),
        "max_tokens": plan.max_tokens,
        "num_repeats": plan.num_repeats,
        "dtype": models.dtype,
        "draft_quantization_at_the_hub": models.quantization,
        "threads_a_process": models.num_threads,
        "vllm_version": vllm_version,
        "vllm_options": list(models.vllm_options),
        "rivals": list(dict.fromkeys(row.rival for row in rows)),
    }
    provenance = collect_provenance(models.names)
    return Report(provenance, list(rows), ratios_of(rows), notes)


def _await_servers(methods: Sequence[VllmMethod], advance: Advance) -> None:
    advance("starting servers", len(methods))
    for method in methods:
        method.server.wait_ready()
        advance(method.name, None)


async def _plain_answers(plain: VllmMethod, prompts: Sequence[Sequence[int]], plan: VllmPlan) -> list[VllmAnswer]:
    """Answers at batch size 1, with the most likely tokens of each position."""
    await plain.warm_up(prompts[0])
    timed = await ask_all(plain.server.url, prompts, num_tokens=plan.max_tokens, batch_size=1, with_likeliest=True)
    return timed.answers


@dataclass(frozen=True, slots=True)
class _Block:
    """Methods that answer in turns, again and again."""

    rival: str  # as VllmRow
    methods: Sequence[VllmMethod]
    batch_sizes: Sequence[int]


def _blocks(methods: Sequence[VllmMethod], batch_sizes: Sequence[int]) -> list[_Block]:
    """First those whose hub works, then each whose hub is stopped, beside their rival.

    A server forgets what it learnt about a hub that was lost. So a hub is not stopped between turns in which it works.
    """
    rival, *_ = methods
    working = [method for method in methods if method.stopped is None]
    stopped = [method for method in methods if method.stopped is not None]
    return [
        _Block(rival.title, working, batch_sizes),
        *(_Block(f"{rival.title}, {method.name}", [rival, method], batch_sizes[:1]) for method in stopped),
    ]


async def _run_in_turns(block: _Block, prompts: Sequence[Sequence[int]], plan: VllmPlan, advance: Advance) -> None:
    advance("warming up", len(block.methods))
    for method in block.methods:
        method.forget()
        await method.warm_up(prompts[0])
        advance(method.name, None)
    turns = [(method, size) for size in block.batch_sizes for method in block.methods]
    advance("answering", plan.num_repeats * len(turns))
    for _ in range(plan.num_repeats):
        for method, size in turns:
            await method.warm_up(prompts[0])  # after a pause, drafts of the hub take a moment to arrive
            await method.run(prompts, plan.max_tokens, size)
            advance(f"{method.name}, batch {size}", None)


def _row(method: VllmMethod, rival: str, batch_size: int, plain_answers: Sequence[VllmAnswer]) -> VllmRow:
    parted = partings(plain_answers, method.answers[batch_size])
    return VllmRow(
        method=method.name,
        num_draft_tokens=method.num_draft_tokens,
        rival=rival,
        batch_size=batch_size,
        tokens_per_s=Spread.of(method.rates[batch_size]),
        acceptance_length=round(median(method.acceptance_lengths[batch_size]), 2),
        num_answers=len(plain_answers),
        num_identical=len(plain_answers) - len(parted),
        num_near_ties=sum(each.is_near_tie for each in parted),
        gaps=[each.gap for each in parted],
    )


def ratios_of(rows: Sequence[VllmRow]) -> dict[str, float]:
    """Speed ratios for each batch size, each between two servers that took turns.

    The hub's drafts over vLLM's own draft model at its best length, over plain decoding, and the cost of a silent
    hub.
    """
    ratios = {}
    for size in dict.fromkeys(row.batch_size for row in rows):
        for key, one, other in (
            (f"hub_vs_draft_model_b{size}", HUB, DRAFT_MODEL),
            (f"hub_vs_plain_b{size}", HUB, PLAIN),
            (f"silent_hub_vs_plain_b{size}", SILENT_HUB, PLAIN),
        ):
            found = [
                ours.tokens_per_s.median / theirs.tokens_per_s.median
                for theirs in rows
                for ours in rows
                if (theirs.method, ours.method) == (other, one)
                and theirs.rival == ours.rival
                and theirs.batch_size == ours.batch_size == size
            ]
            if found:
                ratios[key] = round(min(found), 3)  # against the best of the lengths
    return ratios


def mistakes_of(report: Report) -> list[str]:
    """A sentence if an answer differs where no near-tie explains it."""
    is_unexplained = any(row.num_identical + row.num_near_ties < row.num_answers for row in report.rows)
    return ["answers differ where no near-tie explains it"] if is_unexplained else []


COLUMNS = (
    Column("method", "method"),
    Column("draft tokens", "num_draft_tokens"),
    Column("batch", "batch_size"),
    Column("tokens/s", "tokens_per_s", ".2f"),
    Column("acceptance length", "acceptance_length", ".2f"),
    Column("identical", share("num_identical", "num_answers")),
    Column("near-ties", "num_near_ties"),
)


def blocks(report: Report) -> list[Block]:
    """What people read: one row for each way of drafting at each batch size."""
    return [Table("", COLUMNS, report.rows, section="rival"), *ratio_lines(report.ratios)]
