"""The rows of `bench batch`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TypedDict

from starspec.bench.batch.methods import MethodRun
from starspec.bench.batch.plan import BatchMethod
from starspec.harness.compare import Divergence, first_difference, share_before
from starspec.harness.decode import JobResult
from starspec.harness.provenance import hash_token_ids
from starspec.harness.report import Spread, percentile
from starspec.stats import AcceptanceStats, BatchStats

PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """Time from arrival to last token of requests that arrived at random.

    As the paper's table 3, but of single turns: there whole conversations arrive.
    """

    num_requests: int  # of all repeats; percentiles are over all of them
    arrivals_per_s: float
    tokens_per_s: float
    p50_s: float
    p90_s: float
    p99_s: float
    longest_wait_rounds: int  # largest number of successive rounds that passed over a sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRow:
    """One method at one batch size. Times of rounds exclude prefill, and are sums over the repeats."""

    method: str
    batch_size: int
    num_rows: int  # cache rows; for ExSpec its window
    num_repeats: int
    num_answers: int  # of one repeat
    num_tokens: int  # of the last repeat; so are verify calls, acceptance length and hash
    num_compared: int  # answers of all repeats, with arrivals and without
    exact_match: float  # share of answers equal to those of plain decoding at batch size 1
    partial_match: float  # share of tokens before the first divergence, averaged over answers
    num_different: int
    num_explained: int  # answers that differ from a near-tie on
    largest_rounding: float | None  # largest `Divergence.rounding`, in logits; None = no divergence
    first_divergence: Divergence | None
    tokens_per_s: Spread  # with prefill, as if each run had done it; the spread is that of rounds
    batch_scaling: float | None  # tokens/s of rounds over the method's own at batch 1; None = not measured
    ms_per_token: Spread  # of rounds
    ms_per_sequence_round: float  # independent of acceptance; in bfloat16 methods may emit different texts
    ms_per_token_without_realign: Spread
    prefill_s: float  # prefill by the target, in the first run of a cache layout; not part of rounds
    draft_prefill_s: float  # prefill by the draft and first proposals, before the first run of a batch size
    num_verify_calls: int
    sequences_per_round: float  # mean number of sequences in a round
    ms_per_verify: float
    ms_draft: float  # these are per round
    ms_realign_pad: float
    ms_realign_kv: float
    ms_copy: float
    ms_schedule: float
    draft_share: float  # these are of the rounds' time
    verify_share: float
    overhead_share: float  # realignment, copies and scheduling
    realign_share: float
    grouping_rate: float  # rounds that needed no realignment
    grouping_wait_s: float  # mean time that a ready request was passed over
    longest_wait_rounds: int
    acceptance_length: float | None
    completion: Completion | None
    peak_mib: float | None  # resident set without known prompts; includes memory of earlier methods
    output_sha256: str


def batch_row(
    method: BatchMethod,
    runs: Sequence[MethodRun],
    alone: Sequence[MethodRun],
    reference: Sequence[JobResult],
    answered: Sequence[Sequence[JobResult]],
    differing: Sequence[Divergence],
    completion: Completion | None,
) -> BatchRow:
    """Args:
    runs: the method's repeats.
    alone: its repeats at batch size 1, if they were run.
    reference: of plain decoding at batch size 1.
    answered: the answers of each repeat, with and without arrivals.
    differing: the divergence of each answer that differs from its reference.
    """
    answers = runs[-1].served.answers
    num_compared = sum(map(len, answered))
    total = sum_of([run.stats for run in runs])
    roundings = [each.rounding for each in differing if each.rounding is not None]
    ms_per_token = Spread.of([_ms_per_token(run, run.stats.total_s) for run in runs])
    ms_alone = Spread.of([_ms_per_token(run, run.stats.total_s) for run in alone]) if alone else None
    return BatchRow(
        method=method.name,
        batch_size=method.batch_size,
        num_rows=method.num_rows,
        num_repeats=len(runs),
        num_answers=len(answers),
        num_tokens=runs[-1].served.num_tokens,
        num_compared=num_compared,
        exact_match=1.0 - len(differing) / num_compared,
        partial_match=round(sum(partial_match(reference, each) for each in answered) / len(answered), 4),
        num_different=len(differing),
        num_explained=sum(each.is_near_tie is True for each in differing),
        largest_rounding=max(roundings, default=None),
        first_divergence=differing[0] if differing else None,
        tokens_per_s=Spread.of([round(run.tokens_per_s, 3) for run in runs]),
        batch_scaling=ratio_of(ms_alone, ms_per_token) if ms_alone else None,
        ms_per_token=ms_per_token,
        ms_per_sequence_round=_ms(total.total_s / max(1, total.num_sequence_rounds)),
        ms_per_token_without_realign=Spread.of(
            [_ms_per_token(run, run.stats.total_s - run.stats.realign_s) for run in runs]
        ),
        prefill_s=round(sum(run.prefill_s for run in runs) / len(runs), 4),
        draft_prefill_s=round(sum(run.draft_prefill_s for run in runs) / len(runs), 4),
        num_verify_calls=runs[-1].stats.num_rounds,
        **_round_times(total),
        grouping_rate=round(total.grouping_rate, 4),
        grouping_wait_s=round(total.grouping_wait_s / len(answers) / len(runs), 4),
        longest_wait_rounds=max(run.stats.longest_wait_rounds for run in runs),
        acceptance_length=None if method.is_plain else _acceptance_length(answers),
        completion=completion,
        peak_mib=max((run.peak_mib for run in runs if run.peak_mib is not None), default=None),
        output_sha256=hash_token_ids([each.token_ids for each in answers]),
    )


class _RoundTimes(TypedDict):
    """The fields of a row that say what its rounds spent their time on."""

    sequences_per_round: float
    ms_per_verify: float
    ms_draft: float
    ms_realign_pad: float
    ms_realign_kv: float
    ms_copy: float
    ms_schedule: float
    draft_share: float
    verify_share: float
    overhead_share: float
    realign_share: float


def _round_times(total: BatchStats) -> _RoundTimes:
    """Args: total: of all repeats."""
    rounds, seconds = max(1, total.num_rounds), total.total_s or 1.0
    return _RoundTimes(
        sequences_per_round=round(total.num_sequence_rounds / rounds, 2),
        ms_per_verify=_ms(total.verify_s / rounds),
        ms_draft=_ms(total.draft_s / rounds),
        ms_realign_pad=_ms(total.realign_pad_s / rounds),
        ms_realign_kv=_ms(total.realign_kv_s / rounds),
        ms_copy=_ms(total.copy_s / rounds),
        ms_schedule=_ms(total.schedule_s / rounds),
        draft_share=round(total.draft_s / seconds, 4),
        verify_share=round(total.verify_s / seconds, 4),
        overhead_share=round(total.overhead_s / seconds, 4),
        realign_share=round(total.realign_s / seconds, 4),
    )


def _acceptance_length(answers: Sequence[JobResult]) -> float:
    acceptance = AcceptanceStats()
    for answer in answers:
        acceptance.add(answer.stats.acceptance)
    return round(acceptance.acceptance_length, 3)


def completion_of(runs: Sequence[MethodRun], arrivals_per_s: float) -> Completion:
    """Args: runs: with arrivals, at least one."""
    waits_s = [each for run in runs for each in run.served.completion_s]
    p50, p90, p99 = (percentile(waits_s, each) for each in PERCENTILES)
    return Completion(
        num_requests=len(waits_s),
        arrivals_per_s=round(arrivals_per_s, 4),
        tokens_per_s=round(sum(run.served.num_tokens for run in runs) / sum(run.served.seconds for run in runs), 3),
        p50_s=round(p50, 3),
        p90_s=round(p90, 3),
        p99_s=round(p99, 3),
        longest_wait_rounds=max(run.stats.longest_wait_rounds for run in runs),
    )


def partial_match(expected: Sequence[JobResult], found: Sequence[JobResult]) -> float:
    """Share of a reference's tokens before the first divergence, averaged over the answers (section 4.1)."""
    pairs = [(one.token_ids, other.token_ids) for one, other in zip(expected, found, strict=True)]
    return sum(share_before(first_difference(*pair), pair[0]) for pair in pairs) / len(pairs)


def sum_of(several: Sequence[BatchStats]) -> BatchStats:
    """The sum; the longest wait is the maximum."""
    total = BatchStats()
    for each in several:
        for field in fields(BatchStats):
            setattr(total, field.name, getattr(total, field.name) + getattr(each, field.name))
    total.longest_wait_rounds = max((each.longest_wait_rounds for each in several), default=0)
    return total


def _ms_per_token(run: MethodRun, seconds: float) -> float:
    """0 if there are no tokens."""
    return round(1e3 * seconds / run.served.num_tokens, 4) if run.served.num_tokens else 0.0


def _ms(seconds: float) -> float:
    return round(1e3 * seconds, 4)


def ratio_of(one: Spread, other: Spread) -> float:
    return round(one.median / other.median, 3) if other.median else 0.0
