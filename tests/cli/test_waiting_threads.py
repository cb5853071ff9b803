"""Servers share cores: the OpenMP that torch brings is told how to wait before it is loaded, and its number of threads
is OMP_NUM_THREADS in every command."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup

from starspec.cli import app
from starspec.errors import ConfigError
from starspec.harness.model_pair import ModelPair
from starspec.harness.servers import StarspecServer
from starspec.openmp import num_cores, num_threads
from starspec.train.plan import HeadPlan

NAMES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
START_S = 60.0


def told(folder: Path, environ: dict[str, str]) -> tuple[str, ...]:
    """What OpenMP says that it was told, in a hub that has come up."""
    log = folder / "log"
    others = {name: value for name, value in os.environ.items() if name not in NAMES}
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "starspec", "draft", "--spec-method", "ngram", "--port", "0"],
            env={**others, **environ, "OMP_DISPLAY_ENV": "VERBOSE"},
            stdout=output,
            stderr=output,
        )
    try:
        deadline_s = time.monotonic() + START_S
        while "ready at" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline_s, log.read_text()
            time.sleep(0.05)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(START_S)
        finally:
            process.kill()
    return tuple(re.findall(rf"(?:{'|'.join(NAMES)}) = '(\w+)'", log.read_text()))


@pytest.mark.skipif(sys.platform != "linux", reason="torch brings another OpenMP there")
def test_threads_of_a_server_wait_briefly(tmp_path: Path) -> None:
    assert told(tmp_path, {}) == ("PASSIVE", "20000")


@pytest.mark.skipif(sys.platform != "linux", reason="torch brings another OpenMP there")
def test_the_operator_decides(tmp_path: Path) -> None:
    policy, count = told(tmp_path, {"OMP_WAIT_POLICY": "ACTIVE"})
    assert policy == "ACTIVE"
    assert int(count) > 1_000_000


def commands(group: TyperGroup, *names: str) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from commands(command, *names, name)
        elif any(each.name.endswith("num_threads") for each in command.params):
            yield (*names, name)


WITH_THREADS = {" ".join(each): each for each in commands(typer.main.get_command(app))}  # type: ignore[arg-type]


@pytest.mark.parametrize("name", WITH_THREADS)
def test_no_command_has_a_number_of_threads_of_its_own(name: str) -> None:
    command = typer.main.get_command(app)
    for word in WITH_THREADS[name]:
        command = command.commands[word]  # type: ignore[attr-defined]
    for option in [each for each in command.params if each.name == "num_threads"]:
        assert (option.default, option.show_default) == (None, "OMP_NUM_THREADS, or all")


class Seen(ConfigError):
    """Ends a command where its measurement would begin."""


PAIR = ("--target", "synthetic:", "--draft", "synthetic:role=draft", "--draft-quantization", "none")


@pytest.mark.parametrize(
    ("measure", "words", "told"),
    [
        ("starspec.bench.pair.measure.measure_pair", ("bench", "pair", *PAIR), None),  # torch reads the variable
        (
            "starspec.bench.vllm.measure.measure_vllm",
            ("bench", "vllm", *PAIR, "--vllm-python", sys.executable),
            3,
        ),
        (
            "starspec.train.pipeline.train_head",
            ("train", "--target", "synthetic:", "--prompts", "PROMPTS", "--out", "OUT"),
            3,
        ),
    ],
    ids=["bench pair", "bench vllm", "train"],
)
def test_what_is_measured_has_the_threads_that_the_operator_says(
    measure: str, words: tuple[str, ...], told: int | None, starspec, tmp_path: Path, monkeypatch
) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"turns": ["Hello"]}\n')
    named = {"PROMPTS": str(tmp_path / "prompts.jsonl"), "OUT": str(tmp_path / "head")}
    seen = []

    def begin(plan: ModelPair | HeadPlan, *_: object) -> None:
        seen.append(plan.num_threads)
        raise Seen("seen")

    monkeypatch.setattr(measure, begin)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert starspec(*(named.get(word, word) for word in words)).code == 2
    assert seen == [told]


@pytest.mark.parametrize(("given", "told"), [("3", "3"), (None, "1")])
def test_servers_of_a_measurement_have_one_thread_unless_the_operator_says_otherwise(
    given: str | None, told: str, monkeypatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    server = StarspecServer("draft", "--help")
    try:
        environ = Path(f"/proc/{server.process.pid}/environ").read_bytes().split(b"\0")
    finally:
        server.end()
    assert f"OMP_NUM_THREADS={told}".encode() in environ


def test_threads_that_openmp_would_use_are_known_without_it() -> None:
    assert [num_threads({"OMP_NUM_THREADS": said}) for said in ("3", "4,2", " 5 ")] == [3, 4, 5]
    assert [num_threads(environ) for environ in ({}, {"OMP_NUM_THREADS": ""}, {"OMP_NUM_THREADS": "0"})] == (
        [num_cores()] * 3
    )
