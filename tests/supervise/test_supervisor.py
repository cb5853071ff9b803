"""Real child processes, toy ones: what they say, how they die, that none is left."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from starspec.errors import ConfigError, StarspecError
from starspec.supervise.child import ChildSpec, ChildState
from starspec.supervise.supervisor import Supervisor

pytestmark = pytest.mark.system

SERVER = """
import os, signal, sys
from starspec.supervise.report import Failed, Loading, Ready, supervisor_line
line = supervisor_line(os.environ)
"""
SERVES = "line.send(Loading('a model')); line.send(Ready('tcp://127.0.0.1:1', '2 rows')); signal.pause()"
LIMIT_S = 20.0


def server(name: str, code: str, **fields: object) -> ChildSpec:
    command = (sys.executable, "-c", SERVER + code)
    return ChildSpec(name=name, command=command, environment=dict(os.environ), **fields)


@contextmanager
def supervised(*specs: ChildSpec) -> Iterator[tuple[Supervisor, list[tuple[str, str]]]]:
    output: list[tuple[str, str]] = []
    with Supervisor(specs, lambda name, line: output.append((name, line))) as supervisor:
        supervisor.start()
        yield supervisor, output


def until(supervisor: Supervisor, holds: Callable[[], bool]) -> None:
    limit_s = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < limit_s, [(view.spec.name, view.state, view.detail) for view in supervisor.views]
        supervisor.step(0.05)


def test_a_child_is_ready_when_it_says_so_and_where_and_with_what() -> None:
    with supervised(server("hub", SERVES)) as (supervisor, _):
        until(supervisor, lambda: supervisor.is_ready)
        assert supervisor.views[0].detail == "tcp://127.0.0.1:1"
        assert supervisor.views[0].memory == "2 rows"


def test_what_children_print_carries_their_names() -> None:
    code = "print('one'); sys.stderr.write('50%\\r100%\\nend without newline'); sys.stdout.flush();" + SERVES
    with supervised(server("hub", code)) as (supervisor, output):
        until(supervisor, lambda: len(output) == 3)
        supervisor.stop(drain_s=LIMIT_S)
    assert sorted(output) == [("hub", "100%"), ("hub", "50%"), ("hub", "end without newline"), ("hub", "one")]


def test_a_child_that_cannot_start_ends_everything_with_its_own_reason() -> None:
    failing = server("target-0", "line.send(Failed('no model there')); sys.exit(2)")
    with supervised(server("hub", SERVES), failing) as (supervisor, _):
        hub = supervisor.views[0].pid
        assert hub is not None
        with pytest.raises(ConfigError, match="target-0 cannot start: no model there"):
            until(supervisor, lambda: False)
    assert not psutil.pid_exists(hub)


def test_a_killed_child_is_started_again() -> None:
    with supervised(server("hub", SERVES)) as (supervisor, output):
        until(supervisor, lambda: supervisor.is_ready)
        first = supervisor.views[0].pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        until(supervisor, lambda: supervisor.is_ready and supervisor.views[0].num_restarts == 1)
        assert supervisor.views[0].pid != first
    assert output == [("hub", "killed by SIGKILL; starting it again in 0.25 s"), ("hub", "ready again")]


def test_a_child_that_waits_to_be_started_again_is_not_once_all_stop(tmp_path: Path) -> None:
    slow = "import time; signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1), sys.exit()));" + SERVES
    starts = tmp_path / "starts"
    dying = f"open({str(starts)!r}, 'a').write('.'); line.send(Ready('tcp://127.0.0.1:1')); sys.exit(7)"
    with supervised(server("target-0", slow), server("target-1", dying)) as (supervisor, _):
        until(supervisor, lambda: supervisor.views[1].state is ChildState.WAITING)
        num_starts = len(starts.read_text())
        supervisor.stop(drain_s=LIMIT_S)
        assert [view.pid for view in supervisor.views] == [None, None]
        assert len(starts.read_text()) == num_starts


DIES_ONCE_READY = """
line.send(Ready('tcp://127.0.0.1:1'))
sys.exit(7)
"""


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("starspec.policy.vitals.FIRST_DELAY_S", 0.01)
    monkeypatch.setattr("starspec.policy.vitals.MAX_DEATHS", 2)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("is_essential", [False, True])  # a hub; a target beside another
def test_the_others_go_on_without_a_child_that_keeps_dying_and_it_is_tried_again(is_essential: bool) -> None:
    dying = server("dying", DIES_ONCE_READY, is_essential=is_essential)
    with supervised(dying, server("target-0", SERVES), server("gateway", SERVES, stop_stage=1)) as (supervisor, output):
        view = supervisor.views[0]
        until(supervisor, lambda: view.state is ChildState.GIVEN_UP and supervisor.is_ready)
        assert output[-1] == (
            "dying",
            "dying ended 3 times in a row, the last time: exited with code 7. "
            "Going on without it; trying again in 0.04 s",
        )
        until(supervisor, lambda: view.num_restarts == 4)
        assert [each.state for each in supervisor.views[1:]] == [ChildState.READY] * 2


@pytest.mark.usefixtures("hasty")
def test_all_ends_once_no_target_is_left() -> None:
    dying = [server(f"target-{number}", DIES_ONCE_READY) for number in range(2)]
    with supervised(*dying, server("gateway", SERVES, stop_stage=1)) as (supervisor, _):
        with pytest.raises(StarspecError, match=r"nothing can serve any more: target-0 ended .*; target-1 ended .* 7$"):
            until(supervisor, lambda: False)
        assert supervisor.views[2].state is ChildState.READY


def test_a_child_that_is_killed_while_it_starts_is_started_again(tmp_path: Path) -> None:
    flag = tmp_path / "was-killed"
    code = f"import pathlib; flag = pathlib.Path({str(flag)!r})\n"
    code += "if not flag.exists(): flag.touch(); os.kill(os.getpid(), 9)\n"
    with supervised(server("target-0", code + SERVES)) as (supervisor, _):
        until(supervisor, lambda: supervisor.is_ready)
        assert supervisor.views[0].num_restarts == 1


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Children beat ten times as often as they would, and hang ten times as soon."""
    monkeypatch.setattr("starspec.policy.vitals.SILENT_S", 0.5)
    monkeypatch.setattr("starspec.policy.vitals.HANGS_S", 2.0)


