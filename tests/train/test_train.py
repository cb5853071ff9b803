"""`starspec train` from prompts to a checkpoint that is read again, and what it says about bad data."""

from __future__ import annotations

import json

import pytest
import torch
from train_toys import write_prompts

from starspec.cli import run
from starspec.models.eagle_checkpoint import read_head
from starspec.train.answers import read_answers

QUICK = ["--num-tokens", "400", "--max-new-tokens", "16", "--batch", "8", "--steps", "6", "--num-threads", "1"]


def train(target, prompts, out, *more):
    return run(["train", "--target", str(target), "--prompts", str(prompts), "--out", str(out), *QUICK, *more])


@pytest.mark.parametrize(("method", "layers"), [("eagle", (6,)), ("eagle3", (1, 3, 5))])
def test_prompts_become_a_head(target_folder, prompt_file, tmp_path, method, layers):
    out, report_file = tmp_path / "head", tmp_path / "report.json"
    options = ["--method", method, "--draft-vocab-size", "64", "--json", str(report_file), "--licence", "our own"]
    options += ["--feature-layers", ",".join(map(str, layers))]
    assert train(target_folder, prompt_file, out, *options) == 0
    head = read_head(out)
    assert head.spec.method == method
    assert head.spec.feature_layers == layers
    assert head.spec.draft_vocab_size == (64 if method == "eagle3" else 260)
    assert not {"lm_head.weight", "embed_tokens.weight"} & head.tensors.keys()
    report = json.loads(report_file.read_text())
    assert (report["steps"], report["data_licence"]) == (6, "our own")
    assert report["held_out_chain"]["num_rounds"] > 0
    card = (out / "README.md").read_text()
    assert "our own" in card
    assert (out / "training.png").stat().st_size > 1000


def test_an_earlier_training_is_gone_on_with(target_folder, prompt_file, tmp_path, capsys):
    out = tmp_path / "head"
    assert train(target_folder, prompt_file, out) == 0
    answers = read_answers(out / "work" / "answers")
    assert train(target_folder, prompt_file, out, "--steps", "9") == 0
    assert "9 steps" in capsys.readouterr().out
    assert read_answers(out / "work" / "answers") == answers


def test_prompts_are_learnt_from_when_asked_for(target_folder, prompt_file, tmp_path):
    reports = [tmp_path / "answers.json", tmp_path / "prompts.json"]
    for report, more in zip(reports, ([], ["--learn-prompts"]), strict=True):
        out = tmp_path / report.stem
        assert train(target_folder, prompt_file, out, "--json", str(report), *more) == 0
    alone, both = (json.loads(report.read_text()) for report in reports)
    assert both["num_positions"] > 1.2 * alone["num_positions"]
    assert both["held_out_chain"]["num_tokens"] == alone["held_out_chain"]["num_tokens"]


def test_a_trained_head_is_started_from(target_folder, prompt_file, tmp_path, capsys):
    first, second = tmp_path / "first", tmp_path / "second"
    assert train(target_folder, prompt_file, first, "--draft-vocab-size", "64") == 0
    more = ["--start-from", str(first), "--draft-vocab-size", "32", "--learning-rate", "0"]
    assert train(target_folder, prompt_file, second, *more) == 0
    before, after = read_head(first).tensors, read_head(second).tensors
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert str(first) in (second / "README.md").read_text()
    other = train(target_folder, prompt_file, tmp_path / "third", "--start-from", str(first), "--method", "eagle")
    assert other == 2
    assert "its method is eagle3, here it is eagle" in capsys.readouterr().err.replace("\n", " ")


def test_half_a_line_is_passed_over(tmp_path):
    file = tmp_path / "worker-0.jsonl"
    file.write_text('{"index": 3, "prompt_ids": [1], "answer_ids": [2, 3]}\n{"index": 4, "prompt_i')
    assert [answer.index for answer in read_answers(tmp_path)] == [3]


def test_work_of_other_prompts_is_not_taken_up(target_folder, prompt_file, tmp_path, capsys):
    out = tmp_path / "head"
    assert train(target_folder, prompt_file, out) == 0
    other = write_prompts(tmp_path / "other.jsonl", ["Hello?"] * 3)
    assert train(target_folder, other, out) == 2
    assert "another prompts" in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "cannot be read"),
        ("", "there are none in it"),
        ("no JSON\n", "line 1"),
        ('{"text": "no turns"}\n', "line 1"),
        (json.dumps({"turns": ["far too long " * 60]}), "none of the 1 prompts is at most"),
        (json.dumps({"turns": ["Hello?"]}), "too few answers"),
    ],
)
def test_bad_data_is_one_sentence(target_folder, tmp_path, capsys, content, complaint):
    prompts = tmp_path / "prompts.jsonl"
    if content is not None:
        prompts.write_text(content)
    assert train(target_folder, prompts, tmp_path / "head") == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("starspec: ")
    assert complaint in error


def test_layers_that_the_target_does_not_have(target_folder, prompt_file, tmp_path, capsys):
    assert train(target_folder, prompt_file, tmp_path / "head", "--feature-layers", "2,3,40") == 2
    assert "this target has 0 (embeddings) to 6" in capsys.readouterr().err
