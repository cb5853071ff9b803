"""The comparison of decoding with and without drafts, for `verify` and the certificate."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from starspec.config import BatchingConfig, BatchingMethod, Dtype
from starspec.engine.drafts import Drafts, NoDrafts
from starspec.engine.sequence import TargetSequence
from starspec.harness.compare import NEAR_TIE, Comparison, Divergence, compare, divergence_lines, is_near_tie
from starspec.harness.cut_target import CutTarget
from starspec.harness.datasets import Prompt
from starspec.harness.decode import Job, JobResult
from starspec.harness.known_prompts import KnownPrompts
from starspec.harness.provenance import hash_token_ids
from starspec.harness.table import Block, Column, Table, share
from starspec.harness.workbench import Recorded, Sampling, Workbench
from starspec.sampling.spec import SamplingSpec
from starspec.stats import AcceptanceStats
from starspec.windows.batching import PARTS

CHUNK = 24  # requests whose logits are held at once
SEEDS_APART = 100_000  # between the seeds of two ways of sampling

Reference = Callable[[Sequence[Job]], list[JobResult]]
Advance = Callable[[str], None]


def no_progress(_: str) -> None:
    """For callers that show no progress."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One way of decoding that must not change any token."""

    name: str
    batch_size: int
    drafts: Drafts = field(default_factory=NoDrafts)
    batching: BatchingConfig = field(default_factory=BatchingConfig)
    target: CutTarget | None = None  # the target in stages; None = it is not cut

    @property
    def num_stages(self) -> int:
        return 1 if self.target is None else self.target.num_stages


@dataclass(frozen=True, slots=True, kw_only=True)
class LosslessRow:
    """How one contender compares with the reference under one sampling setting."""

    sampling: str
    contender: str
    batching: BatchingMethod
    num_stages: int
    batch_size: int
    sequences_per_round: float  # mean number of sequences in a round
    num_prompts: int
    num_identical: int
    exact_match_rate: float
    partial_match_rate: float
    num_explained: int  # answers that differ from a near-tie on
    num_tokens: int
    num_compared_tokens: int  # before any divergence
    # of those, decided by logits bitwise equal to those of plain decoding at batch size 1
    num_bitwise_tokens: int | None
    num_near_ties: int  # reference tokens that a few rounding steps could change
    first_divergence: Divergence | None
    acceptance_length: float
    acceptance_rate: float
    seconds: float
    output_sha256: str

    @property
    def is_identical(self) -> bool:
        return self.num_identical == self.num_prompts

    @property
    def num_unexplained(self) -> int:
        """Answers that differ without a near-tie at the divergence."""
        return self.num_prompts - self.num_identical - self.num_explained

    @property
    def is_bitwise(self) -> bool:
        return self.num_bitwise_tokens == self.num_compared_tokens


def promises_tokens(layout: BatchingMethod, dtype: Dtype) -> bool:
    """Whether a batching method promises the tokens of plain decoding at batch size 1, where kernels keep the bits.

    Ragged batches do. In float32 all methods do.
    """
    return not PARTS[layout].is_padded or dtype == "float32"


def mistake_sentences(broken: str, unexplained: str) -> list[str]:
    """A sentence for each kind of difference that must not occur.

    Args:
        broken: who differs although that is promised not to happen; "" = nobody.
        unexplained: who differs without a near-tie; "" = nobody.
    """
    whys = (
        (broken, "although these settings promise that none does"),
        (unexplained, f"at tokens that are not a {NEAR_TIE}"),
    )
    return [f"{who} {why}" for who, why in whys if who]


class PlainAnswers:
    """The answers of plain decoding, for a drafter that mixes true and random tokens."""

    def __init__(self) -> None:
        self._answers: dict[tuple[tuple[int, ...], SamplingKey], list[int]] = {}

    def learn(self, jobs: Sequence[Job], answers: Sequence[JobResult]) -> None:
        for job, answer in zip(jobs, answers, strict=True):
            self._answers[job.prompt_token_ids, _key(job.sampling)] = answer.token_ids

    def __call__(self, sequence: TargetSequence) -> Sequence[int]:
        prompt = tuple(sequence.spec.prompt_token_ids)
        return self._answers.get((prompt, _key(sequence.sampling)), [])[sequence.num_output_tokens :]


SamplingKey = tuple[float, float, int]


def _key(sampling: SamplingSpec) -> SamplingKey:
    return sampling.temperature, sampling.top_p, sampling.seed


