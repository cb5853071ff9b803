"""From timed runs to the rows and ratios that are published."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from starspec.bench.pair.methods import Method, Timed, key
from starspec.harness.decode import Answer
from starspec.harness.report import Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class PairRow:
    """One method."""

    method: str
    batch_size: int
    num_draft_tokens: int | None
    num_tokens: int  # emitted in one repeat
    tokens_per_s: Spread  # over the repeats; prompt processing included
    seconds: float  # median of the repeats
    acceptance_length: float | None
    acceptance_rate: float | None
    block_efficiency: float | None
    num_same_as_plain: int  # answers that are those of our plain decoding
    num_answers: int


def ratios_of(rows: Sequence[PairRow]) -> dict[str, float]:
    """Medians against medians, of one request at a time. Nothing about assisted generation where there was none."""
    rate = {row.method: row.tokens_per_s.median for row in rows if row.batch_size == 1}
    ratios = {
        "speculative_vs_plain": round(rate["speculative"] / rate["plain"], 3),
        "plain_vs_generate": round(rate["plain"] / rate["transformers generate"], 3),
    }
    assisted = next((value for name, value in rate.items() if name.startswith("transformers assisted")), None)
    if assisted is not None:
        ratios["speculative_vs_assisted"] = round(rate["speculative"] / assisted, 3)
    return ratios


def plain_answers(methods: Sequence[Method], timed: dict[str, Timed]) -> dict[str, Answer]:
    """Our plain answers, in batches only where they were not decoded alone."""
    batched = [key(each) for each in methods if each.name == "plain" and each.batch_size > 1]
    return {name: answer for plain in (*batched, "plain") for name, answer in timed[plain].answers.items()}


def pair_row(method: Method, timed: Timed, plain: dict[str, Answer]) -> PairRow:
    acceptance = timed.acceptance if method.is_ours and method.num_draft_tokens else None
    return PairRow(
        method=method.name,
        batch_size=method.batch_size,
        num_draft_tokens=method.num_draft_tokens,
        num_tokens=timed.num_tokens,
        tokens_per_s=Spread.of([round(rate, 3) for rate in timed.tokens_per_s]),
        seconds=round(median(timed.seconds), 3),
        acceptance_length=round(acceptance.acceptance_length, 3) if acceptance else None,
        acceptance_rate=round(acceptance.acceptance_rate, 3) if acceptance else None,
        block_efficiency=round(acceptance.block_efficiency, 3) if acceptance else None,
        num_same_as_plain=sum(answer.token_ids == plain[name].token_ids for name, answer in timed.answers.items()),
        num_answers=len(timed.answers),
    )
