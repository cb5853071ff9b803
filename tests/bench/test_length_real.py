"""`bench length` with real models: what its rows say, once through with a tiny pair, and the signals of Table II."""

from __future__ import annotations

from dataclasses import replace
from math import log
from pathlib import Path
from shutil import copytree, ignore_patterns

import pytest

from starspec.bench.batch.measure import measure_batch
from starspec.bench.batch.methods import MethodRun
from starspec.bench.batch.plan import BatchPlan
from starspec.bench.batch.serving import Served
from starspec.bench.length import real_pair, signals
from starspec.bench.length.categories import by_category
from starspec.bench.length.real_pair import measure_real_pair
from starspec.bench.length.real_plan import RealPlan
from starspec.bench.length.real_report import blocks, draw
from starspec.bench.length.real_rows import Cell, RealReport, cell_rows, ratios_of, rival_rows
from starspec.bench.length.rivals import PLAIN, Rival, all_rivals, default_rival, static_rival
from starspec.bench.length.signals import DEPTH, STATING, TokenSignals, WireBytes, entropy_of, signal_row, wire_rows
from starspec.config import Quantization
from starspec.engine.sequence import Finish, RoundOutput
from starspec.errors import ConfigError
from starspec.harness.datasets import Prompt, own_prompts
from starspec.harness.decode import JobResult
from starspec.harness.model_pair import ModelPair
from starspec.harness.table import Table
from starspec.speculation.tree import ROOT, DraftTree, TopTokens
from starspec.stats import BatchStats
from starspec.wire.messages import Proposal, Verdict
from starspec.wire.messages.draft_link import Top, TreeShape

CELL = Cell("draft", "code", 0.0, 4)
PLAN = RealPlan(
    categories=("coding", "math"),
    batch_sizes=(1, 3),
    large_batch_sizes=(5,),
    num_prompts=2,
    max_tokens=14,
    max_prompt_tokens=120,
    num_repeats=1,
)
FILES = {"prompts": own_prompts()}
PROMPTS = [Prompt("a/1", "qa", "one"), Prompt("a/2", "rag", "two"), Prompt("a/3", "qa", "three")]


def models_of(target: str, draft: str, quantization: Quantization = "none") -> ModelPair:
    return ModelPair(target=target, draft=draft, quantization=quantization, dtype="float32", num_threads=1)


@pytest.fixture(scope="module")
def report(tiny_folder: Path) -> RealReport:
    turns: list[tuple[str, int | None]] = []
    models = {"draft": models_of(str(tiny_folder), str(tiny_folder), "int4")}  # a draft that is wrong now and then
    found = measure_real_pair(models, FILES, PLAN, lambda what, num: turns.append((what, num)))
    (begun,) = (index for index, (what, num) in enumerate(turns) if num is not None)
    assert turns[begun][1] == len(turns) - begun - 1, "the stage has as many turns as it was said to have"
    assert turns[begun][0].startswith("measuring, about ")
    return found


def test_every_rival_is_a_row_of_every_cell(report: RealReport) -> None:
    cells = [
        Cell("draft", category, temperature, size)
        for category in PLAN.categories
        for temperature in PLAN.temperatures
        for size in (1, 3, 5)
    ]
    expected = [(cell, each.name) for cell in cells for each in PLAN.rivals_at(cell.batch_size)]
    assert [(row.cell, row.method) for row in report.rows] == expected
    assert [each.name for each in PLAN.rivals_at(5)] == [PLAIN, default_rival().name]


def test_no_policy_changes_a_token_at_any_temperature_in_any_batch(report: RealReport) -> None:
    assert report.is_promised
    assert report.num_answers > 0
    assert report.num_different == 0
    assert not report.mistakes


def test_policies_draft_as_they_are_configured(report: RealReport) -> None:
    lengths = {row.method: row.draft_length for row in report.rows if row.cell == Cell("draft", "coding", 0.0, 1)}
    assert lengths[PLAIN] == 0.0
    assert lengths["static 2"] < lengths["static 4"] < lengths["static 10"] <= 10.0
    assert lengths["dsde"] > 0.0
    assert all(0.0 < row.acceptance_rate < 1.0 for row in report.rows if row.method == "static 10")


def test_the_report_has_the_ratios_that_are_quoted(report: RealReport) -> None:
    quoted = {
        "goodput_vs_static_opt_mean",
        "goodput_vs_static_opt_min",
        "goodput_vs_plain_min",
        "dsde_vs_static_opt_mean",
        "batch_3_vs_plain",
        "batch_5_vs_plain",
    }
    assert quoted <= report.ratios.keys()


