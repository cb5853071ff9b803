"""Run a Python program that a model wrote, and find out whether it reached its end.

This is not a sandbox. The program is a process of its own, with a time limit, limits of memory, file size and open
files, an empty environment, and a temporary folder as its working directory. It has the rights of this user: it can
read and change files, and it can use the network. A child that leaves the process group outlives it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from starspec.errors import ConfigError

Outcome = Literal["passed", "failed", "timed out"]
PASSED: Final = 77  # the exit code after the last line; a program that ends early has another one
POLL_S: Final = 0.005
PROGRAM: Final = "program.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramLimits:
    """What one program may use."""

    seconds: float = 10.0  # of wall time, with the start of Python
    memory_bytes: int = 2**30  # of address space
    file_bytes: int = 2**20  # of each file that it writes
    num_files: int = 64  # open at once

    @property
    def runner(self) -> str:
        """Python code that sets the limits and then runs `PROGRAM`. A user other than root can start no processes."""
        limits = {
            "RLIMIT_AS": self.memory_bytes,
            "RLIMIT_FSIZE": self.file_bytes,
            "RLIMIT_NOFILE": self.num_files,
            "RLIMIT_NPROC": 0,
            "RLIMIT_CORE": 0,
        }
        lines = [f"resource.setrlimit(resource.{name}, ({limit}, {limit}))" for name, limit in limits.items()]
        return "; ".join(["import resource, runpy, sys", *lines, f"runpy.run_path('{PROGRAM}')", f"sys.exit({PASSED})"])


LIMITS: Final = ProgramLimits()


def run_program(source: str, limits: ProgramLimits = LIMITS) -> Outcome:
    """Run a program to its end. It passes if it raises nothing and does not end early.

    Effects: those of the program; see above. Its process group is killed before this returns.
    """
    with tempfile.TemporaryDirectory(prefix="starspec-program-", ignore_cleanup_errors=True) as folder:
        Path(folder, PROGRAM).write_text(source, encoding="utf-8", errors="replace")
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", limits.runner],
            cwd=folder,
            env={},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            has_ended = _ends_within(process.pid, limits.seconds)
        finally:  # an interrupt too
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if not has_ended:
        return "timed out"
    return "passed" if process.returncode == PASSED else "failed"


def _ends_within(pid: int, seconds: float) -> bool:
    """Wait for a child's end, but leave its id in use, so that the id still names its own group."""
    deadline_s = time.monotonic() + seconds
    while time.monotonic() < deadline_s:
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return True
        time.sleep(POLL_S)
    return False


def check_programs_run() -> None:
    """Run a program that is right and one that is wrong. Raises: ConfigError if that cannot be told here."""
    if (run_program("assert 1 + 1 == 2"), run_program("assert 1 + 1 == 3")) != ("passed", "failed"):
        raise ConfigError(
            "this system does not run Python programs with limits of memory, files and processes, so HumanEval cannot "
            "be graded here: give files of GSM8K only"
        )
