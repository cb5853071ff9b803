"""Grammars that take too long end a child, and not the process that asks."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import threading
import time
from collections.abc import Iterator

import psutil
import pytest

from starspec.errors import CapacityError, RequestError
from starspec.grammars import trial as trials
from starspec.grammars.trial import MAX_CPU_S, TooSlow, Trial
from starspec.sampling.grammar import GrammarSpec


@pytest.fixture
def trial() -> Iterator[Trial]:
    trial = Trial()
    yield trial
    trial.close()


def schema(value: object) -> GrammarSpec:
    return GrammarSpec("json", json.dumps(value))


def nested(depth: int) -> dict[str, object]:
    if not depth:
        return {"type": "string", "enum": ["leaf"]}
    few = {"type": "array", "items": {"type": "integer"}, "maxItems": 20}
    return {"type": "object", "properties": {"few": few, "child": nested(depth - 1)}, "required": ["few", "child"]}


PROPERTIES = {f"property_{number}": {"type": ("string", "integer")[number % 2]} for number in range(300)}
ROW = {"type": "object", "properties": {"date": {"type": "string", "format": "date-time"}, "n": {"type": "number"}}}
HONEST = {
    "300 properties": schema({"type": "object", "properties": PROPERTIES, "required": list(PROPERTIES)}),
    "12 levels": schema(nested(12)),
    "an enum of 500": schema({"enum": [f"value number {number} of the enum" for number in range(500)]}),
    "bounded arrays": schema({"type": "array", "minItems": 10, "maxItems": 200, "items": ROW}),
    "a mail address": GrammarSpec("regex", r"[a-zA-Z0-9._%+-]{1,64}@[a-z0-9.-]{1,255}\.[a-z]{2,24}"),
    "a choice of a thousand": GrammarSpec("choice", json.dumps([f"choice {number}" for number in range(1000)])),
}
PATTERNS = [f".*{number}.*" for number in range(18)]
ENDLESS = {
    "very many repetitions": GrammarSpec("regex", ".*" * 8000),
    "patterns that all must match": schema({"allOf": [{"type": "string", "pattern": each} for each in PATTERNS]}),
    "multiples of a large number": schema({"type": "integer", "multipleOf": 9_999_991}),
}


@pytest.mark.parametrize("grammar", HONEST.values(), ids=HONEST)
def test_the_largest_honest_grammars_take_a_fifth_of_the_time_at_most(grammar: GrammarSpec) -> None:
    trial = Trial(MAX_CPU_S / 5)
    trial.check(grammar)
    trial.close()


@pytest.mark.parametrize("grammar", ENDLESS.values(), ids=ENDLESS)
def test_a_grammar_that_takes_too_long_is_refused_and_others_are_checked_afterwards(
    trial: Trial, grammar: GrammarSpec
) -> None:
    with pytest.raises(TooSlow, match=r"it takes longer than 0\.5 s to compile: ask for a simpler one") as refused:
        trial.check(grammar)
    assert refused.value.param == f"structured_outputs.{grammar.kind}"
    trial.check(HONEST["12 levels"])
    began_s = time.monotonic()
    with pytest.raises(RequestError, match="simpler"):  # it is remembered
        trial.check(grammar)
    assert time.monotonic() - began_s < MAX_CPU_S  # another trial would take as long


def test_a_wrong_grammar_is_refused_as_without_a_trial(trial: Trial) -> None:
    with pytest.raises(RequestError, match="unclosed group"):
        trial.check(GrammarSpec("regex", "(a"))
    with pytest.raises(RequestError, match="at #/properties/a"):
        trial.check(schema({"type": "object", "properties": {"a": {"type": "sting"}}}))


NAMED = GrammarSpec("grammar", 'start: <tool_call> "a" </tool_call>')


def test_a_grammar_may_ask_for_the_special_tokens_of_the_model(trial: Trial) -> None:
    able = Trial(special_tokens=("<tool_call>", "</tool_call>"))
    able.check(NAMED)
    able.check(GrammarSpec("grammar", 'start: "<tool_call>"'))
    able.close()
    with pytest.raises(RequestError, match='unknown special token: "<tool_call>"'):
        trial.check(NAMED)


def test_a_child_that_died_is_started_again(trial: Trial) -> None:
    trial.check(GrammarSpec("regex", "a"))
    assert trial._child is not None
    trial._child.kill()
    trial._child.wait()
    trial.check(GrammarSpec("regex", "b"))


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """More open descriptors than select() can name."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    yield
    for each in opened:
        os.close(each)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_descriptors")
def test_grammars_are_checked_beside_a_thousand_open_descriptors(trial: Trial) -> None:
    trial.check(GrammarSpec("regex", "a"))


def test_a_child_whose_start_fails_is_not_kept(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("no such luck")

    with monkeypatch.context() as patched:
        patched.setattr(trials, "_tell", fail)
        with pytest.raises(ValueError, match="no such luck"):
            trial.check(GrammarSpec("regex", "a"))
    assert trial._child is None
    trial.check(GrammarSpec("regex", "a"))


def test_a_child_that_is_killed_while_it_is_asked_has_given_no_verdict(trial: Trial) -> None:
    trial.check(GrammarSpec("regex", "a"))
    assert trial._child is not None
    os.kill(trial._child.pid, signal.SIGSTOP)
    late = threading.Timer(0.2, trial._child.send_signal, [signal.SIGKILL])
    late.start()
    trial.check(GrammarSpec("regex", "b"))
    late.join()


def test_a_child_that_is_stopped_has_given_no_verdict(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    trial.check(GrammarSpec("regex", "a"))
    assert trial._child is not None
    os.kill(trial._child.pid, signal.SIGSTOP)
    with monkeypatch.context() as patched:
        patched.setattr(trials, "MAX_WAIT_S", 0.01)  # too short for a new child, too
        with pytest.raises(CapacityError, match="did not answer; try again later"):
            trial.check(GrammarSpec("regex", "b"))
    trial.check(GrammarSpec("regex", "b"))


def test_a_grammar_whose_check_is_always_killed_is_asked_again_later(trial: Trial) -> None:
    """Such as by a kernel without memory."""
    endless, is_over = ENDLESS["multiples of a large number"], threading.Event()

    def kill() -> None:
        while not is_over.wait(0.005):
            with contextlib.suppress(psutil.NoSuchProcess, AttributeError):
                for each in psutil.Process(trial._child.pid).children():
                    each.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(CapacityError, match="was ended or did not answer"):
        trial.check(endless)
    is_over.set()
    killer.join()
    with pytest.raises(TooSlow):
        trial.check(endless)


def test_nothing_is_checked_behind_the_end(trial: Trial) -> None:
    trial.close()
    with pytest.raises(CapacityError, match="this process ends"):
        trial.check(GrammarSpec("regex", "a"))
