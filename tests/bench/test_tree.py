"""The benchmark of trees: its grid, its ratios, its picture, and once through with a tiny model."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from starspec.bench.tree.grid import CAUSAL_GRID, HEAD_GRID, Grid, name_of
from starspec.bench.tree.measure import measure_tree
from starspec.bench.tree.plan import TreePlan
from starspec.bench.tree.rows import at_the_edge, draw, losing_regimes, ratios_of
from starspec.cli import run
from starspec.errors import ConfigError
from starspec.harness.datasets import own_prompts
from starspec.harness.model_pair import ModelPair
from starspec.harness.report import Spread
from starspec.harness.step_times import StepSeconds
from starspec.harness.tree_report import TreeRow, best_row
from starspec.speculation.budget import DraftBudget

GRID = Grid(chains=(1, 3), depths=(2, 3), top_ks=(2,), nodes=(2, 4, 6, 64), p_mins=(0.0,))
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
        p_min=shape.p_min,
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


def test_the_grid_holds_each_shape_with_each_p_min() -> None:
    grid = replace(GRID, chains=(3,), depths=(2,), nodes=(4,), p_mins=(0.0, 0.5))
    chains = [DraftBudget.chain(3), DraftBudget.chain(3, 0.5)]
    assert grid.shapes() == [*chains, DraftBudget(4, 2, 2), DraftBudget(4, 2, 2, 0.5)]
    assert [name_of(shape) for shape in chains] == ["chain of 3", "chain of 3, p_min 0.5"]
    with pytest.raises(ConfigError, match="a p_min is a probability, 0 to 1"):
        Grid(p_mins=(0.0, 30.0))


def test_trees_are_compared_with_chains_of_a_fixed_length_and_with_those_that_doubt() -> None:
    chain, doubting, tree = DraftBudget.chain(3), DraftBudget.chain(8, 0.3), DraftBudget(6, 3, 2, 0.3)
    rows = [ROW, row(chain, 15.0), row(doubting, 20.0), row(tree, 18.0)]
    ratios = ratios_of(rows, StepSeconds(draft_s=0.001, target_s=[0.008], giving_s=0.0081))
    assert ratios["best_tree_vs_best_fixed_chain_t0"] == 1.2
    assert ratios["best_tree_vs_best_chain_t0"] == 0.9
    assert ratios["speculative_vs_plain"] == 2.0
    assert losing_regimes(rows) == [
        "T=0: chain of 8, p_min 0.3 beats every tree, tree 3 x 2, 6 nodes, p_min 0.3 comes to 0.90x of it"
    ]


def test_ratios_compare_the_best_of_the_final_stage() -> None:
    chain, tree = DraftBudget.chain(3), DraftBudget(6, 3, 2)
    rows = [ROW, row(chain, 15.0), row(tree, 18.0), row(DraftBudget.chain(1), 99.0, stage="trial")]
    assert ratios_of(rows, StepSeconds(draft_s=0.001, target_s=[0.008], giving_s=0.0081)) == {
        "head_step_vs_target_step": 0.125,
        "step_with_features_vs_without": 1.012,
        "best_tree_vs_best_chain_t0": 1.2,
        "best_tree_vs_best_fixed_chain_t0": 1.2,
        "speculative_vs_plain": 1.8,
    }
    assert best_row(rows, 0.0).shape == "tree 3 x 2, 6 nodes"
    assert best_row([ROW, row(chain, 8.0), row(tree, 9.0)], 0.0).shape == "plain"


def test_a_losing_regime_is_told() -> None:
    chain, tree = DraftBudget.chain(3), DraftBudget(6, 3, 2)
    assert losing_regimes([ROW, row(chain, 15.0), row(tree, 18.0)]) == []
    assert losing_regimes([ROW, row(chain, 9.0), row(tree, 8.1)]) == [
        "T=0: nothing beats plain decoding, chain of 3 comes to 0.90x",
        "T=0: chain of 3 beats every tree, tree 3 x 2, 6 nodes comes to 0.90x of it",
    ]


def test_the_grid_for_heads_has_the_smallest_trees() -> None:
    sizes = {shape.num_draft_tokens for shape in HEAD_GRID.shapes() if not shape.is_chain}
    assert {3, 4, 5, 6, 8, 24} <= sizes
    assert min(shape.num_draft_tokens for shape in CAUSAL_GRID.shapes() if not shape.is_chain) == 6


@pytest.mark.parametrize(
    ("sides", "sentence"),
    [
        ({"chains": (3, 0)}, "--chains must be 1 to 64 each, got 0"),
        ({"chains": (-3,)}, "--chains must be 1 to 64 each, got -3"),
        ({"chains": (65,)}, "--chains must be 1 to 64 each, got 65"),
        ({"depths": (0,)}, "--depths must be 1 to 64 each, got 0"),
        ({"depths": (4, 65)}, "--depths must be 1 to 64 each, got 65"),
        ({"top_ks": (1, 2)}, "--top-ks must be 2 to 16 each, got 1"),
        ({"top_ks": (17,)}, "--top-ks must be 2 to 16 each, got 17"),
        ({"nodes": (0,)}, "--nodes must be 1 to 64 each, got 0"),
        ({"nodes": (500,)}, "--nodes must be 1 to 64 each, got 500"),
        ({"p_mins": (0.3, -0.1)}, "--p-mins: a p_min is a probability, 0 to 1 and less than 1, got -0.1"),
        ({"p_mins": (1.0,)}, "--p-mins: a p_min is a probability, 0 to 1 and less than 1, got 1"),
        ({"p_mins": (float("nan"),)}, "--p-mins: a p_min is a probability, 0 to 1 and less than 1, got nan"),
    ],
    ids=str,
)
def test_a_side_out_of_range_is_refused_by_its_option(sides: dict[str, tuple[float, ...]], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        replace(GRID, **sides)
    assert str(caught.value) == sentence


@pytest.mark.parametrize("temperatures", [(), (-0.1,), (0.0, float("nan")), (float("inf"),), (1.0, 1.0)])
def test_temperatures_that_cannot_be_measured_are_refused_by_their_option(temperatures: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match="--temperatures"):
        TreePlan(temperatures=temperatures)


def test_what_of_a_grid_fits_no_tree_is_said() -> None:
    grid = replace(GRID, depths=(3, 12), nodes=(4, 10))
    assert grid.left_out() == ["depths 12 fit no tree of this grid: it would be a chain or not filled"]
    assert replace(GRID, nodes=(4,)).left_out() == []


def test_the_ends_of_each_range_are_tried() -> None:
    grid = Grid(chains=(1, 64), depths=(1, 5), top_ks=(2, 16), nodes=(2, 64), p_mins=(0.0, 0.99))
    sizes = {(each.num_steps, each.top_k, each.num_draft_tokens) for each in grid.shapes()}
    assert {(1, 1, 1), (64, 1, 64), (1, 2, 2), (5, 16, 64)} <= sizes


def test_a_shape_that_is_given_twice_is_tried_once() -> None:
    twice = Grid(chains=(3, 3), depths=(2, 2), top_ks=(2, 2), nodes=(4, 4), p_mins=(0.0, 0.0))
    assert twice.shapes() == [DraftBudget.chain(3), DraftBudget(4, 2, 2)]


CHAINS = [DraftBudget.chain(length) for length in (2, 3, 4)]
TREES = [DraftBudget(*sides) for sides in ((3, 2, 2), (4, 2, 4), (6, 3, 2), (6, 3, 4), (8, 4, 4), (12, 4, 8))]


@pytest.mark.parametrize(
    ("best", "sentence"),
    [
        (CHAINS[2], "chain of 4 at T=0: nothing deeper was tried"),
        (CHAINS[0], "chain of 2 at T=0: nothing shallower was tried"),
        (TREES[0], "tree 2 x 2, 3 nodes at T=0: nothing shallower or smaller was tried"),
        (TREES[1], "tree 2 x 4, 4 nodes at T=0: nothing shallower was tried"),
        (TREES[5], "tree 4 x 8, 12 nodes at T=0: nothing deeper or wider or larger was tried"),
    ],
)
def test_the_best_that_is_at_an_end_of_what_was_tried_is_named(best: DraftBudget, sentence: str) -> None:
    rows = [ROW, row(CHAINS[1], 15.0), row(TREES[3], 18.0), row(best, 9.0, stage="trial")]
    assert at_the_edge(rows, CHAINS + TREES) == []
    assert at_the_edge([*rows, row(best, 20.0)], CHAINS + TREES) == [sentence]


def test_a_p_min_at_an_end_of_those_tried_is_named() -> None:
    shapes = [DraftBudget(6, 3, 2, p_min) for p_min in (0.0, 0.2, 0.4)] + [
        DraftBudget.chain(3, p_min) for p_min in (0.2, 0.4)
    ]
    assert at_the_edge([row(shapes[0], 9.0), row(shapes[1], 9.0)], shapes) == []  # below 0 there is nothing
    assert at_the_edge([row(shapes[2], 9.0)], shapes) == [
        "tree 3 x 2, 6 nodes, p_min 0.4 at T=0: nothing of a higher p_min was tried"
    ]
    assert at_the_edge([row(shapes[3], 9.0)], shapes) == [
        "chain of 3, p_min 0.2 at T=0: nothing of a lower p_min was tried"
    ]


def test_below_the_least_that_there_can_be_there_is_no_edge() -> None:
    shapes = [DraftBudget.chain(1), *CHAINS, DraftBudget(2, 1, 2), *TREES]
    assert at_the_edge([row(DraftBudget.chain(1), 20.0), row(DraftBudget(2, 1, 2), 20.0)], shapes) == []


def test_a_grid_of_one_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one chain and one tree"):
        Grid(chains=())


@pytest.fixture(scope="module")
def report(tiny_folder: Path):
    folder = str(tiny_folder)
    models = ModelPair(
        target=folder, draft=folder, quantization="none", dtype="float32", num_threads=1, max_model_len=512
    )
    plan = TreePlan(
        only=asdict(GRID) | {"p_mins": (0.0, 0.5)}, num_trial_prompts=1, num_prompts=2, max_tokens=8, num_repeats=2
    )
    return measure_tree(models, [own_prompts()], plan, lambda _what, _turns: None)


def test_the_device_is_the_one_that_is_given(tiny_folder: Path, capsys) -> None:
    told = ["--target", str(tiny_folder), "--draft", str(tiny_folder), "--device", "cudo"]
    assert run(["bench", "tree", *told, "--quick"]) == 2
    assert "device 'cudo' is unknown" in capsys.readouterr().err


def test_every_shape_is_tried_at_every_temperature_and_the_best_are_measured(report) -> None:
    assert [(each.stage, each.temperature) for each in report.rows] == [
        *[("trial", 0.0)] * 13,
        *[("final", 0.0)] * 4,
        *[("trial", 1.0)] * 13,
        *[("final", 1.0)] * 4,
    ]
    assert report.outputs_identical
    assert report.ratios.keys() == {
        "best_tree_vs_best_chain_t0",
        "best_tree_vs_best_chain_t1",
        "best_tree_vs_best_fixed_chain_t0",
        "best_tree_vs_best_fixed_chain_t1",
        "speculative_vs_plain",
        "speculative_vs_plain_t1",
        "head_step_vs_target_step",
        "step_with_features_vs_without",
    }
    steps = report.draft_step_ms, report.target_step_ms
    assert report.ratios["head_step_vs_target_step"] == pytest.approx(steps[0] / steps[1], rel=0.05)


def test_a_draft_that_is_its_target_is_accepted_as_deep_as_it_goes(report) -> None:
    by_shape = {each.shape: each for each in report.rows if each.stage == "trial" and each.temperature == 0.0}
    assert by_shape["plain"].acceptance_length is None
    assert by_shape["chain of 3"].acceptance_length > by_shape["chain of 1"].acceptance_length > 1.5
    assert by_shape["tree 3 x 2, 6 nodes"].acceptance_length > 2.5
    chain, tree = by_shape["chain of 3"], by_shape["tree 3 x 2, 6 nodes"]
    assert tree.bytes_per_accepted_token > chain.bytes_per_accepted_token > 10


def test_a_head_drafts_trees_whose_features_are_counted(headed: tuple[str, str]) -> None:
    target, head = headed
    models = ModelPair(
        target=target, draft=head, quantization="none", dtype="float32", num_threads=1, max_model_len=256
    )
    grid = Grid(chains=(1, 2), depths=(2,), top_ks=(2,), nodes=(3, 4), p_mins=(0.0,))
    plan = TreePlan(grid=grid, temperatures=(0.0,), num_trial_prompts=1, num_prompts=1, max_tokens=8, num_repeats=1)
    report = measure_tree(models, [own_prompts()], plan, lambda _what, _turns: None)
    assert report.outputs_identical
    for each in report.rows:
        if each.num_nodes:
            assert 1.5 < each.acceptance_length <= 2.0  # its first guess is right, all behind it are wrong
            assert each.bytes_per_accepted_token > 2 * 2 * 128  # bfloat16 features of the accepted token and the next


def test_the_picture_is_drawn(report, tmp_path: Path) -> None:
    path = tmp_path / "tree.png"
    draw(report.rows, path)
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("ending", [".svg", ".pdf"])
def test_the_picture_has_the_format_of_its_name(report, tmp_path: Path, ending: str) -> None:
    draw(report.rows, tmp_path / f"tree{ending}")
    assert {".svg": b"<svg", ".pdf": b"%PDF"}[ending] in (tmp_path / f"tree{ending}").read_bytes()


def test_a_picture_without_a_format_is_said_in_one_sentence(report, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ends with \.png, \.svg or \.pdf, not '.*tree\.foo'"):
        draw(report.rows, tmp_path / "tree.foo")
