"""A training on another device than the CPU, from its answers to its checkpoint, is the CPU's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from train_toys import train

from starspec.models.heads.checkpoint import read_head

SCRIPT = Path(__file__).parent / "train_on_accelerator.py"
LIMIT_S = 240.0


@pytest.mark.parametrize("method", ["eagle", "eagle3"])
def test_a_head_trained_on_another_device_is_the_one_trained_on_the_cpu(target_folder, prompt_file, tmp_path, method):
    options = ["--method", method, "--dtype", "float32", "--ttt-steps", "2", "--num-tokens", "200"]
    options += ["--draft-vocab-size", "64"] if method == "eagle3" else []
    starts = ("4", "6")  # the second one takes up the first one's state
    given = [str(target_folder), str(prompt_file), str(tmp_path / "there"), ",".join(starts), *options]
    command = [sys.executable, str(SCRIPT), *given]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    for steps in starts:
        assert train(target_folder, prompt_file, tmp_path / "here", *options, "--steps", steps) == 0
    here, there = (
        {"report": report_of(tmp_path / name), "head": read_head(tmp_path / name)} for name in ("here", "there")
    )
    for key in ("answers_sha256", "num_positions", "steps", "held_out_chain"):
        assert there["report"][key] == here["report"][key], key
    assert there["report"]["steps"] == 6
    for name, tensor in here["head"].tensors.items():
        torch.testing.assert_close(there["head"].tensors[name], tensor, rtol=2e-2, atol=1e-4, msg=name)


def report_of(head: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((head / "provenance.json").read_text())
    return found
