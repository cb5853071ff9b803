"""`verify`, `doctor` and `bench`: what is printed, what is saved, how they exit."""

from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from tiny import make_model, save_with_tokenizer

from starspec.cli.measuring import show
from starspec.errors import ConfigError
from starspec.harness.table import Column, Table
from starspec.speculation.verify import VerifyResult

TARGET = "synthetic:vocab=128,step_ms=0"
DRAFT = "synthetic:vocab=128,step_ms=0,role=draft"
VERIFY = ("verify", "--target", TARGET, "--num-prompts", "4", "--max-tokens", "6", "--max-model-len", "256")


def test_verify_prints_the_comparison_and_saves_the_receipt(starspec, tmp_path: Path) -> None:
    receipt = tmp_path / "receipt.json"
    outcome = starspec(*VERIFY, "--draft", DRAFT, "--batch", "2", "--json", str(receipt))
    assert outcome.code == 0
    assert "identical: 36/36 answers (promised)" in outcome.out
    assert "numerics: a synthetic model is exact" in outcome.out
    content = msgspec.json.decode(receipt.read_bytes())
    assert content["is_identical"]
    assert content["provenance"]["models"] == {"target": "synthetic", "draft": "synthetic"}
    assert {row["sampling"] for row in content["rows"]} == {"greedy", "T=0.7", "T=1, top-p 0.9"}
    assert all(row["output_sha256"] and row["exact_match_rate"] == 1.0 for row in content["rows"])


