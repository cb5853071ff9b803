"""`starspec train` from prompts to a checkpoint that is read again, and what it says about bad data."""

from __future__ import annotations

import fcntl
import json
import shutil
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from train_toys import HIDDEN, train, write_prompts
from transformers import GPT2Config, GPT2LMHeadModel, GraniteConfig, GraniteForCausalLM

from starspec.errors import ConfigError
from starspec.harness.provenance import hash_model
from starspec.models.heads.checkpoint import read_head
from starspec.train import pipeline
from starspec.train.answer_files import SaidTokens, read_answers
from starspec.train.evaluate import split
from starspec.train.features import load_target, read_shard
from starspec.train.start import frequent_tokens
from starspec.train.trainer import Trainer


@pytest.mark.parametrize(("method", "layers"), [("eagle", (6,)), ("eagle3", (1, 3, 5))])
def test_prompts_become_a_head(target_folder, prompt_file, tmp_path, method, layers):
    out, report_file = tmp_path / "head", tmp_path / "report.json"
    options = ["--method", method, "--json", str(report_file), "--licence", "our own"]
    options += ["--feature-layers", ",".join(map(str, layers))]
    options += ["--draft-vocab-size", "64"] if method == "eagle3" else []
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
    answers, first = list(read_answers(out / "work" / "answers")), report_of(out)
    assert train(target_folder, prompt_file, out, "--steps", "9", "--save-every", "4") == 0
    assert "9 steps" in capsys.readouterr().out
    assert list(read_answers(out / "work" / "answers")) == answers
    second = report_of(out)
    assert [step for step, _ in first["curve"]] == [6]
    assert [step for step, _ in second["curve"]] == [6, 8, 9]  # of every fourth, and of the last
    assert second["curve"][0] == first["curve"][0]
    assert second["lessons"] == first["lessons"]  # the same answers at the same rate


def report_of(head):
    return json.loads((head / "provenance.json").read_text())


def test_the_card_of_a_training_that_went_on_tells_what_was_learnt_from_which_step_on(
    target_folder, prompt_file, tmp_path
):
    out = tmp_path / "head"
    assert train(target_folder, prompt_file, out, "--num-tokens", "200") == 0
    assert "from step" not in (out / "README.md").read_text()
    before = report_of(out)
    assert train(target_folder, prompt_file, out, "--num-tokens", "500") == 0  # nothing more was learnt
    assert report_of(out)["lessons"] == before["lessons"]
    assert report_of(out)["num_answer_tokens"] > before["num_answer_tokens"]
    assert train(target_folder, prompt_file, out, "--num-tokens", "500", "--steps", "8", "--learning-rate", "1e-4") == 0
    first, second = report_of(out)["lessons"]
    assert [first] == before["lessons"]
    assert (first["first_step"], second["first_step"], second["learning_rate"]) == (0, 6, 1e-4)
    assert (second["num_answer_tokens"], second["answers_sha256"]) == (
        report_of(out)["num_answer_tokens"],
        report_of(out)["answers_sha256"],
    )
    card = (out / "README.md").read_text()
    assert f"| from step 0 | {first['num_answer_tokens']:,} tokens" in card
    assert f"| from step 6 | {second['num_answer_tokens']:,} tokens of answers, learning rate 0.0001 |" in card


def test_a_training_is_not_gone_on_with_in_batches_of_another_size(target_folder, prompt_file, tmp_path, capsys):
    """It goes on behind the batches that it has had."""
    assert train(target_folder, prompt_file, tmp_path / "head") == 0
    assert train(target_folder, prompt_file, tmp_path / "head", "--batch-tokens", "512") == 2
    assert "another batch tokens" in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize(("dtype", "casts"), [("float32", False), ("bfloat16", True)])
def test_a_training_computes_in_the_number_format_that_was_asked_for(
    target_folder, prompt_file, tmp_path, dtype, casts
):
    assert train(target_folder, prompt_file, tmp_path / "head", "--dtype", dtype) == 0
    assert report_of(tmp_path / "head")["plan"]["bf16"] is casts


def test_prompts_are_learnt_from_when_asked_for(target_folder, prompt_file, tmp_path):
    reports = [tmp_path / "answers.json", tmp_path / "prompts.json"]
    for report, more in zip(reports, ([], ["--learn-prompts"]), strict=True):
        out = tmp_path / report.stem
        assert train(target_folder, prompt_file, out, "--json", str(report), *more) == 0
    alone, both = (json.loads(report.read_text()) for report in reports)
    assert both["num_positions"] > 1.2 * alone["num_positions"]
    assert both["held_out_chain"]["num_tokens"] == alone["held_out_chain"]["num_tokens"]


