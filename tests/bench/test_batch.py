"""`bench batch`: the definitions of its figures, and one small run of everything."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from starspec import LLM, SamplingParams
from starspec.bench.batch import measure, methods
from starspec.bench.batch.conversations import conversation_jobs
from starspec.bench.batch.measure import BatchPlan, measure_batch, of_context, of_one_length
from starspec.bench.batch.methods import MethodRun, run_method
from starspec.bench.batch.plan import METHODS, BatchMethod
from starspec.bench.batch.report import draw, ratios_of
from starspec.bench.batch.rows import batch_row, completion_of, partial_match, sum_of
from starspec.bench.batch.serving import Served, poisson_arrivals
from starspec.config import BatchingConfig, ModelConfig
from starspec.engine.drafts import NoDrafts
from starspec.engine.engine import TargetEngine
from starspec.errors import ConfigError
from starspec.harness.compare import divergences
from starspec.harness.datasets import Prompt, own_prompts
from starspec.harness.decode import Job, JobResult, decode, make_engine
from starspec.harness.known_prompts import KnownPrompts
from starspec.harness.model_pair import ModelPair
from starspec.harness.report import percentile, write_report
from starspec.harness.workbench import GREEDY, Workbench
from starspec.models.loading.tokenizer import prompt_ids_of_chat
from starspec.models.padded import PaddedRunner
from starspec.sampling.spec import SamplingSpec
from starspec.stats import BatchStats

PLAN = BatchPlan(
    methods=METHODS,
    batch_sizes=(1, 3),
    num_prompts=5,
    max_tokens=6,
    num_draft_tokens=2,
    num_repeats=1,
    max_prompt_tokens=60,
    load=0.9,
)


def jobs_of(*lengths: int) -> list[Job]:
    return [
        Job(f"{number}", tuple(range(100 * number, 100 * number + length)), SamplingSpec(temperature=0), 4)
        for number, length in enumerate(lengths)
    ]


def models_of(folder: Path) -> ModelPair:
    return ModelPair(target=str(folder), draft=str(folder), quantization="none", dtype="float32", num_threads=1)


@pytest.fixture(scope="module")
def report(tiny_folder: Path):
    turns: list[tuple[str, int | None]] = []
    report = measure_batch(models_of(tiny_folder), own_prompts(), PLAN, lambda what, num: turns.append((what, num)))
    begun = next(num for what, num in turns if what == "decoding")
    assert begun == len([what for what, _ in turns if what not in ("loading", "decoding")])
    return report


def test_every_method_is_a_row_at_every_batch_size_and_all_are_exact(report) -> None:
    assert [(row.method, row.batch_size) for row in report.rows] == [
        (name, size) for size in (1, 3) for name in METHODS
    ]
    assert all(row.exact_match == row.partial_match == 1.0 for row in report.rows)
    assert len({row.output_sha256 for row in report.rows}) == 1
    assert not report.mistakes


def test_no_tokens_are_no_throughput(report) -> None:
    served, rounds = Served([JobResult()], [0.0], 1e-9), BatchStats(num_rounds=1, verify_s=1.0)
    nothing = MethodRun(served, rounds, 0.0, 0.0, 0.0, None, 0.0)
    assert nothing.tokens_per_s == 0
    assert completion_of([nothing], 1.0).tokens_per_s == 0
    method = BatchMethod.named("ragged", 1)
    row = batch_row(method, [nothing], [nothing], [JobResult()], [[JobResult()]], [], None)
    assert (row.tokens_per_s.median, row.ms_per_token.median, row.batch_scaling) == (0, 0, 0)
    assert ratios_of([row, replace(row, method="plain")]) == {"ragged_vs_plain": {"1": 0}}


def test_an_interrupt_leaves_the_repeats_that_were_done(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_method, num_runs = measure.run_method, 0

    def impatient(bench, method, drafts, jobs, num_draft_tokens, arrivals_s=None, known=None):
        nonlocal num_runs
        num_runs += len(jobs) == PLAN.num_prompts and jobs[0].max_tokens == PLAN.max_tokens
        if num_runs == 5:  # plainly for reference, both methods, and one of them again
            raise KeyboardInterrupt
        return run_method(bench, method, drafts, jobs, num_draft_tokens, arrivals_s, known)

    monkeypatch.setattr(measure, "run_method", impatient)
    plan = replace(PLAN, methods=("ragged", "plain"), batch_sizes=(3,), num_repeats=3)
    report = measure_batch(models_of(tiny_folder), own_prompts(), plan, lambda what, num: None)
    assert not report.is_whole
    assert [(row.method, row.num_repeats, row.completion) for row in report.rows] == [
        ("ragged", 1, None),
        ("plain", 2, None),
    ]
    num_runs = 4
    with pytest.raises(KeyboardInterrupt):
        measure_batch(models_of(tiny_folder), own_prompts(), plan, lambda what, num: None)


def test_an_interrupt_in_a_round_leaves_rows_for_telling_why_answers_differ(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_method, num_runs = measure.run_method, 0

    def interrupted(bench, method, drafts, jobs, num_draft_tokens, arrivals_s=None, known=None):
        nonlocal num_runs
        num_runs += len(jobs) == PLAN.num_prompts and jobs[0].max_tokens == PLAN.max_tokens
        if num_runs == 3:
            step = TargetEngine.step
            num_steps = iter(range(8))  # prompts, and some rounds

            def impatient(engine):
                if next(num_steps, None) is None:
                    raise KeyboardInterrupt
                return step(engine)

            monkeypatch.setattr(TargetEngine, "step", impatient)
        run = run_method(bench, method, drafts, jobs, num_draft_tokens, arrivals_s, known)
        if method.name == "eqspec":
            run.served.answers[0].token_ids[0] += 1
        return run

    monkeypatch.setattr(measure, "run_method", interrupted)
    plan = replace(PLAN, methods=("eqspec", "ragged"), batch_sizes=(3,), num_repeats=2)
    report = measure_batch(models_of(tiny_folder), own_prompts(), plan, lambda what, num: None)
    assert [(row.method, row.num_different) for row in report.rows] == [("eqspec", 1)]
    assert not report.is_whole


def test_prompts_that_are_left_out_are_counted(report, tiny_folder: Path) -> None:
    assert report.is_whole
    assert (report.max_prompt_tokens, report.context, report.load, report.num_left_out) == (60, None, 0.9, 0)
    long = Prompt("long", "", "many words " * 60)
    plan = replace(PLAN, methods=("plain",), batch_sizes=(1,), load=0.0, num_prompts=2)
    models, prompts = models_of(tiny_folder), [*own_prompts(), long]
    assert measure_batch(models, prompts, plan, lambda what, num: None).num_left_out == 1
    assert measure_batch(models, prompts, replace(plan, context=64), lambda what, num: None).num_left_out == 0


def test_the_peak_of_no_method_counts_the_prompts_that_the_measurement_keeps(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: dict[str, int] = {}
    names = iter(("plain", "plain-fast"))
    monkeypatch.setattr(methods, "peak_mib", lambda without=0: kept.setdefault(next(names), without))
    bench = Workbench(ModelConfig(model=str(tiny_folder), dtype="float32", num_rows=1, max_model_len=128))
    known, jobs = KnownPrompts(), bench.jobs(own_prompts()[:2], GREEDY, 2)
    for name in ("plain", "plain-fast"):
        run_method(bench, BatchMethod.named(name, 1), NoDrafts(), jobs, 1, known=known)
    assert kept["plain"] == kept["plain-fast"] == known.num_bytes > 0


def test_every_answer_of_every_run_is_compared(report) -> None:
    assert {(row.num_answers, row.num_compared) for row in report.rows} == {(5, 10)}  # one repeat, and arrivals


def test_a_wrong_answer_to_a_request_that_arrived_late_is_not_overlooked(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_method = measure.run_method

    def corrupting(bench, method, drafts, jobs, num_draft_tokens, arrivals_s=None, known=None):
        run = run_method(bench, method, drafts, jobs, num_draft_tokens, arrivals_s, known)
        if arrivals_s is not None:
            run.served.answers[0].token_ids[0] += 1
        return run

    monkeypatch.setattr(measure, "run_method", corrupting)
    plan = replace(PLAN, methods=("eqspec",), batch_sizes=(3,))
    report = measure_batch(models_of(tiny_folder), own_prompts(), plan, lambda what, num: None)
    (row,) = report.rows
    assert (row.num_different, row.exact_match) == (1, 0.9)
    promised, unexplained = report.mistakes  # in float32 padded batches promise the same tokens, too
    assert promised == "eqspec at batch 3: answers differ although these settings promise that none does"
    assert unexplained.startswith("eqspec at batch 3: answers differ at tokens that are not a near-tie: within")


def test_what_batches_held_is_told_and_what_prompts_cost_is_in_no_round(report) -> None:
    for row in report.rows:
        assert row.sequences_per_round == 1.0 if row.batch_size == 1 else 2.0 < row.sequences_per_round <= 3.0
        assert row.prefill_s > 0
        assert (row.draft_prefill_s == pytest.approx(0, abs=1e-3)) == row.method.startswith("plain")


def test_a_batch_for_which_there_are_too_few_prompts_is_told(report) -> None:
    assert report.shortages == ["5 prompts were answered, so that exspec's windows of 12 were never full"]
    short = replace(report, rows=[replace(row, num_answers=2) for row in report.rows])
    assert short.shortages == [
        "2 prompts were answered, so that batches of 3 never held as many sequences",
        "2 prompts were answered, so that exspec's windows of 4 were never full",
    ]


def test_what_rounding_explains_is_no_mistake_where_nothing_is_promised(report) -> None:
    """Padded batches in bfloat16; a difference that it does not explain is one anywhere."""
    row = next(row for row in report.rows if (row.method, row.batch_size) == ("eqspec", 3))
    tied = replace(report, dtype="bfloat16", rows=[replace(row, num_different=1, num_explained=1)])
    assert not tied.mistakes
    assert len(replace(tied, rows=[replace(row, num_different=2, num_explained=1)]).mistakes) == 1
    assert len(replace(tied, rows=[replace(tied.rows[0], method="ragged")]).mistakes) == 1  # promised
    assert not replace(tied, is_promised=False, rows=[replace(tied.rows[0], method="ragged")]).mistakes


def test_requests_arrive_in_every_repeat_at_other_times_that_are_the_same_for_all_methods(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived: list[tuple[str, tuple[float, ...]]] = []
    run_method = measure.run_method

    def noting(bench, method, drafts, jobs, num_draft_tokens, arrivals_s=None, known=None):
        if arrivals_s is not None:
            arrived.append((method.name, tuple(arrivals_s)))
        return run_method(bench, method, drafts, jobs, num_draft_tokens, arrivals_s, known)

    monkeypatch.setattr(measure, "run_method", noting)
    plan = replace(PLAN, methods=("ragged", "eqspec"), batch_sizes=(3,), num_repeats=2)
    report = measure_batch(models_of(tiny_folder), own_prompts(), plan, lambda what, num: None)
    assert [name for name, _ in arrived] == ["ragged", "eqspec", "eqspec", "ragged"]  # in turns
    first, second, third, fourth = (times for _, times in arrived)
    assert first == second != third == fourth
    for row in report.rows:
        assert row.completion is not None
        assert (row.completion.num_requests, row.num_compared) == (10, 20)


def test_ratios_have_their_names_by_batch_size(report) -> None:
    names = {"ragged_vs_eqspec", "ragged_vs_eqspec_without_realign", "ragged_vs_exspec", "ragged_vs_plain"}
    assert names <= report.ratios.keys()
    assert all(by_size.keys() == {"1", "3"} for by_size in report.ratios.values())


def test_shares_add_up_and_ragged_has_no_overhead_of_batching(report) -> None:
    for row in report.rows:
        assert row.draft_share + row.verify_share + row.overhead_share == pytest.approx(1, abs=2e-3)
        assert row.batch_scaling is not None
        assert row.completion is not None
        assert row.completion.num_requests == 5
        assert row.completion.p50_s <= row.completion.p90_s <= row.completion.p99_s
        if row.method == "ragged":
            assert (row.realign_share, row.ms_copy, row.grouping_wait_s, row.grouping_rate) == (0, 0, 0, 1)


def test_the_file_and_the_picture_can_be_written(report, tmp_path: Path) -> None:
    write_report(report, tmp_path / "batch.json")
    content = msgspec.json.decode((tmp_path / "batch.json").read_bytes())
    assert content["rows"][0]["exact_match"] == 1.0
    assert content["provenance"]["models"].keys() == {"target", "draft"}
    draw(report.rows, tmp_path / "batch.png")
    assert (tmp_path / "batch.png").read_bytes().startswith(b"\x89PNG")


def test_a_ratio_needs_ragged_at_the_same_batch_size(report) -> None:
    assert ratios_of([row for row in report.rows if row.method != "ragged"]) == {}


def test_a_divergence_is_found_with_its_gap(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Workbench(ModelConfig(model=str(tiny_folder), dtype="float32", num_rows=1, max_model_len=128))
    jobs = bench.jobs(own_prompts()[:2], GREEDY, 4)
    expected = bench.record(jobs).answers
    changed = list(expected[1].token_ids)
    changed[2] = (changed[2] + 1) % 128
    runner = KnownPrompts().prefilling_once(bench.runner)
    (found,) = divergences(runner, jobs, expected, [expected[0], JobResult(changed)])
    assert (found.position, found.expected, found.found) == (2, expected[1].token_ids[2], changed[2])
    assert found.logit_gap > 0
    assert bench.runner.cache.num_free_rows == 1
    widths, forward = [], bench.runner.forward
    monkeypatch.setattr(bench.runner, "forward", lambda each, _: widths.append(each[0].num_new) or forward(each))
    assert divergences(runner, jobs, expected, [expected[0], JobResult(changed)]) == [found]
    assert widths == [1]  # another run that parts there: its prompt is remembered


def test_partial_match_is_the_share_before_the_first_divergence() -> None:
    expected = [JobResult([1, 2, 3, 4]), JobResult([5, 6])]
    assert partial_match(expected, expected) == 1
    assert partial_match(expected, [JobResult([1, 9, 3, 4]), JobResult([5, 6])]) == (0.25 + 1) / 2
    assert partial_match(expected, [JobResult([1, 2]), JobResult([])]) == (0.5 + 0) / 2


def test_percentiles_are_of_the_nearest_rank() -> None:
    values = [float(value) for value in range(1, 101)]
    assert [percentile(values, each) for each in (50, 90, 99)] == [50, 90, 99]
    assert percentile([3.0], 99) == 3.0


def test_poisson_arrivals_begin_at_once_and_keep_their_rate() -> None:
    arrivals = poisson_arrivals(4000, 2.0, seed=1)
    assert arrivals[0] == 0
    assert arrivals == sorted(arrivals)
    assert arrivals[-1] == pytest.approx(2000, rel=0.1)
    assert arrivals == poisson_arrivals(4000, 2.0, seed=1)


def test_contexts_are_as_long_as_asked_and_differ() -> None:
    everybody = jobs_of(5, 9, 30, 2, 14, 50, 20)
    chosen = everybody[:5]
    jobs = of_context(chosen, everybody, 40)
    lengths = [len(job.prompt_token_ids) for job in jobs]
    assert all(35 < length <= 40 for length in lengths)
    assert len(set(lengths)) > 1
    assert len({job.prompt_token_ids[:4] for job in jobs}) >= 4, "all have the same others before them"
    for job, own in zip(jobs, chosen, strict=True):
        num_before = len(job.prompt_token_ids) - len(own.prompt_token_ids)
        before = job.prompt_token_ids[:num_before]
        assert job.prompt_token_ids[num_before:] == own.prompt_token_ids
        assert not set(before) & set(own.prompt_token_ids), "its own prompt would come twice"
        assert len(set(before)) == len(before), "others come again though there are enough"


def test_contexts_repeat_others_where_there_are_too_few_and_a_prompt_alone_stays_as_it_is() -> None:
    jobs = jobs_of(5, 9)
    one, other = of_context(jobs, jobs, 40)
    assert (one.prompt_token_ids[-5:], set(one.prompt_token_ids[:-5])) == (
        jobs[0].prompt_token_ids,
        set(jobs[1].prompt_token_ids),
    )
    assert set(other.prompt_token_ids[:-9]) == set(jobs[0].prompt_token_ids)
    assert of_context(jobs[:1], jobs[:1], 40) == jobs[:1]


def test_one_length_keeps_the_ends_of_prompts_that_are_long_enough() -> None:
    jobs = of_one_length(jobs_of(5, 9, 30, 2, 14))
    assert [len(job.prompt_token_ids) for job in jobs] == [9, 9, 9]
    assert [job.name for job in jobs] == ["1", "2", "4"]
    assert len(of_one_length(jobs_of(7))) == 1


def test_sums_keep_the_longest_wait() -> None:
    total = sum_of([BatchStats(num_rounds=2, verify_s=1.0, longest_wait_rounds=5), BatchStats(longest_wait_rounds=3)])
    assert total == BatchStats(num_rounds=2, verify_s=1.0, longest_wait_rounds=5)


def test_unless_said_otherwise_there_are_prompts_to_fill_every_window() -> None:
    assert BatchPlan(batch_sizes=(1, 16)).num_asked == 64
    assert BatchPlan(batch_sizes=(1, 16), exspec=BatchingConfig(method="exspec", window=40)).num_asked == 40
    assert BatchPlan(batch_sizes=(1, 16), methods=("ragged", "plain")).num_asked == 32
    assert BatchPlan(batch_sizes=(1, 16), num_prompts=5).num_asked == 5


def test_exspec_without_a_bound_is_a_method_beside_exspec_with_it() -> None:
    plan = BatchPlan(exspec=BatchingConfig(method="exspec", window=8, max_passed_over=5))
    assert plan.named("exspec-unbounded", 2).batching == BatchingConfig(method="exspec", window=8, max_passed_over=None)
    assert plan.named("exspec", 2).batching.max_passed_over == 5


def test_conversations_are_asked_turn_by_turn_with_plain_answers_between(tiny_folder: Path) -> None:
    bench = Workbench(ModelConfig(model=str(tiny_folder), dtype="float32", num_rows=2, max_model_len=128))
    tokenizer = bench.tokenizer
    prompts = [
        Prompt("one", "plain", "w10 w11", ("w12",)),
        Prompt("two", "chat", "w20", ("w21", "w22")),
        Prompt("three", "chat", "w30"),
    ]
    jobs = {job.name: job for job in conversation_jobs(bench, prompts, GREEDY, 4, 60)}
    assert jobs.keys() == {"one/1", "one/2", "two/1", "two/2", "two/3", "three/1"}
    first = [jobs["one/1"], jobs["two/1"]]
    answers = decode(make_engine(bench.runner, tokenizer, NoDrafts()), first, batch_size=1)
    one, two = (tokenizer.decode(answer.token_ids, skip_special_tokens=True) for answer in answers)
    assert list(jobs["one/2"].prompt_token_ids) == tokenizer.encode(f"w10 w11{one}\nw12")
    chat = [
        {"role": "user", "content": "w20"},
        {"role": "assistant", "content": two},
        {"role": "user", "content": "w21"},
    ]
    assert list(jobs["two/2"].prompt_token_ids) == prompt_ids_of_chat(tokenizer, chat)
    longest = len(jobs["two/2"].prompt_token_ids)
    kept = {job.name for job in conversation_jobs(bench, prompts, GREEDY, 4, longest)}
    assert kept == jobs.keys() - {"two/3"}, "which would be longer"


def test_a_method_of_exspec_never_has_fixed_batches() -> None:
    plan = BatchPlan(admission="fixed", exspec=BatchingConfig(method="exspec", window=5))
    assert plan.named("eqspec", 2).batching == BatchingConfig(method="eqspec", admission="fixed")
    assert plan.named("exspec", 2).batching == BatchingConfig(method="exspec", window=5)
    assert plan.named("plain-fast", 2).batching.method == "ragged"


@pytest.mark.parametrize(
    "wrong",
    [
        {"load": 1.0},
        {"batch_sizes": (0,)},
        {"batch_sizes": ()},
        {"methods": ()},
        {"num_repeats": 0},
        {"methods": ("exspec",), "admission": "fixed"},
        {"methods": ("plain", "plain-fast"), "disable_by_batch_size": 2},
        {"methods": ("plain",), "draft_p_min": 0.5},
        {"methods": ("exspec-unbounded",), "admission": "fixed"},
        {"is_multi_turn": True, "context": 64},
    ],
)
def test_a_plan_that_cannot_be_run_is_refused(wrong) -> None:
    with pytest.raises(ConfigError):
        BatchPlan(**wrong)


def test_an_unknown_method_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="one of ragged, eqspec"):
        BatchMethod.named("dsd", 1)


def test_a_window_is_refused_that_one_of_the_batch_sizes_does_not_fit_into() -> None:
    plan = BatchPlan(batch_sizes=(2, 4), exspec=BatchingConfig(method="exspec", window=3))
    with pytest.raises(ConfigError, match="batches of 4 from its window"):
        plan.of_all_sizes()
    assert replace(plan, methods=("ragged", "plain")).of_all_sizes()


PEAKS = """
from starspec.bench.batch.methods import peak_mib, reset_peak