def test_verify_takes_prompts_of_a_file(starspec, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    num_prompts = int(VERIFY[VERIFY.index("--num-prompts") + 1])
    prompts.write_text('{"turns": ["bipa bigu"]}\n' * num_prompts)
    outcome = starspec(*VERIFY, "--spec-method", "ngram", "--batch", "1", "--prompts", str(prompts))
    assert outcome.code == 0
    assert f"identical: {3 * num_prompts}/{3 * num_prompts}" in outcome.out


def test_verify_exits_1_and_says_where_if_a_promise_is_broken(starspec, monkeypatch: pytest.MonkeyPatch) -> None:
    from starspec.windows import judging

    verify_trees = judging.verify_trees

    def believe(trees, logits, *arguments):
        """Take a proposal of four tokens for the truth."""
        verdicts = verify_trees(trees, logits, *arguments)
        return [
            VerifyResult((0, 1, 2, 3), (*tree.token_ids, 9)) if tree.num_draft_tokens == 4 else verdict
            for tree, verdict in zip(trees, verdicts, strict=True)
        ]

    monkeypatch.setattr(judging, "verify_trees", believe)
    outcome = starspec(*VERIFY, "--draft", DRAFT, "--batch", "1")
    assert outcome.code == 1
    assert "greedy, draft, batch 1: first divergence in prompt own/" in outcome.out
    assert "found, logit gap" in outcome.out
    assert "answers (promised)" in outcome.out
    assert "answers differ although these settings promise that none does" in outcome.out
    assert "answers differ at tokens that are not a near-tie" in outcome.out

    measured = ("--methods", "ragged,plain", "--batch-sizes", "1", "--num-prompts", "2", "--max-tokens", "8")
    words = ("--num-draft-tokens", "4", "--repeats", "1", "--num-threads", "1", "--draft-quantization", "none")
    outcome = starspec("bench", "batch", "--target", TARGET, "--draft", DRAFT, *measured, *words)
    assert outcome.code == 1
    said = outcome.out.replace("\n", " ")
    assert "ragged at batch 1: answers differ although these settings promise that none does" in said
    assert "plain at batch 1" not in said


def test_verify_of_a_rule_that_keeps_no_tokens_says_so(starspec) -> None:
    words = '{"rejection_sample_method": "rejection"}'
    outcome = starspec(*VERIFY, "--draft", DRAFT, "--speculative-config", words)
    assert outcome.code == 2
    assert "'rejection' keeps the distribution of answers, not their tokens" in outcome.err


def test_verify_without_drafts_is_told_what_to_give(starspec) -> None:
    outcome = starspec(*VERIFY)
    assert outcome.code == 2
    assert outcome.err.count("\n") == 1
    assert "give --draft, or --spec-method ngram" in outcome.err


def test_doctor_prints_a_forecast_and_saves_it(starspec, tmp_path: Path) -> None:
    path = tmp_path / "doctor.json"
    arguments = ("--num-prompts", "2", "--max-tokens", "12", "--max-draft-tokens", "3", "--json", str(path))
    outcome = starspec("doctor", "--target", "synthetic:step_ms=5", "--draft", "synthetic:role=draft", *arguments)
    assert outcome.code == 0
    assert "the same ids in both" in outcome.out
    assert "expected speed-up" in outcome.out
    assert "do not speculate, this draft does not pay here" in outcome.out  # a draft step takes 20 ms by default
    content = msgspec.json.decode(path.read_bytes())
    assert len(content["prospects"]) == 2
    said = " ".join(outcome.out.split())
    for each in content["prospects"]:
        assert f"positions (beta, the sum of min(p, q), is {each['beta']:.0%})" in said
    assert content["times"]["verify_s"][0] >= 0.005


def test_doctor_says_which_layers_a_head_reads_and_which_tree_was_the_best(starspec, tmp_path: Path) -> None:
    from predictable import write_reader, write_target

    target, head = write_target(tmp_path / "target"), write_reader(tmp_path / "head", feature_layers=(0,))
    pair = ("--target", str(target), "--draft", str(head), "--dtype", "float32", "--num-threads", "1")
    report = write_tree_report(tmp_path / "tree.json", {"target": str(target), "draft": str(head)})
    measure = ("--num-prompts", "1", "--max-tokens", "12", "--max-draft-tokens", "2", "--tree-report", str(report))
    outcome = starspec("doctor", *pair, *measure)
    text = " ".join(outcome.out.split())
    assert outcome.code == 0
    assert "a head of method eagle3" in text
    assert 'put "feature_layers": [1] into --speculative-config' in text
    assert "its vocabulary holds the token at 100.0%" in text
    assert 'bench tree at T=0: tree 2 x 2, 4 nodes, 1.50x plain: --speculative-config \'{"num_steps": 2' in text


def write_tree_report(path: Path, models: dict[str, str]) -> Path:
    from starspec.harness.provenance import collect_provenance
    from starspec.harness.report import Spread, write_report
    from starspec.harness.tree_report import TreeReport, TreeRow

    best = TreeRow(
        stage="final",
        temperature=0.0,
        shape="tree 2 x 2, 4 nodes",
        num_steps=2,
        eagle_topk=2,
        num_nodes=4,
        tokens_per_s=Spread(15.0, 15.0, 15.0),
        vs_plain=1.5,
        acceptance_length=2.0,
        block_efficiency=2.0,
        bytes_per_accepted_token=600.0,
        num_same_as_plain=1,
        num_answers=1,
    )
    report = TreeReport(
        provenance=collect_provenance(models),
        rows=[best],
        ratios={},
        best={"T=0": best.shape},
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
    write_report(report, path)
    return path


def test_doctor_exits_1_for_two_vocabularies(starspec) -> None:
    outcome = starspec("doctor", "--target", TARGET, "--draft", "synthetic:vocab=256,role=draft")
    assert outcome.code == 1
    assert "These two cannot be used together." in outcome.out
    assert "128 tokens against 256" in outcome.out.replace("\n", " ")


def test_certify_of_a_missing_model_is_one_sentence(starspec) -> None:
    outcome = starspec("bench", "certify", "--model", "./nowhere")
    assert outcome.code == 2
    assert "nowhere" in outcome.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("part", "unused"),
    [
        ("exact", "--head, --target, --draft"),
        ("head-bits", "--target, --draft"),
        ("batch-pair", "--model, --head"),
    ],
)
def test_certify_says_which_models_its_part_does_not_use(part: str, unused: str, starspec, monkeypatch) -> None:
    from starspec.bench import certify

    def find(*_: object) -> None:
        raise ConfigError("it is enough")

    for check in ("check_models", "check_names_a_head"):
        monkeypatch.setattr(import_module("starspec.cli.bench_certify"), check, lambda *_: None)
    monkeypatch.setattr(certify, "certify", find)
    words = ("--model", "a", "--head", "b", "--target", "c", "--draft", "d")
    first, *_, last = starspec("bench", "certify", *words, "--part", part).err.splitlines()
    assert (first, last) == (f"bench certify: --part {part} does not use {unused}", "starspec: it is enough")
    assert "does not use" not in starspec("bench", "certify", *words).err


def test_bench_batch_saves_rows_ratios_and_figures_and_verify_takes_the_methods(starspec, tmp_path: Path) -> None:
    from predictable import write_target

    model = str(write_target(tmp_path / "target"))
    json_file, png_file = tmp_path / "batch.json", tmp_path / "batch.png"
    outcome = starspec(
        *("bench", "batch", "--target", model, "--draft", model, "--draft-quantization", "none", "--dtype", "float32"),
        *("--batch-sizes", "1,2,5", "--num-prompts", "3", "--max-tokens", "4", "--repeats", "1", "--num-threads", "1"),
        *("--same-length", "--load", "0.5", "--json", str(json_file), "--png", str(png_file)),
    )
    assert outcome.code == 0
    assert "ragged_vs_eqspec_without_realign: batch 1" in outcome.out
    content = msgspec.json.decode(json_file.read_bytes())
    (num_prompts,) = {row["num_answers"] for row in content["rows"]}
    said = f"{num_prompts} prompts were answered, so that batches of 5 never held as many sequences; --same-length"
    assert said in outcome.out.replace("\n", " ")
    assert {row["sequences_per_round"] for row in content["rows"] if row["batch_size"] == 1} == {1.0}
    assert {row["method"] for row in content["rows"]} == {"ragged", "eqspec", "exspec", "rollback", "plain"}
    assert {row["exact_match"] for row in content["rows"]} == {1.0}
    assert content["ratios"]["ragged_vs_exspec"].keys() == {"1", "2", "5"}
    assert png_file.exists()

    receipt = tmp_path / "receipt.json"
    outcome = starspec(
        *("verify", "--target", model, "--draft", model, "--dtype", "float32", "--batch", "3", "--num-threads", "1"),
        *("--num-prompts", "4", "--max-tokens", "4", "--batching", "ragged,eqspec,exspec,rollback"),
        *("--max-model-len", "256", "--json", str(receipt)),
    )
    assert outcome.code == 0
    rows = msgspec.json.decode(receipt.read_bytes())["rows"]
    assert {row["batching"] for row in rows} == {"ragged", "eqspec", "exspec", "rollback"}
    assert all(row["exact_match_rate"] == row["partial_match_rate"] == 1.0 for row in rows)


UNPACKED = ("--draft-quantization", "none")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("verify", "--target", TARGET, "--draft", DRAFT, "--batching", "padded"), "batching"),
        (("verify", "--target", TARGET, "--draft", DRAFT, "--batching", "eqspec"), "needs a model with weights"),
        (
            ("bench", "batch", "--target", TARGET, "--draft", DRAFT, *UNPACKED, "--methods", "dsd"),
            "is not one of ragged",
        ),
        (
            ("bench", "batch", "--target", TARGET, "--draft", DRAFT, *UNPACKED, "--methods", "eqspek"),
            "plain-fast; did you mean 'eqspec'?",
        ),
        (
            ("bench", "batch", "--target", TARGET, "--draft", DRAFT, "--methods", "ragged,plain", "--window", "3"),
            "--window, --max-passed-over and --min-group are for exspec, which is not among --methods",
        ),
        (("bench", "batch", "--target", TARGET, "--draft", DRAFT, "--batch-sizes", "two"), "--batch-sizes"),
    ],
)
def test_a_way_of_batching_that_cannot_be_is_one_sentence(arguments, sentence, starspec) -> None:
    outcome = starspec(*arguments)
    assert outcome.code == 2
    assert sentence in outcome.err