def test_a_trained_head_is_started_from(target_folder, prompt_file, tmp_path, capsys, monkeypatch):
    first, second = tmp_path / "first", tmp_path / "second"
    assert train(target_folder, prompt_file, first, "--draft-vocab-size", "64") == 0
    more = ["--start-from", str(first), "--draft-vocab-size", "32"]
    monkeypatch.setattr(Trainer, "_cosine", lambda _: 0.0)  # nothing is learnt
    assert train(target_folder, prompt_file, second, *more) == 0
    before, after = read_head(first).tensors, read_head(second).tensors
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert str(first) in (second / "README.md").read_text()
    other = train(target_folder, prompt_file, tmp_path / "third", "--start-from", str(first), "--method", "eagle")
    assert other == 2
    assert "its method is eagle3, here it is eagle" in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize(
    ("name", "shape", "sentence"),
    [
        ("lm_head.weight", (64, HIDDEN), "it has an LM head of its own, which is not trained here"),
        ("fc.bias", (HIDDEN,), "it has a bias of fc, which is not trained here"),
        ("embed_tokens.weight", (260, HIDDEN), "its embedding is not its target's"),
    ],
)
def test_a_head_with_weights_that_are_not_trained_is_not_started_from(
    name, shape, sentence, target_folder, prompt_file, tmp_path, capsys
):
    first = tmp_path / "first"
    assert train(target_folder, prompt_file, first, "--draft-vocab-size", "64") == 0
    weights = load_file(first / "model.safetensors")
    save_file(weights | {name: torch.zeros(shape, dtype=torch.bfloat16)}, first / "model.safetensors")
    assert train(target_folder, prompt_file, tmp_path / "second", "--start-from", str(first)) == 2
    assert sentence in capsys.readouterr().err.replace("\n", " ")


def test_a_head_whose_files_repeat_the_targets_embedding_is_started_from(target_folder, prompt_file, tmp_path):
    first = tmp_path / "first"
    assert train(target_folder, prompt_file, first, "--draft-vocab-size", "64") == 0
    weights = load_file(first / "model.safetensors")
    weights["embed_tokens.weight"] = load_target(str(target_folder)).embedding.clone()
    save_file(weights, first / "model.safetensors")
    assert train(target_folder, prompt_file, tmp_path / "second", "--start-from", str(first)) == 0


def test_what_a_head_is_measured_on_does_not_choose_its_vocabulary(target_folder, prompt_file, tmp_path, monkeypatch):
    found = {}

    def split_and_tell(*args):
        found["held out"], found["learnt"] = split(*args)
        return found["held out"], found["learnt"]

    def choose(answers, *rest):
        found["chosen from"] = [answer.index for answer in answers]
        return frequent_tokens(answers, *rest)

    monkeypatch.setattr(pipeline, "split", split_and_tell)
    monkeypatch.setattr(pipeline, "frequent_tokens", choose)
    assert train(target_folder, prompt_file, tmp_path / "head", "--draft-vocab-size", "64") == 0
    assert found["held out"]
    assert found["chosen from"] == [text.index for text in found["learnt"]]


def test_half_a_line_is_passed_over(tmp_path):
    file = tmp_path / "worker-0.jsonl"
    file.write_text('{"index": 3, "prompt_ids": [1], "answer_ids": [2, 3]}\n{"index": 4, "prompt_i')
    assert [answer.index for answer in read_answers(tmp_path)] == [3]


def test_answers_are_read_when_they_are_looked_at(tmp_path):
    answer = '{"index": %d, "prompt_ids": [1], "answer_ids": %s}\n'
    lines = [answer % (index, [7] * (index % 3)) for index in range(9)]
    for number in range(2):
        (tmp_path / f"worker-{number}.jsonl").write_text("".join(lines[8 - number :: -2]))
    answers = read_answers(tmp_path, min_tokens=1)
    assert answers.indices == [answer.index for answer in answers] == [1, 2, 4, 5, 7, 8]
    assert [answer.index for answer in answers[1:4]] == [2, 4, 5]
    assert answers[-1].answer_ids == [7, 7]
    for path in tmp_path.iterdir():  # a place is all that was kept
        path.write_text(path.read_text().replace("7,", "9,").replace("7]", "9]"))
    assert answers[-1].token_ids == [1, 9, 9]
    changed = tmp_path / "worker-0.jsonl"
    for content in (changed.read_text()[:20], changed.read_text().replace('"index": 8', '"index": 6')):
        changed.write_text(content)
        with pytest.raises(ConfigError, match=r"worker-0\.jsonl' was changed"):
            _ = answers[-1]
    changed.unlink()
    with pytest.raises(ConfigError, match="cannot be read any more"):
        _ = answers[-1]


