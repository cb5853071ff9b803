"""`starspec train` with several processes, killed while they answer. Real processes."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from train_toys import write_prompts

from starspec.cli import run
from starspec.train.answer_files import read_answers

pytestmark = pytest.mark.system

LIMIT_S = 120.0
NUM_PROMPTS = 150
PLAN = ["--num-tokens", "2000", "--max-new-tokens", "16", "--batch", "2", "--num-threads", "2", "--steps", "1"]


@pytest.fixture
def command(target_folder: Path, tmp_path: Path) -> list[str]:
    prompts = write_prompts(tmp_path / "prompts.jsonl", [f"What is {number}?" for number in range(NUM_PROMPTS)])
    out = tmp_path / "head"
    report = ["--json", str(tmp_path / "report.json")]
    return ["train", "--target", str(target_folder), "--prompts", str(prompts), "--out", str(out), *PLAN, *report]


@pytest.fixture
def training(command: list[str], tmp_path: Path) -> Iterator[psutil.Popen]:
    """One whose processes have begun to answer."""
    files = [tmp_path / "head" / "work" / "answers" / f"worker-{number}.jsonl" for number in range(2)]
    with (tmp_path / "stderr").open("wb") as stderr:
        parent = psutil.Popen([sys.executable, "-m", "starspec", *command], stderr=stderr)
    known: set[psutil.Process] = {parent}
    try:
        deadline_s = time.monotonic() + LIMIT_S
        while not all(file.exists() and file.stat().st_size for file in files):
            assert parent.poll() is None, (tmp_path / "stderr").read_text()
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        known |= set(parent.children(recursive=True))
        yield parent
    finally:
        for each in known:
            if each.is_running():
                each.kill()
        psutil.wait_procs(known)


def test_a_killed_training_leaves_nobody_behind_and_goes_on(
    training: psutil.Popen, command: list[str], tmp_path: Path
) -> None:
    answers = tmp_path / "head" / "work" / "answers"
    workers = training.children(recursive=True)
    assert len(workers) >= 2
    training.kill()
    assert run(command) == 0  # at once, while they may still be ending
    _, alive = psutil.wait_procs(workers, timeout=LIMIT_S)
    assert not alive
    report = json.loads((tmp_path / "report.json").read_text())
    indices = [answer.index for answer in read_answers(answers)]
    assert len(indices) == len(set(indices))
    assert report["num_answers"] <= report["num_prompts"] == NUM_PROMPTS
    lines = [line for file in answers.glob("worker-*.jsonl") for line in file.read_bytes().splitlines()]
    assert len(lines) <= len(indices) + 6  # of each orphan no more than its unfinished line and the last step's answers


def test_a_training_whose_worker_is_killed_says_so(training: psutil.Popen, tmp_path: Path) -> None:
    workers = training.children()
    next(each for each in workers if "spawn_main" in " ".join(each.cmdline())).kill()
    assert training.wait(LIMIT_S) == 1
    psutil.wait_procs(workers, timeout=LIMIT_S)
    assert not any(each.is_running() for each in workers)
    assert "a process that answered prompts ended with -9" in (tmp_path / "stderr").read_text().replace("\n", " ")