@pytest.mark.parametrize("quick", [True, False])
def test_figures_of_a_quick_measurement_come_with_a_caution(quick: bool, starspec, tmp_path: Path) -> None:
    from predictable import write_target

    model = str(write_target(tmp_path / "target"))
    size = ("--quick",) if quick else ("--batch-sizes", "1", "--num-prompts", "1", "--max-tokens", "2")
    outcome = starspec(
        *("bench", "batch", "--target", model, "--draft", model, "--draft-quantization", "none", "--dtype", "float32"),
        *("--methods", "ragged,plain", "--repeats", "1", "--num-threads", "1", *size),
    )
    assert outcome.code == 0
    text = outcome.out.replace("\n", " ")
    assert text.count("--quick: one repeat of little work, so figures and ratios may be chance") == quick


def test_a_quick_bench_tree_says_that_its_ratios_may_be_chance(starspec) -> None:
    grid = ("--chains", "2", "--depths", "2", "--top-ks", "2", "--nodes", "3", "--p-mins", "0")
    pair = ("--target", TARGET, "--draft", DRAFT, "--draft-quantization", "none", "--num-threads", "1")
    outcome = starspec("bench", "tree", *pair, *grid, "--quick", "--temperatures", "0.5")
    assert outcome.code == 0
    assert "--quick: one repeat of little work" in outcome.out
    assert "best at T=0.5" in outcome.out
    assert "best at T=1" not in outcome.out