def test_of_two_answers_to_a_prompt_one_counts(tmp_path):
    answer = '{"index": %d, "prompt_ids": [1], "answer_ids": [2, 3]}\n'
    (tmp_path / "worker-0.jsonl").write_text(answer % 3 + answer % 5)
    (tmp_path / "worker-1.jsonl").write_text(answer % 4 + answer % 3)
    assert [answer.index for answer in read_answers(tmp_path)] == [3, 4, 5]
    assert SaidTokens(tmp_path).count() == 6


def test_tokens_are_counted_once_however_often_and_in_what_pieces_answers_are_looked_at(tmp_path):
    content = b"".join(b'{"index": %d, "prompt_ids": [1], "answer_ids": [2, 3]}\n' % index for index in range(9))
    content += b'{"index": 3, "prom\n{"index": 9, "prompt_ids": [1], "answer_ids": [4]}\n'
    file, said = tmp_path / "worker-0.jsonl", SaidTokens(tmp_path)
    assert said.count() == 0
    found = []
    for start in range(0, len(content), 40):
        with file.open("ab") as appended:
            appended.write(content[start : start + 40])
        found.append(said.count())
    assert found == sorted(found)
    assert found[-1] == said.count() == SaidTokens(tmp_path).count() == 19


def test_nothing_is_put_into_a_file_that_another_process_writes_to(target_folder, prompt_file, tmp_path):
    answers = tmp_path / "head" / "work" / "answers"
    answers.mkdir(parents=True)
    with (answers / "worker-0.jsonl").open("wb") as others:
        fcntl.flock(others, fcntl.LOCK_EX)
        others.write(b'{"index": 3, "prompt_i')
        others.flush()
        assert train(target_folder, prompt_file, tmp_path / "head") == 0
    assert (answers / "worker-0.jsonl").read_bytes() == b'{"index": 3, "prompt_i'
    assert read_answers(answers)


def test_a_repeated_prompt_is_left_out_and_so_never_both_learnt_and_held_out(
    target_folder, prompt_file, tmp_path, capsys
):
    out, report_file = tmp_path / "head", tmp_path / "report.json"
    prompt_file.write_text(prompt_file.read_text() * 2)
    more = ["--num-tokens", "2000", "--json", str(report_file)]  # all prompts are answered
    assert train(target_folder, prompt_file, out, *more) == 0
    asked = [tuple(answer.prompt_ids) for answer in read_answers(out / "work" / "answers")]
    assert len(asked) == len(set(asked)) == 40
    report = json.loads(report_file.read_text())
    assert (report["num_prompts"], report["num_repeated_prompts"]) == (40, 40)
    assert "40 prompts repeat the text of an earlier one and were left out" in capsys.readouterr().out


def test_work_of_other_prompts_is_not_taken_up(target_folder, prompt_file, tmp_path, capsys):
    out = tmp_path / "head"
    assert train(target_folder, prompt_file, out) == 0
    other = write_prompts(tmp_path / "other.jsonl", ["Hello?"] * 3)
    assert train(target_folder, other, out) == 2
    assert "another prompts" in capsys.readouterr().err.replace("\n", " ")


def test_answers_of_another_precision_are_not_gone_on_with(target_folder, prompt_file, tmp_path, capsys):
    assert train(target_folder, prompt_file, tmp_path / "head") == 0
    assert train(target_folder, prompt_file, tmp_path / "head", "--dtype", "float32") == 2
    assert "another dtype" in capsys.readouterr().err.replace("\n", " ")


def scale_weights(folder):
    weights = load_file(folder / "model.safetensors")
    save_file({name: 0.9 * weight for name, weight in weights.items()}, folder / "model.safetensors", {"format": "pt"})


def test_work_of_other_weights_at_the_same_path_is_not_taken_up(target_folder, prompt_file, tmp_path, capsys):
    target, out = shutil.copytree(target_folder, tmp_path / "target"), tmp_path / "head"
    assert train(target, prompt_file, out) == 0
    scale_weights(target)
    assert train(target, prompt_file, out) == 2
    assert "answers' is of a training with another content of the target" in capsys.readouterr().err


