"""Ctrl-C ends a command with exit code 130, and prints no traceback, whatever the command does at that moment."""

import signal
import subprocess
import sys

import pytest

from starspec.cli.up import _Interrupts

AT_AN_IMPORT = """
import os, signal, sys

from starspec.__main__ import main

class CtrlC:
    module = sys.argv.pop(1)

    def find_spec(self, name, path, target=None):
        if name == self.module:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, CtrlC())
main()
"""
TWICE = """
import os, signal
import starspec.cli
from starspec.__main__ import main

def end():
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:  # as typer does
        os.kill(os.getpid(), signal.SIGINT)

starspec.cli.main = end
main()
"""
IN_A_CALLBACK = """
import os, signal, time, weakref
import starspec.cli
from starspec.__main__ import main

def wait():
    thing = {0}
    ref = weakref.ref(thing, lambda _: os.kill(os.getpid(), signal.SIGINT))
    del thing
    time.sleep(60)

starspec.cli.main = wait
main()
"""
CHILD = """
import os, signal, sys, threading, time
from starspec.bench.wire.echo import run_echo
from starspec.harness.children import BenchProcess

is_early = sys.argv[1] == "early"
if is_early:
    threading.Timer(0.5, os.killpg, (0, signal.SIGINT)).start()
try:
    with BenchProcess(run_echo, None) as echo:
        if not is_early:
            echo.receive()  # it runs now
            os.killpg(0, signal.SIGINT)
        time.sleep(60)
except KeyboardInterrupt:
    sys.exit(130)
"""
POOL = """
import os, signal, sys, threading, time
from starspec.harness.children import in_processes

is_early = sys.argv[1] == "early"
if is_early:
    threading.Timer(0.5, os.killpg, (0, signal.SIGINT)).start()
try:
    with in_processes(time.sleep, [0.0, 600.0, 600.0, 600.0]) as results:
        next(results)  # they run now
        if not is_early:
            os.killpg(0, signal.SIGINT)
        next(results)
except KeyboardInterrupt:
    sys.exit(130)
"""


def said(script: str, *words: str) -> tuple[int, str]:
    """The exit code and the errors of a script that is a process group of its own."""
    command = [sys.executable, "-c", script, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, process_group=0)
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("typer", "--version"),
        ("structlog", "up", "synthetic:", "--port", "0"),
        ("torch", "generate", "hi", "--target", "synthetic:"),
    ],
    ids=" ".join,
)
def test_ctrl_c_inside_an_import_ends_in_silence(words: tuple[str, ...]) -> None:
    assert said(AT_AN_IMPORT, *words) == (130, "")


@pytest.mark.parametrize("script", [TWICE, IN_A_CALLBACK], ids=["again while it ends", "in a callback"])
def test_ctrl_c_ends_in_silence(script: str) -> None:
    assert said(script) == (130, "")


@pytest.mark.parametrize("when", ["early", "running"], ids=["while its modules are imported", "while it runs"])
def test_ctrl_c_reaches_no_child_of_a_benchmark(when: str) -> None:
    assert said(CHILD, when) == (130, "")


@pytest.mark.parametrize("when", ["early", "running"], ids=["while its modules are imported", "while it runs"])
def test_ctrl_c_ends_children_that_compute(when: str) -> None:
    assert said(POOL, when) == (130, "")


@pytest.mark.parametrize(("before", "num_counted"), [(signal.SIG_DFL, 1), (signal.SIG_IGN, 0)])
def test_a_terminal_that_closes_ends_a_star_in_good_order_except_behind_nohup(before, num_counted):
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        signal.signal(signal.SIGHUP, before)
        interrupts = _Interrupts()
        signal.raise_signal(signal.SIGHUP)
        assert interrupts.count == num_counted
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