def test_names_in_tables_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [SimpleNamespace(name=name) for name in ("target [/x]", "[bold]", ":star:")]
    show([Table("of [a]", [Column("name", "name")], rows)])
    out = capsys.readouterr().out
    assert [each for each in ("of [a]", "target [/x]", "[bold]", ":star:") if each not in out] == []


MEASURES = {  # what measures in benchmarks that know all their turns before
    "shard": ("starspec.bench.shard.synthetic", "measure_shard"),
    "wire": ("starspec.bench.wire.measure", "measure_wire"),
    "faults": ("starspec.bench.faults", "measure_faults"),
    "watch": ("starspec.bench.watch", "measure_watch"),
    "star": ("starspec.bench.star.measure", "measure_star"),
    "async": ("starspec.bench.star.async_pair", "measure_async"),
}


@pytest.mark.parametrize("command", MEASURES)
def test_every_benchmark_says_how_far_it_is(command: str, starspec, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(*arguments: object) -> None:
        advance = arguments[-1]
        assert callable(advance)
        advance("the first of several steps")
        raise ConfigError("it is enough")

    module, name = MEASURES[command]
    monkeypatch.setattr(import_module(module), name, measure)
    pair = ("--target", TARGET, "--draft", DRAFT, "--draft-quantization", "none")
    outcome = starspec("bench", command, *(pair if command in ("faults", "watch") else ()))
    first, *_ = outcome.err.splitlines()
    assert first.startswith(f"bench {command}: ")
    assert first.endswith(", 0%")
    assert outcome.code == 2


@pytest.mark.parametrize("command", ["pair", "tree", "wire", "certify"])
def test_every_measurement_has_a_quick_form_and_a_file(command: str, starspec) -> None:
    outcome = starspec("bench", command, "--help")
    assert outcome.code == 0
    assert "--quick" in outcome.out
    assert "--json" in outcome.out


@pytest.mark.parametrize("command", ["verify", "doctor", "bench warm"])
def test_the_stages_of_loading_are_shown(command: str, starspec, tmp_path: Path) -> None:
    folder = str(save_with_tokenizer(make_model(), tmp_path / "tiny"))
    pair = ("--target", folder, "--draft", folder, "--numerics", "fast", "--num-prompts", "1", "--max-tokens", "2")
    words = ("--draft", folder, "--quick") if command == "bench warm" else pair
    said = starspec(*command.split(), *words, "--num-threads", "1").err
    assert f"{command}: reading tiny" in said
    assert f"{command}: packing tiny, 0%" in said
