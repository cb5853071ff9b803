"""The report of `bench tree` as the doctor reads it: its advice, and when it is refused or doubted."""

from dataclasses import replace
from pathlib import Path

import pytest

from starspec.config import ModelConfig, SpeculativeConfig
from starspec.config.speculative import DOUBT
from starspec.doctor.trees import advise_trees, check_same_models, check_tree_report, keys_of, read_tree_report
from starspec.errors import ConfigError
from starspec.harness.provenance import Provenance
from starspec.harness.report import Spread, write_report
from starspec.harness.tree_report import TreeReport, TreeRow
from starspec.speculation.budget import DraftBudget

HERE = Provenance(
    argv=[],
    date="2026-01-01",
    starspec_version="0",
    git_sha=None,
    has_local_changes=None,
    python="3",
    packages={},
    system="",
    cpu="a CPU",
    num_cores=2,
    num_threads=2,
    memory_gib=1.0,
    devices=[],
    models={"target": "a", "draft": "b"},
)


def row(temperature: float, rate: float, nodes: int = 0, steps: int = 0, top_k: int = 1) -> TreeRow:
    return TreeRow(
        stage="final",
        temperature=temperature,
        shape=f"{steps} x {top_k}, {nodes}" if nodes else "plain",
        num_steps=steps,
        eagle_topk=top_k,
        num_nodes=nodes,
        tokens_per_s=Spread(rate, rate, rate),
        vs_plain=rate / 10.0,
        acceptance_length=None,
        block_efficiency=None,
        bytes_per_accepted_token=None,
        num_same_as_plain=1,
        num_answers=1,
    )


TARGET = ModelConfig(model="a")
REPORT = TreeReport(
    provenance=HERE,
    rows=[row(0.0, 10.0), row(0.0, 12.0, 3, 3), row(0.0, 15.0, 6, 3, 2), row(1.0, 10.0), row(1.0, 9.0, 6, 3, 2)],
    ratios={},
    best={},
    losing=[],
    at_the_edge=[],
    draft_quantization="none",
    feature_layers=None,
    dtype="bfloat16",
    device="cpu",
    draft_step_ms=1.0,
    target_step_ms=10.0,
    outputs_identical=True,
    numerics="",
)


def test_the_best_of_each_temperature_is_recommended_in_keys_of_a_speculative_config(tmp_path: Path) -> None:
    write_report(REPORT, tmp_path / "tree.json")
    greedy, sampled = advise_trees(read_tree_report(tmp_path / "tree.json"))
    assert (greedy.shape, greedy.vs_plain) == ("3 x 2, 6", 1.5)
    assert SpeculativeConfig(**greedy.speculative_config).budget == DraftBudget(6, 3, 2, DOUBT, has_logprobs=True)
    assert sampled.speculative_config == {}


def test_a_chain_is_named_by_its_length() -> None:
    chain = row(0.0, 12.0, 3, 3)
    assert SpeculativeConfig(**keys_of(chain)).budget == DraftBudget.chain(3, DOUBT)
    assert SpeculativeConfig(**keys_of(replace(chain, p_min=0.2))).budget == DraftBudget.chain(3, 0.2)


def test_a_report_of_another_pair_or_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tree.json"
    with pytest.raises(ConfigError, match="cannot be read"):
        read_tree_report(path)
    for content in ('{"rows": []}', '{"a": ' + "[" * 20000):
        path.write_text(content)
        with pytest.raises(ConfigError, match="is not a report of `starspec bench tree`"):
            read_tree_report(path)
    write_report(REPORT, path)
    with pytest.raises(ConfigError, match="of another draft"):
        check_same_models(read_tree_report(path), path, {"target": "a", "draft": "c"})


def test_a_report_in_which_no_shape_was_compared_to_the_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tree.json"
    write_report(replace(REPORT, rows=[replace(each, stage="trial") for each in REPORT.rows]), path)
    with pytest.raises(ConfigError, match=r"is not a whole report.*: it has no final rows at T=0"):
        read_tree_report(path)


def test_a_report_of_other_circumstances_is_doubted() -> None:
    assert check_tree_report(REPORT, HERE, TARGET, "none", None).severity == "ok"
    doubted = check_tree_report(REPORT, replace(HERE, num_threads=1), TARGET, "int4", None)
    assert doubted.severity == "warning"
    assert "threads 2, here 1; draft quantization none, here int4" in doubted.sentence


@pytest.mark.parametrize(
    ("target", "layers", "sentence"),
    [
        (ModelConfig(model="a", dtype="float32"), None, "dtype bfloat16, here float32"),
        (ModelConfig(model="a", device="cuda"), None, "device cpu, here cuda"),
        (ModelConfig(model="a"), (1, 14, 26), "feature layers as the draft says, here 1,14,26"),
    ],
)
def test_a_report_of_another_precision_device_or_reading_is_doubted(
    target: ModelConfig, layers: tuple[int, ...] | None, sentence: str
) -> None:
    doubted = check_tree_report(REPORT, HERE, target, "none", layers)
    assert doubted.severity == "warning"
    assert sentence in doubted.sentence


def test_a_head_that_has_to_be_told_its_layers_is_told_them_with_the_tree() -> None:
    greedy, sampled = advise_trees(replace(REPORT, feature_layers=(1, 14, 26)))
    assert SpeculativeConfig(**greedy.speculative_config).feature_layers == (1, 14, 26)
    assert sampled.speculative_config == {}  # plain decoding
