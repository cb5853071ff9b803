"""The comparison behind `verify` and the certificate finds what it should, and nothing else."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from stages import saved
from starspec import LLM, SamplingParams
from starspec.bench import certify as certificates
from starspec.bench.certify import Shard, Subjects, certify, count_turns, short_prompts, try_part
from starspec.bench.claims import BATCH, BATCH_PAIR, BITS, EXACT, HEAD_BITS, HEAD_EXACT, PAIR, SAMPLED_PART, STAGES
from starspec.bench.lossless import CHUNK, Contender, LosslessRow, PlainAnswers, compare_with_plain, num_turns
from starspec.bench.random_drafts import RandomDrafts
from starspec.bench.verify import VerifyReport, verify_pair
from starspec.config import BATCHINGS, FIXED_LENGTH, BatchingConfig, BatchingMethod, ModelConfig, SpeculativeConfig
from starspec.errors import ConfigError
from starspec.harness.datasets import Prompt, own_prompts
from starspec.harness.decode import JobResult
from starspec.harness.provenance import collect_provenance
from starspec.harness.workbench import GREEDY, SAMPLED, Workbench
from starspec.models.packed import PackedRunner
from starspec.models.runner import ForwardOutput, Segment

PROMPTS = own_prompts()[:10]


@pytest.fixture(scope="module")
def bench() -> Workbench:
    return Workbench(ModelConfig(model="synthetic:vocab=128,step_ms=0", max_model_len=256, num_rows=8))


@pytest.fixture
def short_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every part of a certificate: in less time."""
    for part in ("EXACT", "SAMPLED_PART", "BITS", "PAIR", "BATCH", "STAGES", "HEAD_EXACT", "HEAD_BITS"):
        monkeypatch.setattr(certificates, part, replace(getattr(certificates, part), max_tokens=6))


class Corrupting:
    """A runner that changes one logit of rows that are not alone in their forward."""

    def __init__(self, runner, change: float) -> None:
        self.info, self.cache = runner.info, runner.cache
        self.numerics_report = runner.numerics_report
        self._runner, self._change = runner, change

    def forward(self, segments, feature_layers=()):
        logits = self._runner.forward(segments).logits.clone()
        if len(segments) > 1 and len(logits):
            logits[:, 7] += self._change
        return ForwardOutput(logits)


def test_every_contender_is_a_row_for_each_way_of_sampling(bench: Workbench) -> None:
    turns: list[str] = []
    contenders = [Contender("off", 4), Contender("liar", 8, RandomDrafts(128, 4, seed=1))]
    rows = compare_with_plain(bench, PROMPTS, [GREEDY, SAMPLED[1]], contenders, 9, advance=turns.append)
    assert [(row.sampling, row.contender, row.batch_size) for row in rows] == [
        ("greedy", "off", 4),
        ("greedy", "liar", 8),
        ("T=0.7, top-p 0.9", "off", 4),
        ("T=0.7, top-p 0.9", "liar", 8),
    ]
    assert all(row.is_identical and row.is_bitwise for row in rows)
    assert all(row.num_prompts == 10 and row.exact_match_rate == 1.0 for row in rows)
    assert rows[0].output_sha256 == rows[1].output_sha256
    assert len(turns) == num_turns(10, 2, 2)


