"""What `starspec up` prints, and to whom."""

import io
import os
import subprocess
import sys
from pathlib import Path

import structlog

from starspec.cli.display import LineDisplay, TableDisplay, states_of
from starspec.cli.process import log_to_stderr
from starspec.ids import TargetId
from starspec.observe.metrics import StatusSnapshot
from starspec.stats import PipeStats, StageStats, TargetStats
from starspec.supervise.child import ChildSpec, ChildState
from starspec.supervise.supervisor import ChildView
from starspec.wire.messages import TargetStatus

SPEAKER = """
import sys
from starspec.cli.display import LineDisplay

display = LineDisplay()
for number in range(3):
    display.show_line("up", f"line {number}")
sys.stderr.write("went on")
"""


def test_lines_that_nobody_reads_any_more_stop_nothing() -> None:
    """`starspec up | tee log`: Ctrl-C ends `tee` at once, and the star has yet to stop in good order."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-c", SPEAKER], stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (0, "went on")


def test_a_full_disk_stops_no_star() -> None:
    """`starspec up > log`: its requests are answered although its lines are lost."""
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", SPEAKER], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert done.stderr.startswith("went on")


def test_what_a_process_prints_goes_to_standard_error(capsys) -> None:
    """`starspec up 2> log`: its own lines stay on standard output, where a person or a script reads them."""
    display = LineDisplay()
    display.show_line("up", "ready")
    display.show_log("target-0", "a warning")
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("up       | ready\n", "target-0 | a warning\n")


def test_a_table_leaves_standard_error_to_its_file(monkeypatch) -> None:
    monkeypatch.setattr("sys.stderr", log := io.StringIO())
    with TableDisplay() as display:
        display.show_log("target-0", "a warning")
    assert log.getvalue() == "target-0 | a warning\n"


def test_a_stage_of_loading_is_one_line_however_far_it_comes(capsys) -> None:
    view = ChildView(ChildSpec(name="target-0", command=()), ChildState.STARTING)
    display = LineDisplay()
    for detail in ("loading x: reading x, 10%", "loading x: reading x, 90%", "loading x: packing x, 0%"):
        view.detail = detail
        display.show_start([view])
    assert capsys.readouterr().out.splitlines() == [
        "target-0 | loading x: reading x, 10%",
        "target-0 | loading x: packing x, 0%",
    ]


def test_what_a_process_prints_commands_no_terminal(capsys) -> None:
    """A process may have read it from a network: a traceback quotes what was sent."""
    display = LineDisplay()
    display.show_line("hub", "killed\x1b[2J")
    display.show_log("hub", "a\tb\x9b1J")
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("hub      | killed\\x1b[2J\n", "hub      | a\tb\\x9b1J\n")


def test_a_start_is_shown_as_it_is_told_and_not_as_markup(capsys) -> None:
    view = ChildView(ChildSpec(name="hub", command=()), ChildState.STARTING, detail="loading [/x] a\x1b[2J")
    with TableDisplay() as display:
        display.show_start([view])
    assert r"hub loading [/x] a\x1b[2J" in capsys.readouterr().out


def test_a_stage_has_a_row_of_its_own_until_its_target_tells_of_it() -> None:
    names = ("hub", "target-0", "target-0-stage-0", "target-0-stage-1", "gateway")
    views = [ChildView(ChildSpec(name=name, command=()), ChildState.READY) for name in names]
    status = TargetStatus(
        target_id=TargetId("target-0"),
        model="toy",
        max_model_len=128,
        num_running=0,
        num_waiting=0,
        num_rows=8,
        num_free_rows=8,
        is_draft_connected=True,
        stats=TargetStats(pipe=PipeStats(stages=[StageStats(endpoint="a", layers="0:15", index=0)])),
    )
    assert states_of(views, StatusSnapshot()) == (dict.fromkeys(names[1:4], "ready"), "ready")
    assert states_of(views, StatusSnapshot((status,))).targets == {"target-0": "ready", "target-0-stage-1": "ready"}
    assert states_of(views[1:], StatusSnapshot()).hub is None


def test_what_is_logged_commands_no_terminal(capsys) -> None:
    """Names and reasons come from clients and peers, and a traceback quotes them."""
    log_to_stderr("info")
    try:
        structlog.get_logger().info("a peer\x1b[2J", name="a\x9b1J", number=3, exc_info=ValueError("b\x1b[2J"))
    finally:
        structlog.reset_defaults()
    line, *_, last = capsys.readouterr().err.splitlines()
    assert line.split()[3:] == ["a", r"peer\x1b[2J", r"name=a\x9b1J", "number=3"]
    assert last == r"ValueError: b\x1b[2J"
