"""What `starspec up` prints, and to whom."""

import io
import os
import subprocess
import sys
from pathlib import Path

from starspec.cli.display import LineDisplay, TableDisplay
from starspec.supervise.child import ChildSpec, ChildState
from starspec.supervise.supervisor import ChildView

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
