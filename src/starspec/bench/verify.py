"""`starspec verify`: does a pair decode the same tokens as its target alone, on this machine?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from starspec.bench.lossless import (
    Advance,
    Contender,
    LosslessRow,
    compare_with_plain,
    lossless_blocks,
    mistake_sentences,
    no_progress,
    num_turns,
    promises_tokens,
)
from starspec.config import BatchingConfig, Dtype, ModelConfig, SpeculativeConfig
from starspec.engine.drafts import Drafts, NoDrafts
from starspec.errors import ConfigError
from starspec.harness.datasets import Prompt, fitting_prompts, hash_prompts
from starspec.harness.provenance import Provenance, collect_provenance
from starspec.harness.table import Block
from starspec.harness.workbench import GREEDY, Sampling, Workbench
from starspec.speculation.acceptance import RULES

SAMPLINGS = (GREEDY, Sampling(temperature=0.7), Sampling(temperature=1.0, top_p=0.9))


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """The receipt."""

    provenance: Provenance
    rows: list[LosslessRow]
    numerics: str  # what the probe found when the target was loaded
    dtype: Dtype
    is_promised: bool  # whether these settings promise the same tokens; in bfloat16 padded batches never do
    is_identical: bool
    num_left_out: int  # prompts too long for the model's context with an answer behind them
    prompts_sha256: str

    @property
    def promised(self) -> list[LosslessRow]:
        """The rows that must be identical."""
        return [row for row in self.rows if self.is_promised and promises_tokens(row.batching, self.dtype)]

    @property
    def mistakes(self) -> list[str]:
        """A sentence for each kind of difference that must not occur."""
        num_broken = sum(row.num_prompts - row.num_identical for row in self.promised)
        num_unexplained = sum(row.num_unexplained for row in self.rows)
        return mistake_sentences(*(f"{num} answers differ" if num else "" for num in (num_broken, num_unexplained)))


def verify_pair(
    target: ModelConfig,
    speculative: SpeculativeConfig,
    prompts: Sequence[Prompt],
    max_tokens: int,
    batch_size: int,
    advance: Advance = no_progress,
    *,
    batchings: Sequence[BatchingConfig] = (BatchingConfig(),),
) -> VerifyReport:
    """Compare decoding with drafts, alone and in batches, with the same engine's plain decoding.

    Args:
        target: with as many cache rows as the batching methods need.
        batchings: ways of batching that are tried with drafts.
        advance: called with what was run, `num_turns` times.
    Raises: as load_runner and local_drafts; ConfigError if the acceptance rule does not keep the tokens.
    """
    rule = RULES[speculative.rejection_sample_method]
    if rule.promise != "exact":
        raise ConfigError(
            f"rejection_sample_method '{rule.name}' keeps the distribution of answers, not their tokens: "
            "there is nothing to compare"
        )
    bench = Workbench(target, speculative)
    longest = bench.runner.info.max_model_len - max_tokens
    fitting = fitting_prompts(bench.tokenizer, prompts, longest)
    if not fitting:
        raise ConfigError(
            f"none of the {len(prompts)} prompts has at most {longest} tokens, which leaves room for {max_tokens} "
            "more: raise max_model_len, or lower max_tokens"
        )
    name = "draft" if speculative.traits.needs_model else speculative.method
    contenders = _contenders(name, bench.drafts(speculative), batch_size, batchings)
    rows = compare_with_plain(bench, fitting, SAMPLINGS, contenders, max_tokens, advance=advance)
    models = {"target": target.model} | ({"draft": speculative.model} if speculative.model else {})
    return VerifyReport(
        provenance=collect_provenance(models),
        rows=rows,
        numerics=bench.numerics_report,
        dtype=target.dtype,
        is_promised=bench.promises_equality,
        is_identical=all(row.is_identical for row in rows),
        num_left_out=len(prompts) - len(fitting),
        prompts_sha256=hash_prompts(fitting),
    )


def num_turns_of(num_prompts: int, batch_size: int, batchings: Sequence[BatchingConfig]) -> int:
    """How often `verify_pair` advances."""
    return num_turns(num_prompts, len(SAMPLINGS), len(_contenders("", NoDrafts(), batch_size, batchings)))


def _contenders(name: str, drafts: Drafts, batch_size: int, batchings: Sequence[BatchingConfig]) -> list[Contender]:
    """Drafts at batch size 1, drafts in batches of each method, and plain decoding in batches."""
    if batch_size == 1:
        return [Contender(name, 1, drafts, each) for each in batchings]
    return [
        Contender(name, 1, drafts),
        Contender("off", batch_size),
        # with drafts, rounds wait for prompts: otherwise short answers end before the batch is full
        *(Contender(name, batch_size, drafts, replace(each, prompts="first")) for each in batchings),
    ]


def blocks(report: VerifyReport) -> list[Block]:
    """What people read."""
    left_out = [f"prompts left out, too long for the model's context: {report.num_left_out}"]
    return [
        *lossless_blocks(report.rows, "decoding with drafts and in batches, against plain decoding alone"),
        *(left_out if report.num_left_out else []),
        f"numerics: {report.numerics}",
        f"identical: {_share_identical(report.rows)} answers ({_promise(report)})",
    ]


def _promise(report: VerifyReport) -> str:
    if not report.promised:
        return "not promised with these settings"
    if len(report.promised) == len(report.rows):
        return "promised"
    return f"promised of ragged batches alone, there {_share_identical(report.promised)}"


def _share_identical(rows: Sequence[LosslessRow]) -> str:
    return f"{sum(row.num_identical for row in rows)}/{sum(row.num_prompts for row in rows)}"
