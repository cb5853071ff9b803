"""The benchmark of structured output: once through with a tiny model, and what it finds fault with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from starspec.bench.grammar.measure import LIARS, OFF, GrammarRow, is_valid, measure_grammar, mistakes_of
from starspec.bench.grammar.plan import GrammarPlan
from starspec.harness.model_pair import ModelPair
from starspec.harness.provenance import collect_provenance
from starspec.harness.report import Report

PLAN = GrammarPlan(num_schemas=4, temperatures=(0.0,), free_tokens=8)


@pytest.fixture(scope="module")
def report(byte_model: Path, byte_head: Path) -> Report:
    models = ModelPair(target=str(byte_model), draft=str(byte_model), dtype="float32", num_threads=1)
    begun: list[tuple[str, int | None]] = []
    found = measure_grammar(models, str(byte_head), PLAN, lambda what, num: begun.append((what, num)))
    assert begun[0] == ("answering", len(begun) - 1)
    return found


def test_every_draft_answers_every_schema_with_the_same_tokens(report: Report) -> None:
    assert [row.draft for row in report.rows] == [OFF, "draft", "head", "ngram", *LIARS]
    assert {(row.num_answers, row.num_valid, row.num_identical, row.num_cut) for row in report.rows} == {(4, 4, 4, 0)}
    assert len({row.num_tokens for row in report.rows}) == 1
    assert mistakes_of(report) == []


def test_a_draft_is_measured_with_and_without_the_schema_and_what_it_forces(report: Report) -> None:
    plain, draft, head, ngram, *liars = report.rows
    assert (plain.block_efficiency, plain.forced_share) == (1.0, 0.0)
    for row in (draft, head, ngram):
        assert row.block_efficiency >= row.block_efficiency_unforced >= 1.0
        assert row.block_efficiency_free >= 1.0
        assert row.forced_share > 0.0
    assert {row.block_efficiency_unforced for row in (plain, *liars)} == {None}
    assert all(row.grammar_us_per_token > 0.0 for row in report.rows)


def test_answers_that_changed_or_do_not_validate_are_mistakes(report: Report) -> None:
    plain: GrammarRow = report.rows[0]
    bad = [plain, replace(plain, draft="draft", num_valid=3), replace(plain, draft="head", num_identical=2)]
    bad.append(replace(plain, draft="ngram", num_valid=3, num_cut=1))
    assert mistakes_of(Report(collect_provenance({}), bad)) == [
        "greedy, draft: 1 answers do not validate",
        "greedy, head: 2 answers changed",
    ]


@pytest.mark.parametrize(("text", "is_one"), [('{"a": 1}', True), ('{"a": "1"}', False), ('{"a": 1', False)])
def test_an_answer_is_valid_if_it_is_json_of_the_schema(text: str, is_one: bool) -> None:
    assert is_valid(text, {"properties": {"a": {"type": "integer"}}}) == is_one
