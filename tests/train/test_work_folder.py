"""A work folder that is damaged, and a disk that is full: one sentence, and the way on from there."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from train_toys import train

from starspec.errors import ConfigError
from starspec.models.heads.checkpoint import read_head
from starspec.train.answer_files import read_answers
from starspec.train.features import read_shard
from starspec.train.work_folder import stage_folder

ANSWERS, SHARD, STATE = (
    "work/answers/worker-0.jsonl",
    "work/features/shard-0000.safetensors",
    "work/state/state.safetensors",
)


@contextmanager
def files_of_at_most(num_bytes: int) -> Iterator[None]:
    """What the system lets this process write: a full disk, but for the number of the complaint."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def cut(path: Path, num_left: int) -> None:
    path.write_bytes(path.read_bytes()[:num_left])


@pytest.mark.parametrize("num_left", [0, 50, 5000])
def test_a_damaged_shard_of_features_is_made_anew(target_folder, prompt_file, tmp_path, num_left):
    out = tmp_path / "head"
    assert train(target_folder, prompt_file, out) == 0
    whole = (out / SHARD).read_bytes()
    cut(out / SHARD, num_left)
    assert train(target_folder, prompt_file, out) == 0
    assert (out / SHARD).read_bytes() == whole


@pytest.mark.parametrize("num_left", [0, 50, 5000])
def test_a_damaged_state_is_said_and_without_it_the_training_begins_anew(
    target_folder, prompt_file, tmp_path, capsys, num_left
):
    out = tmp_path / "head"
    assert train(target_folder, prompt_file, out) == 0
    cut(out / STATE, num_left)
    assert train(target_folder, prompt_file, out) == 2
    assert f"starspec: '{out / STATE}' is damaged; delete it to start anew\n" in capsys.readouterr().err
    (out / STATE).unlink()
    assert train(target_folder, prompt_file, out) == 0


@pytest.mark.parametrize("token_id", [-1, 260])
def test_an_answer_of_tokens_that_the_target_does_not_have_is_said(
    target_folder, prompt_file, tmp_path, capsys, token_id
):
    out = tmp_path / "head"
    assert train(target_folder, prompt_file, out) == 0
    first, *others = (out / ANSWERS).read_text().splitlines()
    answer = json.loads(first)
    answer["answer_ids"][-1] = token_id
    (out / ANSWERS).write_text("\n".join([json.dumps(answer), *others]) + "\n")
    assert train(target_folder, prompt_file, out) == 2
    complaint = f"prompt {answer['index']} holds token {token_id}, and the target has 0 to 259; delete it to start anew"
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize("content", ["", "{", "[]", "null"])
def test_a_damaged_note_of_what_a_folder_was_made_for_is_said(tmp_path, content):
    (tmp_path / "made_for.json").write_text(content)
    with pytest.raises(ConfigError, match=r"made_for\.json' is damaged; delete '.*' to start anew"):
        stage_folder(tmp_path, {"target": "one"})


def test_a_kill_leaves_no_half_of_that_note(tmp_path, monkeypatch):
    def killed(path: Path, text: str) -> None:
        path.write_bytes(text.encode()[:5])
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", killed)
        with pytest.raises(KeyboardInterrupt):
            stage_folder(tmp_path, {"target": "one"})
    assert stage_folder(tmp_path, {"target": "one"}) == tmp_path
    with pytest.raises(ConfigError, match="another target"):
        stage_folder(tmp_path, {"target": "other"})


def test_answers_that_do_not_fit_on_the_disk_are_said_and_gone_on_with(target_folder, prompt_file, tmp_path, capsys):
    out = tmp_path / "head"
    with files_of_at_most(1500):
        assert train(target_folder, prompt_file, out) == 1
    assert f"starspec: '{out / ANSWERS}' cannot be written: File too large\n" in capsys.readouterr().err
    kept = {answer.index for answer in read_answers(out / "work" / "answers")}
    assert train(target_folder, prompt_file, out) == 0
    assert kept < {answer.index for answer in read_answers(out / "work" / "answers")}


def test_features_that_do_not_fit_on_the_disk_are_said_and_made_later(target_folder, prompt_file, tmp_path, capsys):
    out = tmp_path / "head"
    with files_of_at_most(50_000):  # the answers are some 10,000, their features 300,000
        assert train(target_folder, prompt_file, out) == 1
    assert f"starspec: '{out / SHARD}' cannot be written: File too large\n" in capsys.readouterr().err
    assert train(target_folder, prompt_file, out) == 0
    assert read_shard(out / SHARD)


def test_a_head_that_does_not_fit_on_the_disk_is_said_and_leaves_the_one_before(
    target_folder, prompt_file, tmp_path, capsys
):
    out = tmp_path / "head"
    assert train(target_folder, prompt_file, out) == 0
    head = (out / "model.safetensors").read_bytes()
    with files_of_at_most(len(head) - 1):
        assert train(target_folder, prompt_file, out, "--steps", "7") == 1
    assert f"starspec: '{out}' cannot be written: File too large\n" in capsys.readouterr().err
    assert (out / "model.safetensors").read_bytes() == head
    assert train(target_folder, prompt_file, out, "--steps", "7") == 0
    assert read_head(out)


def test_a_state_that_does_not_fit_on_the_disk_is_said_and_leaves_the_one_before(
    target_folder, prompt_file, tmp_path, capsys
):
    out = tmp_path / "head"
    assert train(target_folder, prompt_file, out) == 0
    state = (out / STATE).read_bytes()
    with files_of_at_most(len(state) - 1000):
        assert train(target_folder, prompt_file, out, "--steps", "7") == 1
    assert f"starspec: '{out / STATE}' cannot be written: File too large\n" in capsys.readouterr().err
    assert (out / STATE).read_bytes() == state
    assert train(target_folder, prompt_file, out, "--steps", "7") == 0


def test_a_card_that_cannot_be_written_is_said(target_folder, prompt_file, tmp_path, capsys):
    out = tmp_path / "head"
    (out / ".unfinished-README.md").mkdir(parents=True)
    assert train(target_folder, prompt_file, out) == 1
    assert f"starspec: '{out / 'README.md'}' cannot be written: Is a directory\n" in capsys.readouterr().err
