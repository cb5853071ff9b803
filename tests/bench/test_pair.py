"""The benchmark of a pair: its bookkeeping, and once through with a tiny model."""

from pathlib import Path

import pytest

from starspec.bench.pair.measure import PairPlan, measure_pair
from starspec.bench.pair.methods import Method, Work, num_turns, run_in_turns
from starspec.bench.pair.rows import measure_steps, pair_row, plain_answers, ratios_of
from starspec.config import ModelConfig
from starspec.harness.datasets import own_prompts
from starspec.harness.decode import Job, JobResult
from starspec.harness.model_pair import ModelPair
from starspec.models.loading.load import load_runner
from starspec.sampling.spec import SamplingSpec

JOBS = [Job(name, (1, 2), SamplingSpec(temperature=0.0), 4) for name in ("a", "b")]


def method(name: str, batch_size: int, log: list[tuple[str, int]], *, token_id: int = 1) -> Method:
    def answer(jobs):
        log.append((name, len(jobs)))
        return [JobResult([token_id] * job.max_tokens) for job in jobs]

    return Method(name=name, batch_size=batch_size, is_ours=True, num_draft_tokens=None, answer=answer)


def test_methods_of_single_requests_take_turns_request_by_request() -> None:
    log: list[tuple[str, int]] = []
    turns: list[str] = []
    methods = [method("plain", 1, log), method("plain", 4, log), method("other", 1, log)]
    timed = run_in_turns(methods, Work(JOBS, JOBS * 2), 2, turns.append)
    once = [("plain", 1), ("other", 1), ("plain", 1), ("other", 1), ("plain", 4)]
    assert log == once * 2
    assert len(turns) == num_turns(methods, len(JOBS), 2)
    assert timed.keys() == {"plain", "other", "plain, batch 4"}
    assert [len(each.seconds) for each in timed.values()] == [2, 2, 2]
    assert timed["plain"].num_tokens == 8


def test_rows_say_how_many_answers_are_those_of_plain_decoding() -> None:
    log: list[tuple[str, int]] = []
    methods = [method("plain", 1, log), method("other", 1, log, token_id=2), method("plain", 4, log)]
    timed = run_in_turns(methods, Work(JOBS[:1], JOBS), 1, lambda _: None)
    plain = plain_answers(methods, timed)
    same = [pair_row(each, timed[name], plain).num_same_as_plain for each, name in zip(methods, timed, strict=True)]
    assert plain.keys() == {"a", "b"}
    assert same == [1, 0, 2]


@pytest.fixture(scope="module")
def report(tiny_folder: Path):
    plan = PairPlan(
        num_prompts=2,
        num_batch_prompts=4,
        max_tokens=8,
        num_repeats=1,
        num_trial_prompts=1,
        lengths=(2, 3),
    )
    stages: list[tuple[str, int | None]] = []
    folder = str(tiny_folder)
    models = ModelPair(
        target=folder, draft=folder, quantization="int4", dtype="bfloat16", num_threads=1, max_model_len=256
    )
    return measure_pair(models, [own_prompts()], plan, lambda what, total: stages.append((what, total)))


def test_the_limit_is_one_that_no_step_of_the_run_has_passed(tiny_folder: Path, monkeypatch) -> None:
    """A plain sum in a slow minute of the memory says less than linears in a fast one."""
    monkeypatch.setattr("starspec.bench.pair.rows.read_gigabytes_per_s", lambda: 1e-6)
    runner = load_runner(ModelConfig(model=str(tiny_folder), num_rows=1, max_model_len=256))
    rows = measure_steps(runner, (1, 4))
    assert {row.read_gigabytes_per_s for row in rows} == {max(row.weight_gigabytes_per_s for row in rows)}
    assert min(row.step_over_limit for row in rows) >= 1


def test_all_that_is_to_be_compared_is_measured_in_one_run(report) -> None:
    names = [(row.method, row.batch_size) for row in report.rows]
    tried = report.tokens_per_s_by_assistance
    assert tried.keys() == {"heuristic", "constant 3", "constant 5"}
    assert names == [
        ("transformers generate", 1),
        (f"transformers assisted, {max(tried, key=tried.get)}", 1),
        ("plain", 1),
        ("speculative", 1),
        ("speculative, int8 draft", 1),
        ("speculative, unquantized draft", 1),
        ("speculative, n-gram", 1),
        ("plain", 4),
        ("speculative", 4),
        ("plain", 8),
        ("speculative", 8),
    ]
    assert all(row.tokens_per_s.median > 0 for row in report.rows)
    assert report.best_num_draft_tokens in report.tokens_per_s_by_length.keys() == {2, 3}
    assert [row.num_tokens for row in report.steps] == [1, report.best_num_draft_tokens + 1]
    assert all(0.0 <= row.other_share < 1.0 and row.step_over_limit > 0 for row in report.steps)


def test_ratios_are_those_of_the_rows(report) -> None:
    rate = {row.method: row.tokens_per_s.median for row in report.rows if row.batch_size == 1}
    assert report.ratios == ratios_of(report.rows)
    assert report.ratios.keys() == {"speculative_vs_plain", "plain_vs_generate", "speculative_vs_assisted"}
    assert report.ratios["speculative_vs_plain"] == pytest.approx(rate["speculative"] / rate["plain"], abs=1e-3)
    assisted = next(rate[name] for name in rate if name.startswith("transformers assisted"))
    assert report.ratios["speculative_vs_assisted"] == pytest.approx(rate["speculative"] / assisted, abs=1e-3)


def test_a_head_is_measured_without_what_transformers_cannot_do_with_it(headed: tuple[str, str]) -> None:
    target, head = headed
    plan = PairPlan(
        num_prompts=1,
        num_batch_prompts=2,
        batch_sizes=(2,),
        max_tokens=6,
        num_repeats=1,
        num_trial_prompts=1,
        lengths=(2,),
    )
    models = ModelPair(
        target=target, draft=head, quantization="none", dtype="float32", num_threads=1, max_model_len=256
    )
    report = measure_pair(models, [own_prompts()], plan, lambda _what, _total: None)
    assert report.outputs_identical
    assert report.tokens_per_s_by_assistance == {}
    assert report.ratios.keys() == {"speculative_vs_plain", "plain_vs_generate"}
    assert not any("assisted" in row.method for row in report.rows)
    assert {row.acceptance_rate for row in report.rows if row.method == "speculative"} != {0.0}
