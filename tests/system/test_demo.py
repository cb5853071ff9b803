"""`make demo`: what a newcomer runs first."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.system, pytest.mark.model, pytest.mark.timeout(600)]

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"
NUM_TOKENS = 16  # of an answer


def test_a_receipt_that_could_not_be_saved_is_refused_before_a_star_starts(tmp_path: Path) -> None:
    command = [sys.executable, str(DEMO), "--json", str(tmp_path / "nowhere" / "demo.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert f"--json: '{tmp_path}/nowhere/demo.json' cannot be written: there is no folder" in done.stderr
    assert (done.returncode, done.stdout) == (2, "")


def test_the_demo_answers_eight_prompts_identically(smollm2: Path, tmp_path: Path) -> None:
    assert smollm2.is_dir()
    command = [
        sys.executable,
        str(DEMO),
        "--repeats",
        "1",
        "--max-tokens",
        str(NUM_TOKENS),
        "--json",
        str(tmp_path / "demo.json"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=580, check=False, env=dict(os.environ))
    assert done.returncode == 0, done.stdout + done.stderr
    (summary,) = [line for line in done.stdout.splitlines() if "tokens a forward" in line]
    assert "identical 8/8" in summary
    match = re.search(r"(\d+) tokens \| block efficiency ([\d.]+) tokens a forward", summary)
    assert match is not None
    assert int(match[1]) > 6 * NUM_TOKENS  # of eight answers
    assert float(match[2]) > 1.0  # how many drafts pay depends on the cores
    assert "draft lengths chosen (tokens, 0 = no draft): 0: " in done.stdout
    races = [line for line in done.stdout.splitlines() if line.startswith("one stream, drafts by ")]
    assert ["the EAGLE head" in races[0], "int4" in races[1]] == [True, True]
    told = re.compile(r": \d\.\d\dx \(.*\); code \d\.\d\dx, conversation \d\.\d\dx;.*, identical$")
    assert all(told.search(race) for race in races)
    receipt = json.loads((tmp_path / "demo.json").read_text())
    assert len(receipt["provenance"]["models"]["head"]) == 64
    eight, *one_by_one = receipt["rows"]
    assert (eight["prompts"], eight["is_identical"], eight["num_tokens"]) == (
        "8 at once, two targets",
        True,
        int(match[1]),
    )
    assert f"{eight['speed_up']:.2f}x (" in summary
    kinds = [(row["drafts"], row["prompts"], row["is_identical"]) for row in one_by_one]
    assert kinds == [
        (drafts, prompts, True)
        for drafts in ("the EAGLE head", "the target itself in int4")
        for prompts in ("code", "conversation", "all")
    ]
    code, conversation, both, *again = [row["num_tokens"] for row in one_by_one]
    assert code == 2 * NUM_TOKENS
    # where bf16 is rounded otherwise, one of its two answers may end earlier
    assert NUM_TOKENS < conversation <= 2 * NUM_TOKENS
    assert both == code + conversation
    assert again == [code, conversation, both]
    assert f"{receipt['ratios']['the EAGLE head, all']:.2f}x (" in races[0]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_demo_that_is_ended_stops_every_process(smollm2: Path, number: int) -> None:
    assert smollm2.is_dir()
    demo = subprocess.Popen([sys.executable, str(DEMO)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    limit_s = time.monotonic() + 60.0
    while len(started := psutil.Process(demo.pid).children(recursive=True)) < 4:  # up, hub and targets
        assert demo.poll() is None
        assert time.monotonic() < limit_s
        time.sleep(0.2)
    demo.send_signal(number)
    _, errors = demo.communicate(timeout=60.0)
    assert demo.returncode == 128 + number
    assert "Traceback" not in errors
    _, alive = psutil.wait_procs(started, timeout=10.0)
    assert not alive