def test_the_signals_of_each_category_stand_beside_the_papers(report: RealReport) -> None:
    kinds = [(row.drafter, row.category, row.temperature) for row in report.signals]
    assert kinds == [
        *(("draft", category, temperature) for category in ("coding", "math") for temperature in (0.0, 1.0)),
        *(("draft", "all", temperature) for temperature in (0.0, 1.0)),
        *(("the paper", "CNN/DM", temperature) for temperature in (0.0, 1.0)),
    ]
    by_kind = dict(zip(kinds, report.signals, strict=True))
    parts = [by_kind["draft", category, 1.0].num_tokens for category in ("coding", "math")]
    assert 0 < sum(parts) == by_kind["draft", "all", 1.0].num_tokens
    assert by_kind["the paper", "CNN/DM", 0.0].entropy == -0.339


def test_signals_make_messages_longer(report: RealReport) -> None:
    assert [row.message for row in report.wire] == ["verdict", "proposal"]
    assert all(row.with_signals > row.without for row in report.wire)


def test_the_report_can_be_read_and_drawn(report: RealReport, tmp_path: Path) -> None:
    cells, table_2, wire = (each for each in blocks(report) if isinstance(each, Table))
    assert len(cells.rows) == 12
    assert all(column.cell(row) for table in (cells, table_2, wire) for column in table.columns for row in table.rows)
    draw(report.rows, tmp_path / "lengths.svg")
    assert "<svg" in (tmp_path / "lengths.svg").read_text()