def test_a_training_that_began_with_other_weights_at_the_same_path_is_not_gone_on_with(
    target_folder, prompt_file, tmp_path, capsys
):
    first, second = tmp_path / "first", tmp_path / "second"
    assert train(target_folder, prompt_file, first) == 0
    assert train(target_folder, prompt_file, second, "--start-from", str(first)) == 0
    assert train(target_folder, prompt_file, first) == 0  # the same head with the card of another day
    assert train(target_folder, prompt_file, second, "--start-from", str(first)) == 0
    scale_weights(first)
    assert train(target_folder, prompt_file, second, "--start-from", str(first)) == 2
    assert "state' is of a training with another content of the head started from" in capsys.readouterr().err


def test_the_receipt_names_the_target_that_was_learnt_from(target_folder, prompt_file, tmp_path):
    assert train(target_folder, prompt_file, tmp_path / "head") == 0
    provenance = json.loads((tmp_path / "head" / "provenance.json").read_text())["provenance"]
    assert provenance["models"] == {"target": hash_model(str(target_folder))}


def test_a_head_is_not_started_from_where_it_would_be_replaced(target_folder, prompt_file, tmp_path, capsys):
    out = tmp_path / "head"
    assert train(target_folder, prompt_file, out) == 0
    assert train(target_folder, prompt_file, out, "--start-from", str(out)) == 2
    assert "cannot be both started from and renewed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "cannot be read"),
        ("", "there are none in it"),
        ("no JSON\n", "line 1"),
        ('{"text": "no turns"}\n', "line 1"),
        (json.dumps({"turns": ["far too long " * 60]}), "none of the 1 prompts is 1 to"),
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
    assert (tmp_path / "head").exists() == (complaint == "too few answers")


def test_an_empty_prompt_among_others_is_passed_over(target_folder, prompt_file, tmp_path):
    empty = json.dumps({"turns": [""], "category": "plain"}) + "\n"  # to be continued: no template makes it longer
    prompt_file.write_text(empty + prompt_file.read_text())
    assert train(target_folder, prompt_file, tmp_path / "head") == 0
    answers = read_answers(tmp_path / "head" / "work" / "answers")
    assert [answer.index for answer in answers] == list(range(1, 1 + len(answers)))


def test_with_more_tokens_what_was_said_before_is_kept_and_read_anew_where_it_has_to_be(
    target_folder, tmp_path, monkeypatch
):
    monkeypatch.setattr("starspec.train.features.SHARD_TEXTS", 7)
    prompts = write_prompts(tmp_path / "prompts.jsonl", [f"What is {number}?" for number in range(300)])
    out = tmp_path / "head"
    assert train(target_folder, prompts, out, "--num-tokens", "60") == 0
    few = read_answers(out / "work" / "answers")
    assert len(few) % 7  # the last shard is not full
    assert train(target_folder, prompts, out, "--num-tokens", "3000", "--steps", "7") == 0
    answers = read_answers(out / "work" / "answers")
    assert len(answers) > len(few)
    texts = [text for shard in sorted((out / "work" / "features").glob("*.safetensors")) for text in read_shard(shard)]
    assert [text.token_ids.tolist() for text in texts] == [each.token_ids for each in answers if each.answer_ids[1:]]


@pytest.mark.parametrize(
    ("mistake", "complaint"),
    [
        (["--feature-layers", "2,3,40"], "this target has 0 (embeddings) to 6"),
        (["--feature-layers", "3,2"], "should be increasing"),
        (["--feature-layers", "2,3", "--method", "eagle"], "an EAGLE-1 head takes one hidden state as input"),
        (["--feature-layers", "3", "--method", "eagle"], "an EAGLE-1 head learns to predict the last, 6"),
        (["--start-from", "nowhere"], "nowhere"),
        (["--max-new-tokens", "600"], "leave no room for a prompt in 512"),
        (["--learning-rate", "-1"], "--learning-rate"),
        (["--learning-rate", "0"], "--learning-rate"),
        (["--batch", "100000000"], "more than this machine's memory"),
        (["--seed", str(2**70)], "--seed"),
        (["--seed", "-1"], "--seed"),
    ],
)
def test_a_mistake_costs_no_answers_and_is_no_obstacle_to_the_right_command(
    target_folder, prompt_file, tmp_path, capsys, mistake, complaint
):
    out = tmp_path / "head"
    assert train(target_folder, prompt_file, out, *mistake) == 2
    assert complaint in capsys.readouterr().err.replace("\n", " ")
    assert not out.exists()
    assert train(target_folder, prompt_file, out, "--steps", "1") == 0