@dataclass(slots=True)
class _Tally:
    """Sums for one row."""

    comparison: Comparison | None = None
    acceptance: AcceptanceStats = field(default_factory=AcceptanceStats)
    num_rounds: int = 0
    num_sequence_rounds: int = 0
    num_near_ties: int = 0
    seconds: float = 0.0
    outputs: list[list[int]] = field(default_factory=list)


def compare_with_plain(
    bench: Workbench,
    prompts: Sequence[Prompt],
    samplings: Sequence[Sampling],
    contenders: Sequence[Contender],
    max_tokens: int,
    *,
    reference: Reference | None = None,
    plain_answers: PlainAnswers | None = None,
    prefills_once: bool = False,
    known: KnownPrompts | None = None,
    num_sharing: int = 1,
    first_turn: int = 0,
    advance: Advance = no_progress,
) -> list[LosslessRow]:
    """Decode every prompt plainly at batch size 1, then with every contender, and compare tokens and logits.

    Requests leave and join in the middle of a contender's batches: prompts have different lengths, one request joins in
    each step, and requests have different limits (`max_tokens`, or up to a third less).

    Args:
        reference: gives the tokens that must be matched. None = our own plain decoding at batch size 1. With a
            reference, plain decoding is a row as well.
        plain_answers: gets every reference answer before the contenders run.
        prefills_once: each cache layout prefills a prompt once; other contenders copy the keys and values.
        known: prompts of earlier comparisons that need not be prefilled again; those of this one are added. With it
            `prefills_once` is not needed.
        num_sharing: size of the groups of neighbouring contenders that share the prompts. Each chunk goes to one
            contender of a group, the next chunk to the next one; groups start at different ones. Not with a reference.
        first_turn: which contender of a group gets the first chunk; different shards pass different numbers.
        advance: called with the name of the contender after each chunk.
    Returns: one row for each sampling setting and contender that had prompts, in this order.
    """
    assert reference is None or num_sharing == 1
    rows = [*([] if reference is None else [Contender("off", 1)]), *contenders]
    comparing = _Comparing(bench, rows, reference, plain_answers, num_sharing, advance)
    for chunk, start in enumerate(range(0, len(prompts), CHUNK)):
        of_chunk = known or (KnownPrompts() if prefills_once else None)
        for number, sampling in enumerate(samplings):
            first_seed = number * SEEDS_APART + start
            jobs = _jobs(bench, prompts[start : start + CHUNK], sampling, max_tokens, first_seed)
            comparing.add(number, jobs, first_turn + chunk, of_chunk)
    tallies = comparing.tallies
    return [_row(samplings[number].name, rows[index], tallies[number, index]) for number, index in sorted(tallies)]


@dataclass(slots=True)
class _Comparing:
    """Rows in the making. The fields are the arguments of `compare_with_plain`."""

    bench: Workbench
    rows: Sequence[Contender]  # the first is plain decoding if there is a reference
    reference: Reference | None
    plain_answers: PlainAnswers | None
    num_sharing: int
    advance: Advance
    tallies: dict[tuple[int, int], _Tally] = field(default_factory=dict)  # (sampling, row) -> its tally

    def add(self, number: int, jobs: Sequence[Job], turn: int, known: KnownPrompts | None) -> None:
        """Decode a chunk of requests plainly, then with every contender whose turn it is."""
        started_s = time.perf_counter()
        plain = self.bench.record(jobs, known=known)
        plain_s = time.perf_counter() - started_s
        self.advance("plain, alone")
        expected = plain.answers if self.reference is None else self.reference(jobs)
        num_near_ties = _count_near_ties(jobs, plain)
        if self.plain_answers is not None:
            self.plain_answers.learn(jobs, expected)
        for index, contender in enumerate(self.rows):
            if not _has_turn(index, turn, self.num_sharing):
                continue
            is_plain = self.reference is not None and index == 0
            found, seconds = (plain, plain_s) if is_plain else self._record(contender, jobs, known)
            tally = self.tallies.setdefault((number, index), _Tally())
            tally.seconds += seconds
            _add(tally, compare(jobs, expected, found.answers, plain.logits, found.logits), found, num_near_ties)
            self.advance(contender.name)

    def _record(self, contender: Contender, jobs: Sequence[Job], known: KnownPrompts | None) -> tuple[Recorded, float]:
        """Returns: answers, and the seconds that they took."""
        started_s = time.perf_counter()
        if contender.target is None:
            found = self.bench.record(jobs, contender.drafts, contender.batch_size, contender.batching, known)
        else:
            found = self.bench.record_in_stages(contender.target, jobs, contender.drafts, contender.batch_size)
        return found, time.perf_counter() - started_s