def test_contenders_that_share_prompts_answer_each_of_them_once(bench: Workbench) -> None:
    prompts = [replace(PROMPTS[index % 10], name=str(index)) for index in range(5 * CHUNK)]
    groups = [[Contender(f"{group}{place}", size) for place, size in enumerate((1, 4, 8))] for group in "ab"]
    turns: list[str] = []
    contenders = [each for group in groups for each in group]
    rows = compare_with_plain(bench, prompts, [GREEDY, SAMPLED[0]], contenders, 3, num_sharing=3, advance=turns.append)
    assert len(turns) == num_turns(len(prompts), 2, 2)
    for sampling in ("greedy", SAMPLED[0].name):
        found = {row.contender: row.num_prompts for row in rows if row.sampling == sampling}
        assert [found[each.name] // CHUNK for each in contenders] == [2, 1, 2, 1, 2, 2]
        assert [each.num_identical for each in rows] == [each.num_prompts for each in rows]


def test_whose_turn_the_first_chunk_is_can_be_said(bench: Workbench) -> None:
    contenders = [Contender(f"{place}", size) for place, size in enumerate((1, 4, 8))]
    tried = [
        [
            row.contender
            for row in compare_with_plain(bench, PROMPTS, [GREEDY], contenders, 3, num_sharing=3, first_turn=turn)
        ]
        for turn in range(4)
    ]
    assert tried == [["0"], ["2"], ["1"], ["0"]]


def test_answers_of_a_run_have_different_lengths(bench: Workbench) -> None:
    (row,) = compare_with_plain(bench, PROMPTS, [GREEDY], [Contender("off", 8)], 12)
    assert row.num_tokens < 12 * len(PROMPTS)


def test_a_batch_that_changes_bits_but_no_token_is_seen(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "runner", Corrupting(bench.runner, 1e-6))
    (row,) = compare_with_plain(bench, PROMPTS, [GREEDY], [Contender("off", 4)], 9)
    assert row.is_identical
    assert not row.is_bitwise
    assert 0 < row.num_bitwise_tokens < row.num_compared_tokens


def test_a_batch_that_changes_tokens_is_seen_with_its_gap(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "runner", Corrupting(bench.runner, 1e3))
    (row,) = compare_with_plain(bench, PROMPTS, [GREEDY], [Contender("off", 4)], 9)
    assert row.num_identical < row.num_prompts
    assert row.first_divergence.found == 7
    assert row.first_divergence.logit_gap > 0


def test_an_oracle_that_disagrees_with_plain_decoding_is_seen(bench: Workbench) -> None:
    def oracle(jobs) -> list[JobResult]:
        return [JobResult([5] * job.max_tokens) for job in jobs]

    rows = compare_with_plain(bench, PROMPTS, [GREEDY], [Contender("off", 4)], 6, reference=oracle)
    assert [(row.contender, row.batch_size) for row in rows] == [("off", 1), ("off", 4)]
    assert all(row.num_identical == 0 and row.first_divergence.expected == 5 for row in rows)


def test_a_half_liar_learns_what_plain_decoding_said(bench: Workbench) -> None:
    plain_answers = PlainAnswers()
    half_liar = Contender("half-liar", 4, RandomDrafts(128, 4, seed=3, true_tokens=plain_answers))
    (row,) = compare_with_plain(bench, PROMPTS, [GREEDY], [half_liar], 24, plain_answers=plain_answers)
    assert row.is_identical
    assert 2.0 < row.acceptance_length < 4.0


def test_near_ties_are_counted_in_the_reference(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    class Flat(Corrupting):
        def forward(self, segments, feature_layers=()):
            return ForwardOutput(torch.zeros_like(self._runner.forward(segments).logits))

    monkeypatch.setattr(bench, "runner", Flat(bench.runner, 0.0))
    (row,) = compare_with_plain(bench, PROMPTS, [GREEDY], [Contender("off", 1)], 4)
    assert row.num_near_ties == row.num_tokens > 0


def test_verify_keeps_a_promise_with_a_real_model_in_bfloat16(tiny_folder: Path) -> None:
    target = ModelConfig(model=str(tiny_folder), num_rows=4, max_model_len=256)
    draft = SpeculativeConfig(model=str(tiny_folder), quantization="int8", max_model_len=256, length=FIXED_LENGTH)
    report = verify_pair(target, draft, PROMPTS, 8, 4)
    assert [(row.contender, row.batch_size) for row in report.rows[:3]] == [("draft", 1), ("off", 4), ("draft", 4)]
    assert not report.mistakes
    assert report.is_identical >= report.is_promised
    assert report.provenance.models.keys() == {"target", "draft"}


def test_verify_tries_every_way_of_batching_also_at_batch_1(tiny_folder: Path) -> None:
    target = ModelConfig(model=str(tiny_folder), dtype="float32", num_rows=4, max_model_len=256)
    batchings = [BatchingConfig(method="ragged"), BatchingConfig(method="eqspec")]
    report = verify_pair(
        target, SpeculativeConfig(method="ngram", length=FIXED_LENGTH), PROMPTS[:2], 4, 1, batchings=batchings
    )
    assert [(row.batching, row.batch_size) for row in report.rows[:2]] == [("ragged", 1), ("eqspec", 1)]
    assert report.promised == report.rows


@pytest.mark.parametrize(("dtype", "num_promised"), [("float32", 2), ("bfloat16", 1)])
def test_padded_batches_promise_the_same_tokens_in_float32_alone(dtype: str, num_promised: int) -> None:
    row = LosslessRow(
        sampling="greedy",
        contender="draft",
        batching="eqspec",
        num_stages=1,
        batch_size=4,
        sequences_per_round=2.0,
        num_prompts=2,
        num_identical=1,
        exact_match_rate=0.5,
        partial_match_rate=0.5,
        num_explained=1,
        num_tokens=8,
        num_compared_tokens=4,
        num_bitwise_tokens=4,
        num_near_ties=0,
        first_divergence=None,
        acceptance_length=1.0,
        acceptance_rate=0.0,
        seconds=1.0,
        output_sha256="",
    )
    rows = [replace(row, batching="ragged", num_identical=2, num_explained=0), row]
    report = VerifyReport(
        provenance=collect_provenance(),
        rows=rows,
        numerics="",
        dtype=dtype,
        is_promised=True,
        is_identical=False,
        num_left_out=0,
        prompts_sha256="",
    )
    assert report.promised == rows[:num_promised]
    broken = ["1 answers differ although these settings promise that none does"]
    assert report.mistakes == (broken if dtype == "float32" else [])
    assert not replace(report, is_promised=False).mistakes
    (sentence,) = replace(report, is_promised=False, rows=[replace(row, num_explained=0)]).mistakes
    assert sentence.startswith("1 answers differ at tokens that are not a near-tie: within 4 rounding steps")


def test_verify_leaves_out_what_does_not_fit_and_says_how_much(tiny_folder: Path) -> None:
    target = ModelConfig(model=str(tiny_folder), num_rows=2, max_model_len=60)
    prompts = [Prompt("short", "continued", "a word"), Prompt("long", "continued", "a word " * 60)]
    report = verify_pair(target, SpeculativeConfig(method="ngram", length=FIXED_LENGTH), prompts, 4, 1)
    assert (report.num_left_out, report.rows[0].num_prompts) == (1, 1)
    with pytest.raises(ConfigError, match="none of the 1 prompts has at most 56 tokens"):
        verify_pair(target, SpeculativeConfig(method="ngram", length=FIXED_LENGTH), prompts[1:], 4, 1)


@pytest.mark.parametrize("max_model_len", [2, 5, 11])
def test_a_context_shorter_than_the_probe_is_measured_too(tiny_folder: Path, max_model_len: int) -> None:
    config = ModelConfig(model=str(tiny_folder), num_rows=3, max_model_len=max_model_len)
    assert Workbench(config).numerics_report


def test_verify_promises_nothing_with_fast_numerics(tiny_folder: Path) -> None:
    target = ModelConfig(model=str(tiny_folder), numerics="fast", num_rows=2, max_model_len=256)
    ngram = SpeculativeConfig(method="ngram", length=FIXED_LENGTH)
    report = verify_pair(target, ngram, PROMPTS[:2], 4, 1)
    assert not report.is_promised
    assert [row.contender for row in report.rows] == ["ngram"] * 3


@pytest.mark.usefixtures("short_answers")
def test_the_certificate_holds_for_a_tiny_model_against_transformers(tiny_folder: Path) -> None:
    names = ("exact", "sampled", "bits", "batch", "pair")
    subjects = Subjects(model=str(tiny_folder), pair=(str(tiny_folder), str(tiny_folder)), part_names=names)
    turns: list[str] = []
    certificate = certify(subjects, [own_prompts()], max_prompts=2, advance=turns.append)
    assert [part.name for part in certificate.parts] == [*names]
    assert {row.batching for row in certificate.parts[3].rows} == {"ragged", "eqspec", "exspec", "rollback"}
    assert all(row.is_identical for part in certificate.parts for row in part.rows)
    assert certificate.holds == all(part.holds for part in certificate.parts)
    assert all(part.holds for part in certificate.parts if part.dtype == "float32")  # bits are the machine's affair
    assert len(turns) == count_turns(subjects, 2)


@pytest.mark.usefixtures("short_answers")
def test_a_model_in_stages_is_certified_against_itself_uncut(tmp_path: Path) -> None:
    """Of 6 prompts, each number of stages answers each, with contenders that take turns."""
    subjects = Subjects(model=str(saved("llama", tmp_path / "tiny")), part_names=("stages",))
    turns: list[str] = []
    certificate = certify(subjects, [own_prompts()], max_prompts=6, advance=turns.append)
    [part] = certificate.parts
    assert part.holds
    assert {row.num_stages for row in part.rows} == {2, 3, 4}
    assert sum(row.num_prompts for row in part.rows) == 6 * 3 * len(STAGES.samplings)
    assert all(row.num_bitwise_tokens is None for row in part.rows)  # the logits are at the stages
    assert len(turns) == count_turns(subjects, 6)


@pytest.mark.parametrize(
    ("change", "needs_same_bits", "holds"),
    [(0.0, True, True), (1e-6, True, False), (1e-6, False, True), (1e3, False, False)],
)
def test_a_certificate_holds_only_with_the_same_tokens_and_where_it_says_so_the_same_bits(
    change: float, needs_same_bits: bool, holds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Corrupted(Workbench):
        def __init__(self, config: ModelConfig) -> None:
            super().__init__(config)
            self.runner = Corrupting(self.runner, change)

    part = replace(
        BITS,
        dtype="float32",
        contenders=(("off", 4),),
        samplings=(GREEDY,),
        max_tokens=9,
        needs_same_bits=needs_same_bits,
    )
    monkeypatch.setattr(certificates, "Workbench", Corrupted)
    monkeypatch.setattr(certificates, "BITS", part)
    model = "synthetic:vocab=128,step_ms=0"
    certificate = certify(Subjects(model=model, part_names=("bits",)), [own_prompts()], max_prompts=4)
    assert (certificate.holds, certificate.parts[0].holds) == (holds, holds)


@pytest.mark.usefixtures("short_answers")
def test_a_head_is_certified_against_transformers_and_for_its_bits(headed: tuple[str, str]) -> None:
    target, head = headed
    subjects = Subjects(model=target, head=head, part_names=("head-exact", "head-bits"))
    turns: list[str] = []
    certificate = certify(subjects, [own_prompts()], max_prompts=2, advance=turns.append)
    assert [(part.name, part.draft) for part in certificate.parts] == [("head-exact", "head"), ("head-bits", "head")]
    assert certificate.provenance.models.keys() == {"model", "head"}
    rows = [row for part in certificate.parts for row in part.rows]
    assert all(row.is_identical for row in rows)
    assert max(row.acceptance_length for row in rows) > 1  # it drafted
    assert len(turns) == count_turns(subjects, 2)


def test_the_full_certificate_is_as_large_as_its_claims_say() -> None:
    assert EXACT.num_prompts >= 200
    assert {size for _, size in EXACT.contenders} >= {1, 4, 8}
    assert {kind for kind, _ in SAMPLED_PART.contenders} >= {"off", "ngram", "draft", "liar"}
    assert {(each.temperature, each.top_p < 1.0) for each in SAMPLED_PART.samplings} == {
        (0.7, False),
        (0.7, True),
        (1.0, False),
        (1.0, True),
    }
    assert {size for _, size in BITS.contenders} >= {*range(1, 9), 12, 16}
    assert BITS.needs_same_bits
    assert PAIR.needs_same_bits
    assert {size for _, size in HEAD_EXACT.contenders} == {size for _, size in HEAD_BITS.contenders} == {1, 4, 8}
    assert {kind for kind, _ in HEAD_BITS.contenders} == {"draft", "tree"}
    assert (HEAD_EXACT.num_prompts, HEAD_BITS.num_prompts) == (200, 200)
    assert HEAD_EXACT.is_against_transformers
    assert HEAD_BITS.needs_same_bits
    assert (BATCH.num_prompts, BATCH.max_tokens, BATCH_PAIR.num_prompts) == (480, 64, 100)
    assert {size for _, size in BATCH.contenders} == {1, 2, 4, 8, 16}
    assert BATCH.num_prompts // len(BATCH.contenders) == 4 * CHUNK  # of each size, in each layout
    assert {each.method for each in BATCH.batchings} == set(BATCHINGS)
    assert {each.temperature for each in BATCH_PAIR.samplings} == {0.0, 0.7}


def test_every_prompt_is_in_exactly_one_shard() -> None:
    shards = [Shard(number, 3).choose(range(8)) for number in (1, 2, 3)]
    assert shards == [[0, 3, 6], [1, 4, 7], [2, 5]]
    assert Shard().choose(range(8)) == [*range(8)]


@pytest.mark.usefixtures("short_answers")
def test_shards_of_a_certificate_try_the_prompts_of_the_whole(tiny_folder: Path) -> None:
    def tried(shard: Shard) -> int:
        subjects = Subjects(model=str(tiny_folder), part_names=("sampled",), shard=shard)
        turns: list[str] = []
        certificate = certify(subjects, [own_prompts()], max_prompts=3, advance=turns.append)
        assert (certificate.holds, certificate.shard) == (True, shard)
        assert len(turns) == count_turns(subjects, 3)
        return certificate.parts[0].num_prompts

    assert (tried(Shard(1, 2)), tried(Shard(2, 2))) == (2, 1)


def test_small_shards_of_a_part_that_takes_turns_try_every_size(tiny_folder: Path) -> None:
    target = ModelConfig(model=str(tiny_folder), dtype="float32", num_rows=BATCH.num_rows, max_model_len=256)
    part = replace(BATCH, max_tokens=2, samplings=(GREEDY,), batchings=BATCH.batchings[:1])
    tried = [
        [row.batch_size for row in try_part(part, target, str(tiny_folder), [own_prompts()], 5, Shard(number, 5)).rows]
        for number in range(1, 6)
    ]
    assert sorted(size for (size,) in tried) == [1, 2, 4, 8, 16]


def test_a_shard_without_prompts_is_refused() -> None:
    target = ModelConfig(model="synthetic:vocab=128,step_ms=0", max_model_len=512, num_rows=2)
    with pytest.raises(ConfigError, match="shard 3/4 of 2 prompts is empty"):
        try_part(SAMPLED_PART, target, "synthetic:vocab=128,step_ms=0,role=draft", [own_prompts()], 2, Shard(3, 4))


def test_a_certificate_about_no_prompts_is_none() -> None:
    long = [Prompt("long", "plain", "bipa " * 4000)]
    target = ModelConfig(model="synthetic:vocab=128,step_ms=0", max_model_len=512, num_rows=2)
    with pytest.raises(ConfigError, match="none of the prompts has at most"):
        try_part(SAMPLED_PART, target, "synthetic:vocab=128,step_ms=0,role=draft", [long], 4)


def test_long_prompts_are_left_out_and_files_give_equal_shares(bench: Workbench) -> None:
    long = [Prompt("long", "plain", "bipa " * 400)]
    short = [Prompt(f"short-{index}", "plain", "bipa " * index) for index in range(1, 9)]
    chosen = short_prompts(bench, [long + short, own_prompts()], 6)
    assert [each.name.partition("/")[0] for each in chosen] == ["short-1", "short-3", "short-6", "own", "own", "own"]


@pytest.mark.parametrize("method", BATCHINGS)
def test_the_draft_prefills_each_token_once_however_a_batch_is_laid_out(
    method: BatchingMethod, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its keys and values are kept between rounds: beyond what was committed, it forwards what it drafts."""
    num_forwarded: Counter[PackedRunner] = Counter()
    forward = PackedRunner.forward

    def counted(self: PackedRunner, segments: Sequence[Segment], *args: Any, **options: Any) -> ForwardOutput:
        num_forwarded[self] += sum(len(each.token_ids) for each in segments)
        return forward(self, segments, *args, **options)

    monkeypatch.setattr(PackedRunner, "forward", counted)
    speculative = {"model": str(tiny_folder), "num_speculative_tokens": 4}
    prompts = [list(range(1, length)) for length in (90, 30, 120, 60, 45, 75)]
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    llm = LLM(
        str(tiny_folder),
        dtype="float32",
        speculative_config=speculative,
        max_model_len=256,
        max_num_seqs=3,
        batching=method,
    )
    with llm:
        results = llm.generate(prompts, params)
    target = getattr(llm.engine.verifier.runner, "_runner", llm.engine.verifier.runner)
    (num_read,) = (num for runner, num in num_forwarded.items() if runner is not target)
    acceptance = [result.metrics.acceptance for result in results]
    num_emitted = sum(each.num_emitted_tokens for each in acceptance)
    num_drafted = sum(each.num_draft_tokens for each in acceptance)
    assert num_emitted == 6 * 40
    assert 0 < num_read <= sum(map(len, prompts)) + num_emitted + num_drafted
