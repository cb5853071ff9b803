"""The cost of the wire: interval arithmetic exactly, and a small star of real processes."""

import os
import subprocess
import sys
import time
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starspec.bench.wire.echo import CurvePair, measure_echo, run_echo
from starspec.bench.wire.measure import run_callers, run_star
from starspec.bench.wire.times import Interval, Overhead, uncovered_s
from starspec.errors import PeerLost
from starspec.harness.children import BenchProcess
from starspec.harness.report import percentile


@given(
    st.lists(st.integers(0, 60), min_size=2, max_size=12, unique=True).map(sorted),
    st.tuples(st.integers(0, 60), st.integers(0, 60)).map(sorted),
)
def test_what_no_forward_covers_is_counted_tick_by_tick(edges: list[int], interval: list[int]) -> None:
    others = [Interval(start, end) for start, end in zip(edges[::2], edges[1::2], strict=False)]
    start, end = interval
    ticks = [tick for tick in range(start, end) if not any(each.start_s <= tick < each.end_s for each in others)]
    assert uncovered_s(Interval(start, end), others) == len(ticks)


spans = st.tuples(st.integers(0, 60), st.integers(0, 60)).map(sorted).map(lambda ends: Interval(*ends))


@given(
    st.lists(st.integers(0, 60), max_size=12, unique=True).map(sorted),
    st.lists(spans, min_size=1, max_size=6),
)
def test_overhead_is_counted_and_shared_tick_by_tick(edges: list[int], requests: list[Interval]) -> None:
    forwards = [Interval(start, end) for start, end in zip(edges[::2], edges[1::2], strict=False)]
    overhead = Overhead(requests, forwards)

    def num_waiting(tick: int) -> int:
        return sum(each.start_s <= tick < each.end_s for each in requests)

    for request in requests:
        ticks = range(int(request.start_s), int(request.end_s))
        idle = [tick for tick in ticks if not any(each.start_s <= tick < each.end_s for each in forwards)]
        assert overhead.whole_s(request) == len(idle)
        assert overhead.share_s(request) == pytest.approx(sum(1 / num_waiting(tick) for tick in idle))


@given(st.lists(st.integers(0, 9), min_size=1, max_size=30), st.sampled_from([50, 90, 99]))
def test_a_percentile_is_the_smallest_value_that_enough_values_do_not_exceed(values: list[int], percent: int) -> None:
    found = percentile(values, percent)
    assert 100 * sum(each <= found for each in values) >= percent * len(values)
    assert 100 * sum(each < found for each in values) < percent * len(values)


@pytest.mark.system
def test_a_star_of_real_processes_times_every_proposal() -> None:
    star = run_star(2, 15)
    assert len(star.sent) >= 2 * 12
    assert all(before.end_s <= after.start_s for before, after in pairwise(star.forwards))
    assert all(0 <= outside <= trip for outside, trip in zip(star.outside_s, star.round_trips_s, strict=True))
    assert percentile(star.round_trips_s, 50) > 0.002 * 4  # the last of an answer ask for fewer
    assert len(star.served) >= 2 * 15
    assert all(any(sent.start_s < hub.start_s < sent.end_s for hub in star.served) for sent in star.sent)
    assert all(0 < share <= whole for share, whole in zip(star.shares_s, star.latencies_s, strict=True))


@pytest.mark.system
def test_callers_of_a_bare_echo_time_every_call() -> None:
    times = run_callers(2, 10)
    assert len(times) == 2 * 8
    assert min(times) > 0


@pytest.mark.system
@pytest.mark.parametrize("curve", [None, CurvePair()], ids=["plain", "curve"])
def test_an_echo_comes_back_each_time(curve: CurvePair | None) -> None:
    with BenchProcess(run_echo, curve) as echo:
        times = measure_echo(echo.receive(), 200, curve, 20)
        echo.send("stop")
    assert len(times) == 20
    assert min(times) > 0


@pytest.mark.system
def test_a_process_that_fails_is_heard_with_its_reason() -> None:
    with BenchProcess(run_echo, "no curve") as process, pytest.raises(PeerLost, match="failed: AttributeError: 'str'"):
        process.receive()


KILLED = """
import os, signal, sys
from starspec.harness.children import BenchProcess
from test_wire import spin
if __name__ == "__main__":
    with BenchProcess(spin) as child:
        print(child.receive(), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
"""


def spin(parent: Connection) -> None:
    """Tell who it is, and never look up again."""
    parent.send(os.getpid())
    while True:
        time.sleep(0.01)


@pytest.mark.system
def test_a_killed_benchmark_leaves_nobody_behind(tmp_path: Path) -> None:
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False, env=environment
    )
    child = int(done.stdout)
    deadline_s = time.monotonic() + 30.0
    while is_alive(child) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert not is_alive(child)


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that nobody has buried yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