def _has_turn(index: int, turn: int, num_sharing: int) -> bool:
    """Whether it is the contender's turn within its group. Each group starts one contender later than the last."""
    return (index + index // num_sharing + turn) % num_sharing == 0


def num_turns(num_prompts: int, num_samplings: int, num_rows: int) -> int:
    """How often `compare_with_plain` calls `advance`. Rows that share prompts count as one."""
    return -(-num_prompts // CHUNK) * num_samplings * (num_rows + 1)


def _jobs(
    bench: Workbench, prompts: Sequence[Prompt], sampling: Sampling, max_tokens: int, first_seed: int
) -> list[Job]:
    """The requests. Three limits take turns: `max_tokens`, five sixths of it, and two thirds of it."""
    jobs = bench.jobs(prompts, sampling, max_tokens, first_seed)
    return [
        Job(job.name, job.prompt_token_ids, job.sampling, max(1, max_tokens - index % 3 * max_tokens // 6))
        for index, job in enumerate(jobs)
    ]


def _count_near_ties(jobs: Sequence[Job], plain: Recorded) -> int:
    assert plain.logits is not None
    return sum(
        is_near_tie(logits, job.sampling, len(job.prompt_token_ids) + index)
        for job, decisions in zip(jobs, plain.logits, strict=True)
        for index, logits in enumerate(decisions)
    )


def _add(tally: _Tally, comparison: Comparison, found: Recorded, num_near_ties: int) -> None:
    tally.comparison = comparison if tally.comparison is None else tally.comparison.plus(comparison)
    tally.acceptance.add(found.acceptance)
    tally.num_rounds += found.rounds.num_rounds
    tally.num_sequence_rounds += found.rounds.num_sequence_rounds
    tally.num_near_ties += num_near_ties
    tally.outputs += [answer.token_ids for answer in found.answers]


def _row(sampling: str, contender: Contender, tally: _Tally) -> LosslessRow:
    comparison = tally.comparison
    assert comparison is not None
    return LosslessRow(
        sampling=sampling,
        contender=contender.name,
        batching=contender.batching.method,
        num_stages=contender.num_stages,
        batch_size=contender.batch_size,
        sequences_per_round=round(tally.num_sequence_rounds / max(1, tally.num_rounds), 2),
        num_prompts=comparison.num_answers,
        num_identical=comparison.num_identical,
        exact_match_rate=comparison.exact_match_rate,
        partial_match_rate=round(comparison.partial_match_rate, 4),
        num_explained=comparison.num_explained,
        num_tokens=comparison.num_tokens,
        num_compared_tokens=comparison.num_compared,
        num_bitwise_tokens=comparison.num_bitwise,
        num_near_ties=tally.num_near_ties,
        first_divergence=comparison.first,
        acceptance_length=round(tally.acceptance.acceptance_length, 3),
        acceptance_rate=round(tally.acceptance.acceptance_rate, 3),
        seconds=round(tally.seconds, 2),
        output_sha256=hash_token_ids(tally.outputs),
    )


def _same_bits(row: LosslessRow) -> str | None:
    return None if row.num_bitwise_tokens is None else f"{row.num_bitwise_tokens}/{row.num_compared_tokens}"


COLUMNS = (
    Column("sampling", "sampling"),
    Column("drafts", "contender", is_text=True),
    Column("batching", "batching", is_text=True),
    Column("stages", "num_stages"),
    Column("batch", "batch_size"),
    Column("seq/round", "sequences_per_round", ".1f"),
    Column("identical", share("num_identical", "num_prompts")),
    Column("partial match", "partial_match_rate", ".1%"),
    Column("tokens", "num_tokens"),
    Column("same bits", _same_bits),
    Column("near-ties", "num_near_ties"),
    Column("acceptance length", "acceptance_length", ".2f"),
)


def lossless_blocks(rows: Sequence[LosslessRow], title: str) -> list[Block]:
    """A table, and lines for each row whose tokens differ."""
    return [Table(title, COLUMNS, rows), *(line for row in rows for line in _divergence_lines(row))]


def _divergence_lines(row: LosslessRow) -> list[str]:
    batching = "" if row.batching == "ragged" else f"{row.batching}, "
    stages = "" if row.num_stages == 1 else f"{row.num_stages} stages, "
    who = f"{row.sampling}, {row.contender}, {batching}{stages}batch {row.batch_size}"
    return divergence_lines(who, row.first_divergence, row.num_prompts - row.num_identical, row.num_explained)