BEATS = "import starspec.supervise.report as report; report.BEAT_S = 0.1\n" + SERVER


@pytest.mark.usefixtures("impatient")
def test_a_suspended_child_is_shown_as_silent_then_killed_and_started_again() -> None:
    spec = ChildSpec(name="target-0", command=(sys.executable, "-c", BEATS + SERVES), environment=dict(os.environ))
    with supervised(spec) as (supervisor, output):
        view = supervisor.views[0]
        until(supervisor, lambda: supervisor.is_ready)
        first = view.pid
        assert first is not None
        os.kill(first, signal.SIGSTOP)
        until(supervisor, lambda: view.state is ChildState.SILENT)
        os.kill(first, signal.SIGCONT)
        until(supervisor, lambda: view.state is ChildState.READY)
        os.kill(first, signal.SIGSTOP)
        until(supervisor, lambda: view.num_restarts == 1 and supervisor.is_ready)
        assert not psutil.pid_exists(first)
    said = [line for _, line in output]
    assert said[1] == "lives again"
    assert said[3].startswith("it hung, without a sign of life for 2 s, and was killed; starting it again in")
    assert said[4] == "ready again"


COMPUTES = """
import time
line.send(Ready('tcp://127.0.0.1:1'))
until_s = time.monotonic() + 5.0
while time.monotonic() < until_s:
    sum(range(100_000))  # holds the interpreter, but for what it gives to other threads
line.send(Loading('done'))
signal.pause()
"""


@pytest.mark.usefixtures("impatient")
def test_a_busy_child_is_left_alone() -> None:
    spec = ChildSpec(name="target-0", command=(sys.executable, "-c", BEATS + COMPUTES), environment=dict(os.environ))
    with supervised(spec) as (supervisor, output):
        until(supervisor, lambda: supervisor.views[0].detail == "done")
        assert output == []