reset_peak()
before = peak_mib()
block = bytearray(64 << 20)
block[:: 1 << 12] = bytes(len(block) >> 12)
with_block = peak_mib()
del block
reset_peak()
print(with_block - before, peak_mib() - before)
"""


def test_the_peak_of_memory_is_of_what_ran_since_the_reset() -> None:
    """In a process of its own: of one that has held large models the system may take pages back at any moment."""
    run = subprocess.run([sys.executable, "-c", PEAKS], capture_output=True, text=True, check=True, timeout=120)
    with_block, after = map(float, run.stdout.split())
    assert with_block > 60
    assert after < 30


def test_in_small_it_is_the_same_work_with_fewer_and_shorter_requests() -> None:
    plan = BatchPlan(methods=("ragged", "exspec"), num_draft_tokens=3, temperature=0.7, disable_by_batch_size=2)
    small = plan.in_small()
    assert (small.methods, small.num_draft_tokens, small.temperature) == (("ragged", "exspec"), 3, 0.7)
    assert small.disable_by_batch_size == 2
    assert small.batch_sizes == (1, 4)
    assert replace(plan, batch_sizes=(2, 16), num_prompts=1).in_small().batch_sizes == (2,)
    assert replace(plan, batch_sizes=(4, 16), num_prompts=1).in_small().num_prompts == 1
    assert small.num_prompts * small.max_tokens * small.num_repeats < 100
    assert (small.max_prompt_tokens, replace(plan, max_prompt_tokens=64).in_small().max_prompt_tokens) == (192, 64)


def test_above_the_bound_batches_draft_nothing_and_answer_the_same(tiny_folder: Path) -> None:
    plan = replace(PLAN, methods=("ragged", "plain"), load=0.0, num_prompts=4, disable_by_batch_size=1)
    report = measure_batch(models_of(tiny_folder), own_prompts(), plan, lambda what, num: None)
    calls = {(row.method, row.batch_size): row.num_verify_calls for row in report.rows}
    assert calls["ragged", 1] <= calls["plain", 1] / 2  # a draft that is the target is always right
    assert calls["ragged", 3] >= calls["plain", 3] - 5  # the last answer goes on alone, with drafts
    assert all(row.exact_match == 1.0 for row in report.rows)


def test_a_draft_that_is_never_sure_enough_ends_behind_its_first_guess(tiny_folder: Path) -> None:
    plan = replace(PLAN, methods=("ragged", "eqspec"), load=0.0, num_prompts=4, draft_p_min=1.0)
    report = measure_batch(models_of(tiny_folder), own_prompts(), plan, lambda what, num: None)
    assert report.draft_p_min == 1.0
    for row in report.rows:
        assert row.acceptance_length is not None
        assert 1 < row.acceptance_length <= 2, row.method  # K is 2, and a draft that is the target is always right
        assert row.exact_match == 1.0


def test_llm_batches_as_it_is_told(tiny_folder: Path) -> None:
    prompts = [[5, 6, 7], [8, 9], [10] * 12, [11, 12, 13]]
    params = SamplingParams(temperature=0.0, max_tokens=10)
    options = {"dtype": "float32", "max_model_len": 64, "speculative_config": {"method": "ngram"}}
    expected = LLM(str(tiny_folder), **options).generate(prompts, params)
    for batching in ("eqspec", BatchingConfig(method="exspec", window=3, max_passed_over=2)):
        with LLM(str(tiny_folder), batching=batching, max_num_seqs=2, **options) as llm:
            assert isinstance(llm.engine.verifier.runner, PaddedRunner)
            found = llm.generate(prompts, params)
        assert [each.outputs[0].token_ids for each in found] == [each.outputs[0].token_ids for each in expected]
