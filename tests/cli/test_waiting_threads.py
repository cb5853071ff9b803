"""Servers share cores: the OpenMP that torch brings is told how to wait before it is loaded."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

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
