"""The benchmark of trees: its grid, its ratios, its picture, and once through with a tiny model."""

from dataclasses import replace
from pathlib import Path

import pytest

from starspec.bench.datasets import own_prompts
from starspec.bench.report import Spread
from starspec.bench.tree.measure import TreeModels, TreePlan, TreeRow, at_the_edge, best_shape, measure_tree, ratios_of
from starspec.bench.tree.picture import draw
from starspec.bench.tree.shapes import Grid, name_of
from starspec.errors import ConfigError
from starspec.speculation.budget import DraftBudget

GRID = Grid(chains=(1, 3), depths=(2, 3), top_ks=(2,), nodes=(2, 4, 6, 100))
ROW = TreeRow(
    stage="final",
    temperature=0.0,
    shape="plain",
    num_steps=0,
    eagle_topk=1,
    num_nodes=0,
    tokens_per_s=Spread(10.0, 10.0, 10.0),
    vs_plain=1.0,
    acceptance_length=None,
    block_efficiency=None,
    bytes_per_accepted_token=None,
    num_same_as_plain=1,
    num_answers=1,
)


def row(shape: DraftBudget, rate: float, stage: str = "final") -> TreeRow:
    return replace(
        ROW,
        stage=stage,
        shape=name_of(shape),
        num_steps=shape.num_steps,
        eagle_topk=shape.top_k,
        num_nodes=shape.num_draft_tokens,
        tokens_per_s=Spread(rate, rate, rate),
        vs_plain=rate / 10.0,
    )


def test_the_grid_holds_no_tree_that_is_a_chain_and_none_that_cannot_be_filled() -> None:
    assert GRID.shapes() == [
        DraftBudget.chain(1),
        DraftBudget.chain(3),
        DraftBudget(4, 2, 2),
        DraftBudget(6, 2, 2),
        DraftBudget(4, 3, 2),
        DraftBudget(6, 3, 2),
    ]


def test_ratios_compare_the_best_of_the_final_stage() -> None:
    chain, tree = DraftBudget.chain(3), DraftBudget(6, 3, 2)
    rows = [ROW, row(chain, 15.0), row(tree, 18.0), row(DraftBudget.chain(1), 99.0, stage="trial")]
    assert ratios_of(rows) == {"best_tree_vs_best_chain_t0": 1.2, "speculative_vs_plain_t0": 1.8}
    assert best_shape(rows, 0.0) == "tree 3 x 2, 6 nodes"
    assert best_shape([ROW, row(chain, 8.0), row(tree, 9.0)], 0.0) == "plain"


def test_the_best_that_is_the_largest_tried_is_named() -> None:
    shapes = [DraftBudget.chain(2), DraftBudget.chain(3), DraftBudget(4, 2, 2), DraftBudget(6, 3, 2)]
    rows = [ROW, row(shapes[1], 15.0), row(shapes[2], 18.0), row(shapes[0], 9.0, stage="trial")]
    assert at_the_edge(rows, shapes) == ["chain of 3 at T=0"]


def test_a_grid_of_one_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one chain and one tree"):
        Grid(chains=())


@pytest.fixture(scope="module")
def report(tiny_folder: Path):
    folder = str(tiny_folder)
    models = TreeModels(
        target=folder, draft=folder, quantization="none", dtype="float32", num_threads=1, max_model_len=512
    )
    plan = TreePlan(grid=GRID, num_trial_prompts=1, num_prompts=2, max_tokens=8, num_repeats=2)
    return measure_tree(models, [own_prompts()], plan, lambda _what, _turns: None)


def test_every_shape_is_tried_at_every_temperature_and_the_best_are_measured(report) -> None:
    assert [(each.stage, each.temperature) for each in report.rows] == [
        *[("trial", 0.0)] * 7,
        *[("final", 0.0)] * 3,
        *[("trial", 1.0)] * 7,
        *[("final", 1.0)] * 3,
    ]
    assert report.outputs_identical
    assert report.ratios.keys() == {
        "best_tree_vs_best_chain_t0",
        "best_tree_vs_best_chain_t1",
        "speculative_vs_plain_t0",
        "speculative_vs_plain_t1",
    }


def test_a_draft_that_is_its_target_is_accepted_as_deep_as_it_goes(report) -> None:
    by_shape = {each.shape: each for each in report.rows if each.stage == "trial" and each.temperature == 0.0}
    assert by_shape["plain"].acceptance_length is None
    assert by_shape["chain of 3"].acceptance_length > by_shape["chain of 1"].acceptance_length > 1.5
    assert by_shape["tree 3 x 2, 6 nodes"].acceptance_length > 2.5
    chain, tree = by_shape["chain of 3"], by_shape["tree 3 x 2, 6 nodes"]
    assert tree.bytes_per_accepted_token > chain.bytes_per_accepted_token > 10


def test_the_picture_is_drawn(report, tmp_path: Path) -> None:
    path = tmp_path / "figures" / "tree.png"
    draw(report.rows, path)
    assert path.read_bytes().startswith(b"\x89PNG")
