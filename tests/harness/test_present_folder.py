"""Nothing that starspec starts imports from the present folder, which may be a stranger's model."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
from multiprocessing import get_context
from pathlib import Path

import pytest

import starspec.cli
from starspec.__main__ import main
from starspec.config import GatewayConfig, ModelConfig, TargetConfig
from starspec.grammars.trial import Trial
from starspec.sampling.grammar import GrammarSpec
from starspec.supervise.star import StarConfig, StarPorts, star_specs

PROJECT = Path(__file__).parents[2]
IMPORTED = (
    "queue",
    "json",
    "runpy",
    "multiprocessing",
    "msgspec",
)  # by every process of ours, or by each that it starts
EVIL = "open({marker!r}, 'w').close()\nraise SystemExit(3)\n"


@pytest.fixture
def marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that is there once code of the present folder has run."""
    marker = tmp_path / "ran"
    folder = tmp_path / "model"
    folder.mkdir()
    for name in IMPORTED:
        (folder / f"{name}.py").write_text(EVIL.format(marker=str(marker)))
    monkeypatch.chdir(folder)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    return marker


def test_the_process_that_checks_grammars_does_not(marker: Path) -> None:
    trial = Trial()
    trial.check(GrammarSpec("regex", "a+"))
    trial.close()
    assert not marker.exists()


def test_children_of_a_star_do_not(marker: Path) -> None:
    model = ModelConfig(model="model")
    star = StarConfig(
        model=model, num_targets=1, target=TargetConfig(), speculative=None, draft=model, gateway=GatewayConfig()
    )
    specs = star_specs(star, StarPorts(gateway=1, hub=2, targets=(3,)), os.environ, num_cores=1)
    gateway = specs[-1]
    ended = subprocess.run(
        gateway.command, input=b"no config", env=gateway.environment, capture_output=True, check=False
    )
    assert ended.returncode
    assert not marker.exists()


def test_processes_of_multiprocessing_do_not(marker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONSAFEPATH", "")  # so that it is as before when this test ends
    monkeypatch.setattr(starspec.cli, "main", _start_one)
    on_interrupt = signal.getsignal(signal.SIGINT)
    try:
        main()
    finally:
        signal.signal(signal.SIGINT, on_interrupt)
    assert not marker.exists()


def _start_one() -> None:
    child = get_context("spawn").Process(target=print)
    child.start()
    child.join()
    assert child.exitcode == 0


def test_every_command_that_names_this_interpreter_leaves_the_present_folder_out() -> None:
    lists = [
        each
        for folder in ("src", "examples", "benchmarks")
        for path in (PROJECT / folder).rglob("*.py")
        for each in ast.walk(ast.parse(path.read_text()))
        if isinstance(each, ast.List | ast.Tuple) and each.elts and ast.unparse(each.elts[0]) == "sys.executable"
    ]
    assert lists
    assert {ast.unparse(each.elts[1]) for each in lists} <= {"'-P'", "'-I'"}
