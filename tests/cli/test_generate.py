"""`starspec generate`: text on stdout, statistics on stderr, the same text with every drafter."""

import logging
import os
import pty
import re
import sys
import tty
from pathlib import Path

import pytest
import structlog
import torch

from starspec.cli import run
from starspec.speculation import verify

TARGET = "synthetic:vocab=128,step_ms=0,alpha=0.7"
DRAFT = "synthetic:vocab=128,step_ms=0,alpha=0.7,role=draft"
HOSTILE = "a\x1b[2J\x1b]0;title\x07\x9b31m\r\x08"
ESCAPED = r"a\x1b[2J\x1b]0;title\x07\x9b31m\r\x08"
ASK = ("generate", "bipa bigu", "--target", TARGET, "--max-tokens", "40")


def test_the_text_is_on_stdout_and_the_statistics_on_stderr(starspec) -> None:
    outcome = starspec(*ASK)
    assert outcome.code == 0
    assert len(outcome.out.split()) == 40
    assert re.search(r"^40 tokens in \d+\.\d\d s \([\d.]+ tokens/s\); no drafts$", outcome.err, re.MULTILINE)


@pytest.mark.parametrize(
    "drafter", [("--draft", DRAFT), ("--spec-method", "ngram"), ("-sc", f'{{"model": "{DRAFT}"}}')]
)
@pytest.mark.parametrize("sampling", [(), ("--temperature", "0.9", "--top-p", "0.9", "--seed", "7")])
def test_a_draft_changes_no_word(drafter: tuple[str, ...], sampling: tuple[str, ...], starspec) -> None:
    assert starspec(*ASK, *sampling, *drafter).out == starspec(*ASK, *sampling).out


def test_options_have_the_names_that_other_servers_give_them_too(starspec) -> None:
    words = ("generate", "bipa bigu", "--max-tokens", "40", "--model", TARGET)
    assert starspec(*words, "--spec-model", DRAFT).out == starspec(*ASK, "--draft", DRAFT).out


def test_drafts_show_in_the_statistics(starspec) -> None:
    always = ("--spec-tokens", "3", "--speculative-config", '{"length": {"policy": "fixed"}}')
    statistics = starspec(*ASK, "--draft", DRAFT, *always).err
    match = re.search(r"block efficiency ([\d.]+), acceptance length ([\d.]+), acceptance rate \d+%", statistics)
    assert match is not None
    assert 1.5 < float(match[1]) <= 4.0
    assert 1.5 < float(match[2]) <= 4.0


def test_a_stop_text_ends_the_answer(starspec) -> None:
    words = starspec(*ASK).out.split()
    shorter = starspec(*ASK, "--stop", words[10]).out.split()
    assert shorter == words[: words.index(words[10])]


def test_a_prompt_that_cannot_run_is_one_sentence(starspec) -> None:
    outcome = starspec("generate", "Hello there", "--target", "synthetic:", "--max-model-len", "2")
    assert outcome.code == 1
    assert "context" in outcome.err.splitlines()[-1]


def test_more_tokens_than_the_context_holds_are_refused_as_over_http(starspec) -> None:
    outcome = starspec("generate", "bipa bigu", "--target", TARGET, "--max-tokens", "63", "--max-model-len", "64")
    assert outcome.out == ""
    assert outcome.err.splitlines()[-1] == (
        "starspec: --max-tokens: this model's maximum context length is 64 tokens. However, you requested 65 "
        "tokens (2 in the prompt, 63 in the completion). Please reduce the length of the prompt or --max-tokens."
    )
    assert outcome.code == 2


@pytest.mark.parametrize(("context", "num_tokens"), [("64", 62), ("512", 128)])
def test_without_max_tokens_an_answer_has_what_fits(context: str, num_tokens: int, starspec) -> None:
    outcome = starspec("generate", "bipa bigu", "--target", TARGET, "--max-model-len", context)
    assert outcome.code == 0
    assert len(outcome.out.split()) == num_tokens


@pytest.mark.parametrize(("words", "shows_info"), [((), False), (("--log-level", "info"), True)])
def test_what_is_logged_can_be_chosen(words, shows_info: bool, starspec) -> None:
    assert starspec(*ASK, *words).code == 0
    assert structlog.get_logger().is_enabled_for(logging.INFO) == shows_info


@pytest.fixture
def hostile(byte_model: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """A question to a model that answers HOSTILE again and again: its alphabet is the bytes."""
    from transformers import AutoTokenizer

    tokens = AutoTokenizer.from_pretrained(byte_model)(HOSTILE)["input_ids"]
    turn = iter(range(10**6))
    monkeypatch.setattr(verify, "argmaxes", lambda rows: [tokens[next(turn) % len(tokens)] for _ in rows])
    return ("generate", "b", "--target", str(byte_model), "--max-tokens", str(2 * len(tokens)))


def test_what_a_model_says_commands_no_terminal(hostile, monkeypatch) -> None:
    near, far = pty.openpty()
    tty.setraw(far)
    with os.fdopen(far, "w") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        assert run([*hostile]) == 0
        monkeypatch.undo()
        shown = ""
        while not shown.endswith("\n"):
            shown += os.read(near, 4096).decode()
    os.close(near)
    assert shown == f"{2 * ESCAPED}\n"


def test_what_a_model_says_is_left_as_it_is_in_a_file(hostile, monkeypatch, tmp_path: Path) -> None:
    with (tmp_path / "answer").open("w", newline="") as file:
        monkeypatch.setattr(sys, "stdout", file)
        assert run([*hostile]) == 0
    assert (tmp_path / "answer").read_bytes() == f"{2 * HOSTILE}\n".encode()


def test_an_answer_that_fails_is_one_sentence_behind_what_there_is_of_it(starspec, monkeypatch) -> None:
    whole = starspec(*ASK).out

    def fail_once_it_has_begun(row: torch.Tensor, sampling: object, position: int, *_: object) -> int:
        if position > 9:
            raise ValueError("no such law")
        return int(row.argmax())

    monkeypatch.setattr(verify, "next_token", fail_once_it_has_begun)
    outcome = starspec(*ASK, "--temperature", "0.5")
    assert outcome.code == 1
    assert 0 < len(outcome.out.split()) < 40
    assert whole.startswith(outcome.out.rstrip())
    assert outcome.err.splitlines()[-1] == "starspec: the answer is not whole: internal error"
    assert "ValueError: no such law" in outcome.err


def test_waiting_threads_do_not_spin(starspec, monkeypatch) -> None:
    monkeypatch.setattr(os, "environ", environ := {"HOME": "/nowhere"})
    assert starspec(*ASK).code == 0
    assert environ["GOMP_SPINCOUNT"] == "0"