def test_a_wrong_token_is_a_mistake_of_its_rival(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_method = real_pair.run_method

    def corrupting(bench, method, drafts, jobs, num_draft_tokens, known=None):
        assert num_draft_tokens is None, "a request's own depth would overrule every policy"
        run = run_method(bench, method, drafts, jobs, num_draft_tokens, known=known)
        if method.name != PLAIN and jobs[0].max_tokens == plan.max_tokens:
            run.served.answers[0].token_ids[0] += 1
        return run

    monkeypatch.setattr(real_pair, "run_method", corrupting)
    plan = replace(
        PLAN, categories=("math",), temperatures=(0.0,), batch_sizes=(2,), large_batch_sizes=(), max_tokens=8
    )
    models = {"draft": models_of(str(tiny_folder), str(tiny_folder))}
    found = measure_real_pair(models, FILES, plan, lambda what, num: None)
    assert found.num_different == len(all_rivals()) - 1
    assert len(found.mistakes) == 2
    assert "static 2 (draft, math, T=0, batch 2)" in found.mistakes[0]
    assert PLAIN not in found.mistakes[0].split(":")[0]


def test_an_interrupt_leaves_the_cells_that_were_done(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_cell, num_cells = real_pair._run_cell, 0

    def impatient(*arguments):
        nonlocal num_cells
        num_cells += 1
        if num_cells == 2:
            raise KeyboardInterrupt
        return run_cell(*arguments)

    monkeypatch.setattr(real_pair, "_run_cell", impatient)
    plan = replace(PLAN, categories=("math",), batch_sizes=(1,), large_batch_sizes=(2,), num_prompts=1, max_tokens=4)
    models = {"draft": models_of(str(tiny_folder), str(tiny_folder))}
    found = measure_real_pair(models, FILES, plan, lambda what, num: None)
    assert not found.is_whole
    assert {row.cell.batch_size for row in found.rows} == {1}
    assert any("interrupted" in str(each) for each in blocks(found))
    num_cells = 1
    with pytest.raises(KeyboardInterrupt):
        measure_real_pair(models, FILES, plan, lambda what, num: None)


def test_a_head_is_a_drafter_of_its_own_beside_the_draft(headed: tuple[str, str]) -> None:
    target, head = headed
    plan = replace(
        PLAN, categories=("math",), temperatures=(1.0,), batch_sizes=(2,), large_batch_sizes=(), max_tokens=8
    )
    drafters = {"draft": models_of(target, target), "head": models_of(target, head)}
    found = measure_real_pair(drafters, FILES, plan, lambda what, num: None)
    assert {row.cell.drafter for row in found.rows} == {"draft", "head"}
    assert found.num_different == 0
    assert {row.drafter for row in found.wire} == {"draft", "head"}


# ---------------------------------------------------------------- rows


def run_of(num_tokens: int, round_s: float) -> MethodRun:
    answers = [JobResult([0] * num_tokens)]
    rounds = BatchStats(num_rounds=1, verify_s=round_s + 1.0)  # one second with a part of the batch
    return MethodRun(Served(answers, [99.0], 99.0), rounds, 50.0, 9.0, 0.0, None, num_tokens / round_s)


def rivals_with(**round_s: float) -> dict[Rival, list[MethodRun]]:
    by_name = {each.name.replace(" ", "_"): each for each in all_rivals()}
    return {by_name[name]: [run_of(10, seconds)] for name, seconds in round_s.items()}


def test_speeds_are_of_full_batches_and_over_the_best_fixed_length() -> None:
    runs = rivals_with(plain=2.0, static_2=1.25, static_4=1.0, static_6=1.25, dsde=2.5, goodput=0.8)
    rows = {row.method: row for row in rival_rows(CELL, runs, {rival: [] for rival in runs})}
    assert rows["plain"].tokens_per_s.median == 5.0
    assert rows["goodput"].vs_static_opt == 1.25
    assert rows["goodput"].vs_plain == 2.5
    assert rows["dsde"].vs_static_opt == 0.4
    (cell,) = cell_rows(list(rows.values()))
    assert (cell.static_opt_length, cell.static_opt) == (4, 10.0)


def test_ratios_are_means_and_lowest_values_over_the_cells() -> None:
    rows = []
    for size, goodput in ((8, 0.8), (16, 2.0)):
        runs = rivals_with(plain=2.0, static_2=2.0, static_4=1.0, dsde=1.0, goodput=goodput)
        rows += rival_rows(replace(CELL, batch_size=size), runs, {rival: [] for rival in runs})
    ratios = ratios_of(rows)
    assert ratios["goodput_vs_static_opt_mean"] == round((1.25 + 0.5) / 2, 3)
    assert ratios["goodput_vs_static_opt_min"] == 0.5
    assert ratios["goodput_vs_plain_min"] == 1.0
    by_name = {row.cell.batch_size: row.vs_plain for row in rows if row.method == default_rival().name}
    assert (ratios["batch_8_vs_plain"], ratios["batch_16_vs_plain"]) == (by_name[8], by_name[16])


def test_without_policies_no_length_is_called_the_best() -> None:
    runs = {Rival(PLAIN): [run_of(10, 2.0)], static_rival(4): [run_of(10, 1.0)]}
    assert all(row.vs_static_opt is None for row in rival_rows(CELL, runs, {rival: [] for rival in runs}))


def test_the_default_is_among_the_rivals_and_each_occurs_once() -> None:
    names = [each.name for each in all_rivals()]
    assert default_rival().name in names
    assert len(set(names)) == len(names)


def test_policies_that_were_left_out_are_no_rivals_and_no_columns(report: RealReport) -> None:
    plan = replace(PLAN, policies=("dsde",))
    names = [each.name for each in plan.rivals_at(3)]
    assert {PLAIN, "static 2", "dsde", default_rival().name} < set(names)
    assert not {"adaedl", "confidence"} & set(names)
    table = blocks(replace(report, rows=[row for row in report.rows if row.method in names]))[0]
    assert isinstance(table, Table)
    titles = {column.title for column in table.columns}
    assert "dsde" in titles
    assert "adaedl" not in titles


# ---------------------------------------------------------------- categories and plan


def test_a_file_of_one_category_is_a_category_and_others_have_several() -> None:
    files = {"gsm8k": [Prompt("g/1", "math", "x")], "spec_bench": PROMPTS}
    assert {name: len(found) for name, found in by_category(files).items()} == {"gsm8k": 1, "qa": 2, "rag": 1}
    assert list(by_category(files, ("rag", "gsm8k"))) == ["rag", "gsm8k"]
    with pytest.raises(ConfigError, match="--categories: there is no 'rak' among the prompts; did you mean 'rag'"):
        by_category(files, ("rak",))


@pytest.fixture
def without_weights(tiny_folder: Path, tmp_path: Path) -> str:
    return str(copytree(tiny_folder, tmp_path / "model", ignore=ignore_patterns("*.safetensors")))


def test_a_category_whose_prompts_are_all_too_long_is_refused_before_weights_are_read(without_weights: str) -> None:
    models = {"draft": models_of(without_weights, without_weights)}
    long = [Prompt(f"long/{number}", "long", "word " * 400) for number in range(2)]
    plan = replace(PLAN, categories=("coding", "long"), max_prompt_tokens=300)
    with pytest.raises(ConfigError, match="category 'long': no prompt has at most 300 tokens"):
        measure_real_pair(models, FILES | {"long": long}, plan, lambda what, num: None)


def test_a_batch_whose_prompts_are_all_too_long_is_refused_before_weights_are_read(without_weights: str) -> None:
    plan = BatchPlan(max_prompt_tokens=1)
    with pytest.raises(ConfigError, match="no prompt has at most 1 tokens"):
        measure_batch(models_of(without_weights, without_weights), own_prompts(), plan, lambda what, num: None)


def test_the_estimate_counts_all_rounds_of_all_rivals() -> None:
    plan = RealPlan(temperatures=(0.0,), batch_sizes=(1,), large_batch_sizes=(4,), num_prompts=2, max_tokens=10)
    one = len(all_rivals()) * 2 * 10 * 0.1  # two prompts, one after the other
    four = 2 * 1 * 10 * 0.2
    assert plan.estimate_s({1: 0.1, 4: 0.2}, num_kinds=3) == pytest.approx(3 * 3.5 * (one + four))


@pytest.mark.parametrize(
    ("sides", "sentence"),
    [
        ({"batch_sizes": ()}, "give at least one of each"),
        ({"temperatures": ()}, "give at least one of each"),
        ({"large_batch_sizes": (8,)}, "each number once"),
        ({"temperatures": (-1.0,)}, "numbers from 0 on"),
        ({"policies": ("dsd",)}, "--policies: there is no 'dsd'; did you mean 'dsde'"),
    ],
    ids=str,
)
def test_a_plan_that_cannot_be_measured_is_refused(sides, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        RealPlan(**sides)


# ---------------------------------------------------------------- signals


def chain_of(*probs: float) -> DraftTree:
    """A chain of tokens 1, 2, ..; the draft gave each of them this probability, and token 0 the rest."""
    tops = {node: TopTokens((node + 2, 0), (log(prob), log(1.0 - prob))) for node, prob in enumerate(probs, start=ROOT)}
    return replace(DraftTree.chain(list(range(1, len(probs) + 1))), tops=tops)


def test_signals_are_of_tokens_up_to_the_first_rejected_one() -> None:
    tree, added = chain_of(0.9, 0.8, 0.7), RoundOutput(token_ids=[1, 9])
    added.num_accepted = 1
    found = signals.signals_of(tree, added, variance_ratio=0.5, mean_kld=0.25)
    assert [each.is_accepted for each in found] == [True, False]
    assert [each.entropy for each in found] == [
        pytest.approx(-(prob * log(prob) + (1 - prob) * log(1 - prob))) for prob in (0.9, 0.8)
    ]
    assert {(each.variance_ratio, each.mean_kld) for each in found} == {(0.5, 0.25)}
    added.num_accepted = 3
    assert [each.is_accepted for each in signals.signals_of(tree, added, 1.0, 0.0)] == [True] * 3


def test_a_round_that_ends_the_answer_says_nothing() -> None:
    added = RoundOutput(token_ids=[1], finish=Finish("length"))
    assert not signals.signals_of(chain_of(0.9, 0.8), added, 1.0, 0.0)


def test_the_entropy_has_one_bucket_for_all_tokens_that_are_not_stated() -> None:
    assert entropy_of(TopTokens((1, 2), (log(0.5), log(0.25)))) == pytest.approx(0.5 * log(2) + 0.5 * log(4))
    assert entropy_of(TopTokens((1,), (0.0,))) == 0.0


def test_correlations_are_pearsons_and_none_where_nothing_varies() -> None:
    tokens = [TokenSignals(entropy, 0.1, ratio, accepted) for entropy, ratio, accepted in (
        (0.0, 1.0, True), (1.0, 2.0, False), (0.0, 2.0, True), (1.0, 1.0, False)
    )]  # fmt: skip
    row = signal_row("draft", "code", 0.0, tokens)
    assert (row.num_tokens, row.acceptance, row.entropy, row.mean_kld, row.wvir) == (4, 0.5, -1.0, None, 0.0)
    assert signal_row("draft", "code", 0.0, []).entropy is None


def test_what_signals_weigh_is_the_difference_of_encoded_messages() -> None:
    found = WireBytes()
    tops = [Top(node, list(range(16)), [-1.5] * 16) for node in range(ROOT, DEPTH - 1)]
    bare = Proposal(1, 2, 10, [7] * DEPTH)
    found.add(Proposal(1, 2, 10, [7] * DEPTH, tops=tops))
    found.add(Verdict(1, 2, 10, [7, 8], DEPTH, TreeShape.of(STATING)))
    found.add(Proposal(1, 2, 10, []))  # an empty one is no round's
    assert found.num_proposals == found.num_verdicts == 1
    assert found.proposal_without == len(signals.encode(bare))
    assert found.verdict_without == len(signals.encode(Verdict(1, 2, 10, [7, 8], DEPTH)))
    verdict, proposal = wire_rows("draft", found)
    # each stated token takes a token id of one byte here and a number of nine
    assert proposal.with_signals - proposal.without > DEPTH * 16 * 10
    assert 0 < verdict.with_signals - verdict.without < 100
    assert wire_rows("draft", WireBytes()) == []