# It looks up now and then: the system may give the signal to its other thread, which would not wake `signal.pause`.
GOES_ON = """
import time
signal.signal(signal.SIGCONT, lambda *_: print('goes on', flush=True))
line.send(Ready('tcp://127.0.0.1:1'))
while True:
    time.sleep(0.05)
"""


def test_a_supervisor_that_was_suspended_itself_kills_nobody() -> None:
    """All its processes may have been suspended with it, and have had no time to beat since."""
    ahead_s = 0.0
    output = []
    spec = server("target-0", GOES_ON)
    with Supervisor(
        [spec], lambda name, line: output.append((name, line)), clock=lambda: time.monotonic() + ahead_s
    ) as supervisor:
        supervisor.start()
        until(supervisor, lambda: supervisor.is_ready)
        pid = supervisor.views[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        supervisor.step(0.0)  # takes in the beats from before
        ahead_s = 3600.0
        supervisor.step(0.0)
        os.kill(pid, signal.SIGCONT)
        until(supervisor, lambda: output)
    assert output == [("target-0", "goes on")]


DRAINS = """
import threading
asked = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: asked.set())
line.send(Ready('tcp://127.0.0.1:1'))
asked.wait()
print('drained', flush=True)
"""


def test_stages_stop_one_after_the_other_each_drained() -> None:
    specs = [server("hub", DRAINS, stop_stage=2), server("target", DRAINS, stop_stage=1), server("gateway", DRAINS)]
    with supervised(*specs) as (supervisor, output):
        until(supervisor, lambda: supervisor.is_ready)
        supervisor.stop(drain_s=LIMIT_S)
        assert [view.state for view in supervisor.views] == [ChildState.STOPPED] * 3
    assert output == [("gateway", "drained"), ("target", "drained"), ("hub", "drained")]


DEAF = "signal.signal(signal.SIGTERM, signal.SIG_IGN);" + SERVES


@pytest.mark.parametrize("is_impatient", [False, True])
def test_a_child_that_will_not_stop_is_killed(is_impatient: bool) -> None:
    with supervised(server("target-0", DEAF)) as (supervisor, _):
        until(supervisor, lambda: supervisor.is_ready)
        supervisor.stop(drain_s=0.1, is_impatient=lambda: is_impatient)
        assert supervisor.views[0].detail == "killed by SIGKILL"


HURRIES = """
import signal
def hurry(number, frame):
    print("cut short", flush=True)
    raise SystemExit
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGURG, hurry)
"""


def test_children_in_flight_are_told_to_hurry_and_say_what_they_must() -> None:
    with supervised(server("gateway", HURRIES + SERVES)) as (supervisor, output):
        until(supervisor, lambda: supervisor.is_ready)
        supervisor.stop(drain_s=LIMIT_S, is_impatient=lambda: True)
        assert supervisor.views[0].state is ChildState.STOPPED
    assert output == [("gateway", "cut short")]


def test_no_child_outlives_a_supervisor_that_was_killed(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    code = f"""
import os, sys
from starspec.supervise.child import ChildSpec
from starspec.supervise.supervisor import Supervisor
commands = {[server("hub", SERVES).command, server("target", DRAINS).command]!r}
specs = [ChildSpec(name=str(i), command=command, environment=dict(os.environ)) for i, command in enumerate(commands)]
supervisor = Supervisor(specs, print)
supervisor.start()
while not supervisor.is_ready:
    supervisor.step(0.1)
open({str(pids)!r}, 'w').write(' '.join(str(view.pid) for view in supervisor.views))
os.kill(os.getpid(), 9)
"""
    parent = psutil.Popen([sys.executable, "-c", code])
    assert parent.wait(LIMIT_S) == -signal.SIGKILL
    children = [process for pid in pids.read_text().split() if (process := running(int(pid)))]
    _, alive = psutil.wait_procs(children, timeout=LIMIT_S)
    assert not alive


def running(pid: int) -> psutil.Process | None:
    try:
        return psutil.Process(pid)
    except psutil.NoSuchProcess:
        return None
