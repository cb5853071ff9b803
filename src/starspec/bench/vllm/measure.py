"""`starspec bench vllm`: a vLLM server with a hub's drafts, beside vLLM's own draft model and plain decoding."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median

from starspec.bench.datasets import Prompt, hash_prompts, prompt_token_ids, spread
from starspec.bench.provenance import collect_provenance
from starspec.bench.report import Report, Spread
from starspec.bench.vllm.answers import VllmAnswer, ask_all, partings
from starspec.bench.vllm.methods import DRAFT_MODEL, HUB, PLAIN, SILENT_HUB, Method, VllmModels, start_methods
from starspec.models.vocabulary import load_tokenizer

Advance = Callable[[str, int | None], None]
"""(what is about to run, turns of this stage if it begins)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmPlan:
    """How much to measure."""

    num_prompts: int = 4  # of each file
    max_tokens: int = 96
    batch_sizes: tuple[int, ...] = (1, 4)
    num_repeats: int = 3
    lengths: tuple[int, ...] = (3, 5)  # draft tokens that vLLM's own draft model is tried with


QUICK = VllmPlan(num_prompts=2, max_tokens=24, num_repeats=1, lengths=(4,))


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmRow:
    """One way of drafting at one batch size."""

    method: str
    num_draft_tokens: int
    batch_size: int
    tokens_per_s: Spread  # prompts included
    acceptance_length: float  # tokens of a verification, by vLLM's counters; the median of the repeats
    num_answers: int  # of the last repeat
    num_identical: int  # to plain decoding at batch 1
    num_near_ties: int  # of those that differ: the two tokens were about as likely
    gaps: list[float | None]  # nats between the two, for each that differs


def measure_vllm(
    models: VllmModels, prompt_files: Sequence[Sequence[Prompt]], plan: VllmPlan, advance: Advance
) -> Report:
    """Start a hub and a server for each method, all of which stay, and let them answer in turns.

    Args:
        prompt_files: `plan.num_prompts` of each are used, evenly spread.
    Raises: PeerLost if a server or the hub does not come up, or a request fails; ConfigError as VllmServer.
    """
    tokenizer = load_tokenizer(models.target)
    chosen = [prompt for file in prompt_files for prompt in spread(file, plan.num_prompts)]
    prompts = [prompt_token_ids(tokenizer, prompt) for prompt in chosen]
    with ExitStack() as stack:
        advance("starting the hub", None)
        methods = start_methods(models, plan.lengths, stack)
        advance("starting servers", len(methods))
        for method in methods:
            method.server.wait_ready()
            advance(method.name, None)
        vllm_version = methods[0].server.reading().version
        truths = asyncio.run(_run_in_turns(methods, prompts, plan, advance))
    rows = [_row(method, size, truths) for method in methods for size in method.rates]
    notes = {
        "num_prompts": len(prompts),
        "prompts_sha256": hash_prompts(chosen),
        "max_tokens": plan.max_tokens,
        "num_repeats": plan.num_repeats,
        "dtype": models.dtype,
        "draft_quantization_at_the_hub": models.quantization,
        "threads_a_process": models.num_threads,
        "vllm_version": vllm_version,
        "vllm_options": list(models.vllm_options),
    }
    return Report(collect_provenance({"target": models.target, "draft": models.draft}), rows, ratios_of(rows), notes)


async def _run_in_turns(
    methods: Sequence[Method], prompts: Sequence[Sequence[int]], plan: VllmPlan, advance: Advance
) -> list[VllmAnswer]:
    """Returns: the plain answers at batch 1, with the likeliest tokens of each position."""
    advance("warming up", len(methods))
    for method in methods:
        await method.warm_up(prompts[0])
        advance(method.name, None)
    plain = methods[0].server
    likeliest = await ask_all(plain.url, prompts, num_tokens=plan.max_tokens, batch_size=1, with_likeliest=True)
    turns = [
        (method, size)
        for size in plan.batch_sizes
        for method in methods
        if size in method.batch_sizes(plan.batch_sizes)
    ]
    advance("answering", plan.num_repeats * len(turns))
    for _ in range(plan.num_repeats):
        for method, size in turns:
            await method.warm_up(prompts[0])  # after a silence, a hub's drafts take a moment
            await method.run(prompts, plan.max_tokens, size)
            advance(f"{method.name}, batch {size}", None)
    return likeliest.answers


def _row(method: Method, batch_size: int, truths: Sequence[VllmAnswer]) -> VllmRow:
    parted = partings(truths, method.answers[batch_size])
    return VllmRow(
        method=method.name,
        num_draft_tokens=method.num_draft_tokens,
        batch_size=batch_size,
        tokens_per_s=Spread.of(method.rates[batch_size]),
        acceptance_length=round(median(method.acceptance_lengths[batch_size]), 2),
        num_answers=len(truths),
        num_identical=len(truths) - len(parted),
        num_near_ties=sum(each.is_near_tie for each in parted),
        gaps=[each.gap for each in parted],
    )


def ratios_of(rows: Sequence[VllmRow]) -> dict[str, float]:
    """The hub's drafts against the best length of vLLM's own draft model, and against none, by batch size; and what
    a hub costs that answers nothing."""
    ratios = {}
    for size in dict.fromkeys(row.batch_size for row in rows):
        of_size = [row for row in rows if row.batch_size == size]

        def rate(name: str, of_size: Sequence[VllmRow] = of_size) -> float:
            return max((row.tokens_per_s.median for row in of_size if row.method == name), default=0.0)

        for key, one, other in (
            (f"hub_vs_draft_model_b{size}", HUB, DRAFT_MODEL),
            (f"hub_vs_plain_b{size}", HUB, PLAIN),
            (f"silent_hub_vs_plain_b{size}", SILENT_HUB, PLAIN),
        ):
            if rate(one) and rate(other):
                ratios[key] = round(rate(one) / rate(other), 3)
    return ratios
