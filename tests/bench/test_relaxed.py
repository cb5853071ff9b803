"""The benchmark of relaxed verification: its problems, intervals and sentences, and once through with a tiny pair."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from starspec.bench.relaxed.measure import measure_relaxed, seconds_of_group
from starspec.bench.relaxed.plan import RelaxedPlan
from starspec.bench.relaxed.problems import GSM8K_INSTRUCTION, Task, check_may_run, problems_of, read_problems
from starspec.bench.relaxed.rows import RelaxedReport, RelaxedRow, Runs, draw, findings, ratios_of, relaxed_rows
from starspec.cli import run
from starspec.errors import ConfigError
from starspec.harness.datasets import Prompt
from starspec.harness.decode import Job, JobResult
from starspec.harness.intervals import mean_of, mean_ratio, share_of
from starspec.harness.model_pair import ModelPair
from starspec.harness.report import write_report
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.acceptance import DEFAULT_THRESHOLDS, KeyThresholds
from starspec.stats import AcceptanceStats, RequestStats

TESTS = "def check(f):\n    assert f() == 1\n\ncheck(f)\n"
CODE = {"id": "code", "category": "code", "turns": ["def f():\n    return 1\n# "], "reference": TESTS}
QUESTION = {"id": "sum", "category": "math", "turns": ["What is 1 + 1?"], "reference": "1 + 1 = 2\n#### 2"}
EVERYTHING = KeyThresholds(lambda_1=1e9, lambda_2=1.0, lambda_3=0.0)  # no token is key


def dataset(path: Path, *lines: dict[str, object]) -> Path:
    path.write_text("".join(f"{json.dumps(each)}\n" for each in lines))
    return path


# problems


def test_code_is_continued_and_a_question_is_asked_with_the_form_of_its_answer(tmp_path: Path) -> None:
    problems = read_problems([dataset(tmp_path / "both.jsonl", QUESTION, CODE)], 40)
    assert [(each.task, each.prompt.category) for each in problems] == [
        (Task.HUMAN_EVAL, "plain"),
        (Task.GSM8K, "math"),
    ]
    assert problems[0].prompt.text == CODE["turns"][0]
    assert problems[1].prompt.text == f"What is 1 + 1?\n\n{GSM8K_INSTRUCTION}"
    assert [each.reference for each in problems] == [CODE["reference"], QUESTION["reference"]]


def test_as_many_problems_of_each_task_are_taken_from_all_files(tmp_path: Path) -> None:
    files = [
        dataset(tmp_path / "1.jsonl", *({**CODE, "id": f"code/{at}"} for at in range(9)), QUESTION),
        dataset(tmp_path / "2.jsonl", *({**QUESTION, "id": f"sum/{at}"} for at in range(5))),
    ]
    names = [each.prompt.name for each in read_problems(files, 3)]
    assert names == ["code/0", "code/3", "code/6", "sum", "sum/1", "sum/3"]


@pytest.mark.parametrize("reference", [None, "a solution without a number", ["#### 2"]])
def test_a_prompt_without_a_grade_is_refused_by_name(reference: object, tmp_path: Path) -> None:
    path = dataset(tmp_path / "prompts.jsonl", QUESTION, {**QUESTION, "id": "other", "reference": reference})
    with pytest.raises(ConfigError, match=r"prompts\.jsonl': 'other' has nothing to grade an answer with; .*####"):
        read_problems([path], 40)


def test_without_a_file_there_are_no_problems() -> None:
    with pytest.raises(ConfigError, match="give files of HumanEval or GSM8K with --dataset"):
        read_problems([], 40)


def test_programs_of_a_model_run_only_if_somebody_allows_it() -> None:
    code, question = (problems_of([Prompt("a", "", "x", (), each)], "file") for each in (TESTS, "#### 2"))
    check_may_run(question, may_run_code=False)
    check_may_run(code, may_run_code=True)
    with pytest.raises(ConfigError, match="without isolation: say --run-generated-code"):
        check_may_run([*question, *code], may_run_code=False)


MISTAKES = {
    "no file": ((), "give files of HumanEval or GSM8K"),
    "code that may not run": (("--dataset", "CODE"), "say --run-generated-code to allow it"),
    "no references": (("--dataset", "UNGRADED"), "'line-1' has nothing to grade an answer with"),
    "a tau that is no share": (("--taus", "0,1.5"), "--taus: numbers from 0 to 1, got 0, 1.5"),
    "thresholds that are not there": (
        ("--dataset", "QUESTION", "--relaxed-thresholds", "nowhere.json"),
        "--relaxed-thresholds: 'nowhere.json' cannot be read",
    ),
    "a draft of another vocabulary": (("--dataset", "QUESTION"), "target and draft do not share a vocabulary"),
}


@pytest.mark.parametrize(("words", "sentence"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_said_before_a_model_is_loaded(
    words: tuple[str, ...], sentence: str, tmp_path: Path, monkeypatch, capsys
) -> None:
    def load(_config: object) -> None:
        raise AssertionError("a model is loaded")

    monkeypatch.setattr("starspec.models.synthetic.runner.SyntheticRunner.from_config", load)
    files = {"CODE": CODE, "QUESTION": QUESTION, "UNGRADED": {"turns": ["Hello"]}}
    paths = {name: str(dataset(tmp_path / f"{name}.jsonl", line)) for name, line in files.items()}
    pair = ("--target", "synthetic:", "--draft", "synthetic:role=draft,vocab=64")
    code = run(["bench", "relaxed", *pair, *(paths.get(word, word) for word in words)])
    assert code == 2
    assert sentence in " ".join(capsys.readouterr().err.split())


# plan


def test_the_strict_run_is_always_measured() -> None:
    assert RelaxedPlan(taus=(0.5, 0.2)).all_taus == (0.0, 0.2, 0.5)
    assert RelaxedPlan(taus=(0.2, 0.0, 0.2)).all_taus == (0.0, 0.2)


def test_a_quick_run_has_the_strict_run_and_one_tau() -> None:
    quick = RelaxedPlan().in_small()
    assert (quick.all_taus, quick.num_problems, quick.batch_size) == ((0.0, 0.3), 4, 1)
    assert RelaxedPlan(taus=(0.1, 0.9)).in_small().all_taus == (0.0, 0.9)


def test_the_time_is_estimated_from_prompts_and_from_the_slowest_token() -> None:
    slow = JobResult([1, 2, 3], stats=RequestStats(time_to_first_token_s=2.0, generation_s=0.2))
    short = JobResult([1], stats=RequestStats(time_to_first_token_s=3.0, generation_s=0.0))
    assert seconds_of_group([slow, short], 100) == pytest.approx(3.0 + 100 * 0.1)
    assert seconds_of_group([short], 100) == 3.0


# rows

JOBS = [Job(name, (1, 2), SamplingSpec(temperature=1.0), 4) for name in "abcd"]


def runs(tau: float | None, right: str, seconds: list[float], token_id: int = 7) -> Runs:
    """Four answers of four tokens, in groups of two; each was a draft of three, two accepted, one of them relaxed."""
    stats = RequestStats()
    if tau is not None:
        stats.add_round(3, 2, 3, 1 if tau else 0)
    found = Runs(tau)
    for at, elapsed_s in enumerate(seconds):
        answers = [JobResult([7, 7, token_id, token_id], "length" if at else "stop", stats) for _ in range(2)]
        found.add(answers, elapsed_s)
    found.outcomes = ["passed" if each == "1" else "failed" for each in right]
    return found


def test_a_row_compares_with_tau_0_and_with_plain_decoding_group_by_group() -> None:
    ways = [
        runs(None, "1100", [8.0, 4.0]),
        runs(0.0, "1100", [4.0, 2.0]),
        runs(0.2, "1011", [2.0, 1.0], token_id=8),
        runs(0.3, "0000", [2.0, 2.0]),
    ]
    plain, strict, relaxed, other = relaxed_rows(Task.GSM8K, JOBS, ways)
    assert [row.vs_strict is None for row in (plain, strict, relaxed, other)] == [True, True, False, False]
    assert plain.vs_plain is None
    assert (strict.vs_plain, relaxed.vs_plain) == (mean_ratio([2.0, 2.0]), mean_ratio([4.0, 4.0]))
    assert relaxed.vs_strict == mean_ratio([2.0, 2.0])
    assert other.vs_strict == mean_ratio([2.0, 1.0]).rounded(4)
    assert relaxed.tokens_per_s == pytest.approx(16 / 3, abs=1e-3)
    assert relaxed.accuracy == share_of(3, 4).rounded(4)
    assert (relaxed.num_lost, relaxed.num_gained, other.num_lost) == (1, 2, 2)
    assert (relaxed.outcomes, relaxed.num_cut) == ("1011", 2)
    assert (plain.acceptance_length, relaxed.acceptance_length) == (None, mean_of([3.0] * 4))
    assert (strict.relaxed_share, relaxed.relaxed_share) == (0.0, 0.5)
    assert (other.num_same_as_plain, relaxed.num_same_as_plain, relaxed.partial_match_rate) == (4, 0, 0.5)


def test_ratios_are_named_by_task_and_tau() -> None:
    ways = [runs(tau, "1111", [seconds, seconds]) for tau, seconds in ((None, 8.0), (0.0, 4.0), (0.2, 2.0))]
    assert ratios_of(relaxed_rows(Task.HUMAN_EVAL, JOBS, ways)) == {
        "humaneval_tau_0_speed_vs_plain": 2.0,
        "humaneval_tau_0.2_speed_vs_plain": 4.0,
        "humaneval_tau_0.2_speed_vs_strict": 2.0,
        "humaneval_tau_0.2_acceptance_length_vs_strict": 1.0,
    }


def rows_of(right: tuple[int, ...], speeds: tuple[list[float], ...], num: int = 40) -> list[RelaxedRow]:
    """Rows of a task at tau 0, 0.1, ..., with so many right answers of `num` and these ratios to tau 0."""
    (row,) = relaxed_rows(Task.GSM8K, JOBS, [runs(None, "1111", [1.0, 1.0]), runs(0.0, "1111", [1.0, 1.0])])[1:]
    strict = replace(row, accuracy=share_of(right[0], num))
    others = [
        replace(row, tau=0.1 * (at + 1), accuracy=share_of(one, num), vs_strict=mean_ratio(ratios))
        for at, (one, ratios) in enumerate(zip(right[1:], speeds, strict=True))
    ]
    return [strict, *others]


def test_a_speed_whose_interval_contains_1_is_no_difference() -> None:
    rows = rows_of((20, 20, 20, 20), ([1.2, 1.21, 1.22], [0.9, 1.0, 1.3], [0.8, 0.81, 0.82]))
    assert findings(rows)[:3] == [
        "GSM8K, tau 0.1: faster than tau 0",
        "GSM8K, tau 0.3: slower than tau 0",
        "GSM8K, tau 0.2: no difference in speed that this sample shows",
    ]


def test_accuracies_differ_only_if_intervals_do_not_overlap() -> None:
    assert findings(rows_of((24, 20), ([1.0],)))[-1] == (
        "GSM8K: the accuracies' intervals of all taus overlap: no difference that this sample shows"
    )
    assert findings(rows_of((34, 20, 4), ([1.0], [1.0])))[-1] == (
        "GSM8K: the accuracies' intervals do not overlap for tau 0 and 0.1; 0 and 0.2; 0.1 and 0.2"
    )


def test_programs_that_did_not_end_are_said() -> None:
    rows = [replace(row, num_timed_out=2) for row in rows_of((20, 20), ([1.0],))]
    assert findings(rows)[-1] == "GSM8K: 4 programs did not end in time and count as wrong"


def test_the_picture_has_a_bar_for_each_interval(tmp_path: Path, monkeypatch) -> None:
    pytest.importorskip("matplotlib")
    drawn = []
    monkeypatch.setattr("starspec.bench.relaxed.rows.save", lambda figure, path: drawn.append((figure, path)))
    draw(rows_of((24, 20), ([1.1, 1.2, 1.3],)), tmp_path / "relaxed.png")
    ((figure, _),) = drawn
    speed, length, accuracy = figure.axes
    assert [panel.get_xlabel() for panel in figure.axes] == ["relaxation tau (0 = strict)"] * 3
    assert "(times)" in speed.get_ylabel()
    assert "tokens per round" in length.get_ylabel()
    assert "(%)" in accuracy.get_ylabel()
    bars = [segment[:, 1].tolist() for segment in accuracy.containers[0].lines[2][0].get_segments()]
    expected = [[100 * share_of(each, 40).low, 100 * share_of(each, 40).high] for each in (24, 20)]
    assert bars == [pytest.approx(each) for each in expected]


# once through


def measured(tiny_folder: Path, tmp_path: Path, plan: RelaxedPlan, thresholds: KeyThresholds) -> RelaxedReport:
    lines = [{**QUESTION, "id": f"sum/{at}", "turns": [f"What is {at} + 1?"]} for at in range(3)]
    problems = read_problems([dataset(tmp_path / "problems.jsonl", CODE, *lines)], 3)
    models = ModelPair(target=str(tiny_folder), draft=str(tiny_folder), num_threads=1)
    turns: list[tuple[str, int | None]] = []
    report = measure_relaxed(
        models, problems, plan, thresholds, lambda what, num: turns.append((what, num)), may_run_code=True
    )
    begun = [(at, num) for at, (_, num) in enumerate(turns) if num]
    ends = [at for at, _ in begun[1:]] + [len(turns)]
    assert [end - at for (at, _), end in zip(begun, ends, strict=True)] == [num for _, num in begun]
    assert any("at most about 1 min" in what for what, _ in turns)
    return report


PLAN = RelaxedPlan(taus=(0.4, 0.8), max_tokens=24, batch_size=2, num_draft_tokens=3)


def test_all_taus_are_measured_beside_plain_decoding_and_tau_0_is_its_equal(tiny_folder: Path, tmp_path: Path) -> None:
    report = measured(tiny_folder, tmp_path, PLAN, EVERYTHING)
    names = [(row.task, row.tau) for row in report.rows]
    assert names == [(task, tau) for task in ("HumanEval", "GSM8K") for tau in (None, 0.0, 0.4, 0.8)]
    assert report.is_promised
    assert report.mistakes == []
    strict = [row for row in report.rows if row.tau == 0.0]
    assert [(row.num_same_as_plain, row.num_relaxed_tokens) for row in strict] == [(1, 0), (3, 0)]
    assert sum(row.num_relaxed_tokens for row in report.rows if row.tau) > 0
    assert [len(row.group_seconds) for row in report.rows] == [1] * 4 + [2] * 4
    assert all(row.num_right == 1 for row in report.rows[:4])  # whatever is written, it is behind a comment's sign
    write_report(report, tmp_path / "relaxed.json")
    content = msgspec.json.decode((tmp_path / "relaxed.json").read_bytes())
    assert content["rows"][2]["vs_strict"]["value"] == content["ratios"]["humaneval_tau_0.4_speed_vs_strict"]
    assert content["rows"][2]["vs_strict"]["high"] is None  # one group


def test_an_interrupt_keeps_the_groups_that_were_answered_in_every_way(
    tiny_folder: Path, tmp_path: Path, capsys, monkeypatch
) -> None:
    from starspec.bench.relaxed.measure import _Bench

    calls: list[float | None] = []
    answer = _Bench.answer

    def answer_nine_times(self, jobs, tau):
        calls.append(tau)
        if len(calls) > 9:  # two ways warm up twice; then two groups in two ways, and half of the third
            raise KeyboardInterrupt
        return answer(self, jobs, tau)

    monkeypatch.setattr(_Bench, "answer", answer_nine_times)
    path = dataset(tmp_path / "problems.jsonl", *({**QUESTION, "id": f"sum/{at}"} for at in range(4)))
    pair = ("--target", str(tiny_folder), "--draft", str(tiny_folder), "--num-threads", "1", "--dataset", str(path))
    words = ("--taus", "0", "--batch-size", "1", "--max-tokens", "4", "--json", str(tmp_path / "relaxed.json"))
    assert run(["bench", "relaxed", *pair, *words]) == 130
    assert "interrupted: these are the problems that were answered in every way" in capsys.readouterr().out
    content = msgspec.json.decode((tmp_path / "relaxed.json").read_bytes())
    assert [(row["tau"], row["num_problems"], len(row["outcomes"])) for row in content["rows"]] == [
        (None, 2, 2),
        (0.0, 2, 2),
    ]


def test_the_command_prints_a_table_and_what_the_intervals_show(tiny_folder: Path, tmp_path: Path, capsys) -> None:
    files = [str(dataset(tmp_path / f"{at}.jsonl", each)) for at, each in enumerate((CODE, QUESTION))]
    pair = ("--target", str(tiny_folder), "--draft", str(tiny_folder), "--num-threads", "1")
    words = ("--dataset", files[0], "--dataset", files[1], "--run-generated-code", "--max-tokens", "8", "--quick")
    assert run(["bench", "relaxed", *pair, *words, "--png", str(tmp_path / "relaxed.svg")]) == 0
    outcome = capsys.readouterr()
    assert "1/1 │ 100.0 (20.6 to 100.0)" in outcome.out
    assert "0.0 (0.0 to 79.3)" in outcome.out
    assert "HumanEval: the accuracies' intervals of all taus overlap" in outcome.out
    assert "GSM8K, tau 0.3: no difference in speed that this sample shows" in outcome.out
    assert "--quick: one repeat of little work" in outcome.out
    assert "bench relaxed: answering 2 problems in 3 ways, at most about 1 min" in outcome.err
    assert (tmp_path / "relaxed.svg").stat().st_size > 0


def test_rejection_sampling_promises_no_tokens(tiny_folder: Path, tmp_path: Path) -> None:
    plan = replace(PLAN, taus=(0.8,), rejection_sample_method="rejection")
    report = measured(tiny_folder, tmp_path, plan, DEFAULT_THRESHOLDS)
    assert not report.is_promised
    assert report.mistakes == []


def test_an_answer_of_tau_0_that_is_not_plain_decodings_is_a_mistake(tiny_folder: Path, tmp_path: Path) -> None:
    report = measured(tiny_folder, tmp_path, replace(PLAN, taus=()), DEFAULT_THRESHOLDS)
    rows = [replace(row, num_same_as_plain=row.num_problems - 1) for row in report.rows]
    assert replace(report, rows=rows).mistakes == [
        "HumanEval, tau 0: 1 answers are not those of plain decoding",
        "GSM8K, tau 0: 1 answers are not those of plain decoding",
    ]


def test_no_tau_starts_from_the_drafts_prefill_of_another_one(tiny_folder: Path, tmp_path: Path) -> None:
    from starspec.bench.relaxed.measure import _Bench

    long = {**QUESTION, "turns": ["What is one and one and one? " * 4]}
    problems = read_problems([dataset(tmp_path / "problems.jsonl", long)], 1)
    models = ModelPair(target=str(tiny_folder), draft=str(tiny_folder), num_threads=1)
    bench = _Bench(models, problems, PLAN, DEFAULT_THRESHOLDS)
    for tau in (0.0, 0.4, 0.8):
        bench.answer(bench.jobs, tau)
    assert bench.hub.loaded.drafter.num_shared_tokens == 0
    bench.answer(bench.jobs, 0.8)
    assert bench.hub.loaded.drafter.num_shared_tokens > 0  # so it would have shared


def test_acceptance_is_averaged_over_answers_that_had_drafts() -> None:
    drafted, plain = RequestStats(), RequestStats()
    drafted.add_round(3, 3, 4)
    plain.add_round(0, 0, 1)
    found = Runs(0.1)
    found.add([JobResult([1], stats=drafted), JobResult([1], stats=plain)], 1.0)
    assert found.acceptance_length == mean_of([4.0])
    assert found.acceptance == AcceptanceStats(
        num_drafts=1,
        num_draft_tokens=3,
        num_accepted_tokens=3,
        num_accepted_tokens_per_pos=[1, 1, 1],
        num_forwards=2,
        num_emitted_tokens=5,
    )