def test_another_family_is_refused_at_once(prompt_file, tmp_path, capsys):
    GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=64, n_embd=8, n_layer=2, n_head=2)).save_pretrained(
        tmp_path / "gpt2"
    )
    (tmp_path / "gpt2" / "tokenizer.json").write_text("{}")
    assert train(tmp_path / "gpt2", prompt_file, tmp_path / "head") == 2
    assert "(gpt2): heads can be trained for the Llama and Qwen families" in capsys.readouterr().err.replace("\n", " ")


def test_a_family_that_scales_its_logits_is_refused_at_once(prompt_file, tmp_path, capsys):
    shape = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    GraniteForCausalLM(GraniteConfig(vocab_size=64, logits_scaling=8.0, **shape)).save_pretrained(tmp_path / "granite")
    (tmp_path / "granite" / "tokenizer.json").write_text("{}")
    assert train(tmp_path / "granite", prompt_file, tmp_path / "head") == 2
    assert "(granite): heads can be trained for the Llama and Qwen" in capsys.readouterr().err.replace("\n", " ")


def test_without_matplotlib_there_are_no_curves_and_all_else(target_folder, prompt_file, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert train(target_folder, prompt_file, tmp_path / "head") == 0
    assert {each.name for each in (tmp_path / "head").iterdir()} == {
        "README.md",
        "config.json",
        "model.safetensors",
        "provenance.json",
        "work",
    }


def test_a_readme_of_others_is_not_replaced(target_folder, prompt_file, tmp_path, capsys):
    (tmp_path / "README.md").write_text("mine")
    assert train(target_folder, prompt_file, tmp_path) == 2
    assert "not a model card of ours" in capsys.readouterr().err.replace("\n", " ")
    assert (tmp_path / "README.md").read_text() == "mine"


def test_a_model_of_others_is_not_replaced(target_folder, prompt_file, tmp_path, capsys):
    out = shutil.copytree(target_folder, tmp_path / "model")
    assert train(out, prompt_file, out) == 2
    assert "holds a model that we did not train" in capsys.readouterr().err.replace("\n", " ")
    assert (out / "config.json").read_bytes() == (target_folder / "config.json").read_bytes()


def test_a_trained_head_is_not_replaced_by_another_training(target_folder, prompt_file, tmp_path, capsys):
    out = tmp_path / "head"
    assert train(target_folder, prompt_file, out) == 0
    shutil.rmtree(out / "work")
    weights = (out / "model.safetensors").read_bytes()
    assert train(target_folder, prompt_file, out) == 2
    assert "holds a trained head, which would be lost" in capsys.readouterr().err.replace("\n", " ")
    assert (out / "model.safetensors").read_bytes() == weights


def test_a_training_that_is_at_its_end_says_so_again(target_folder, prompt_file, tmp_path):
    out, report_file = tmp_path / "head", tmp_path / "report.json"
    for _ in range(2):
        assert train(target_folder, prompt_file, out, "--json", str(report_file)) == 0
        report = json.loads(report_file.read_text())
        assert report["steps"] == 6
        assert len(report["curve"]) == 1


def test_a_loss_that_is_no_number_ends_the_training_before_it_spoils_the_head(
    target_folder, prompt_file, tmp_path, capsys
):
    out = tmp_path / "head"
    assert train(target_folder, prompt_file, out, "--learning-rate", "1e9", "--steps", "200") == 2
    assert "is not a number: give a lower --learning-rate" in capsys.readouterr().err.replace("\n", " ")


def test_a_spoiled_training_is_begun_anew_as_it_says(target_folder, prompt_file, tmp_path, capsys):
    out = tmp_path / "head"
    assert train(target_folder, prompt_file, out, "--learning-rate", "1e9", "--save-every", "1") == 2
    said = capsys.readouterr().err.replace("\n", " ")
    assert f"and delete '{out / 'work' / 'state'}'" in said
    shutil.rmtree(out / "work" / "state")
    assert train(target_folder, prompt_file, out) == 0


def test_an_answer_ends_with_the_token_that_ended_it(target_folder, tmp_path):
    """A model may have several such tokens; no other of them may be put behind it."""
    folder = tmp_path / "target"
    shutil.copytree(target_folder, folder)
    ends = list(range(0, 250, 2))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    prompts = write_prompts(tmp_path / "prompts.jsonl", [f"What is {number}?" for number in range(40)])
    assert train(folder, prompts, tmp_path / "head") == 0
    answers = read_answers(tmp_path / "head" / "work" / "answers")
    assert any(answer.answer_ids[-1] in ends for answer in answers)
    assert not any(token_id in ends for answer in answers for token_id in answer.answer_ids[:-1])
