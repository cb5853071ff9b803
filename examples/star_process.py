"""`starspec up` as a user would start it, for as long as a block runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

START_LIMIT_S = 300.0
STOP_LIMIT_S = 60.0


@contextmanager
def star(model: Path, draft: Sequence[str], num_targets: int) -> Iterator[dict[str, str]]:
    """Run `starspec up` until the block ends.

    Args:
        draft: the options that say what drafts.
    Yields: name of a process -> its address.
    """
    with tempfile.TemporaryDirectory() as folder:
        ready_file, log = Path(folder, "ready.json"), Path(folder, "up.log")
        command = [sys.executable, "-P", "-m", "starspec", "up", "--port", "0", "--no-table"]
        command += ["--ready-file", str(ready_file)]
        command += ["--target", str(model), "--targets", str(num_targets), "--max-num-seqs", "8"]
        command += [*draft, "--max-model-len", "1024"]
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, process_group=0)
        try:
            yield _addresses(process, ready_file, log)
        except BaseException:
            _stop(process)
            raise
        if code := _stop(process):
            sys.exit(f"demo: the star stopped with code {code}; the end of its log:\n{_tail(log)}")


def _addresses(process: subprocess.Popen[bytes], ready_file: Path, log: Path) -> dict[str, str]:
    limit_s = time.monotonic() + START_LIMIT_S
    with Console().status("starting draft server, targets and gateway"):
        while not ready_file.is_file():
            if process.poll() is not None or time.monotonic() > limit_s:
                sys.exit(f"demo: the star did not start; the end of its log:\n{_tail(log)}")
            time.sleep(0.1)
    addresses: dict[str, str] = json.loads(ready_file.read_text())
    return addresses


def _stop(process: subprocess.Popen[bytes]) -> int:
    """As Ctrl-C would. Returns: the exit code."""
    process.send_signal(signal.SIGINT)
    try:
        return process.wait(STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.wait()


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-20:])
