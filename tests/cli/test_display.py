"""What `starspec up` prints, and to whom."""

import os
import subprocess
import sys

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
