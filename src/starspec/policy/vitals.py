"""Whether a child lives, and when it is started again. No I/O and no clock of its own: `now` is monotonic seconds.

A child sends a beat every BEAT_S from a thread of its own, also while it computes (`supervise/report.py`). So a child
that is busy beats, and one that is suspended does not. A child of which only the main thread hangs beats, too.
"""

from __future__ import annotations

from math import inf
from typing import Final

from starspec.policy.backoff import Backoff

BEAT_S: Final = 1.0  # between two beats of a child
# A child that serves: nothing that it does keeps its threads from running for seconds. A machine that swaps may.
SILENT_S: Final = 3 * BEAT_S  # shown as not answering; nothing else happens
HANGS_S: Final = 10.0  # killed and started again. Gateways drop its requests then anyhow (`serving_client.py`)
# A child that starts: importing libraries and reading weights from a slow disk may hold the interpreter for long.
STARTING_HANGS_S: Final = 120.0

FIRST_DELAY_S: Final = 0.25  # of a restart; it doubles with each death in a row ...
MAX_DELAY_S: Final = 60.0  # ... up to this, however often
MAX_DEATHS: Final = 5  # in a row; after more, the child is given up: it is still tried, but nobody counts on it
GOOD_RUN_S: Final = 10.0  # a run that served for so long ends the row

ABSENT_S: Final = 2.0  # a supervisor that looks so much later than it meant to was suspended


def was_suspended(gap_s: float, wait_s: float) -> bool:
    """Whether a supervisor could not hear its children, which may have been suspended as well.

    Args:
        gap_s: seconds between two of its looks.
        wait_s: how long it meant to wait between them.
    """
    return gap_s > wait_s + ABSENT_S


def fails_for_good(exit_code: int, *, was_ready: bool) -> bool:
    """Whether a child that ended should not be started again: it failed by itself before it was ever ready.

    One that was killed may succeed the next time.
    """
    return not was_ready and exit_code >= 0


class Vitals:
    """The signs of life of one child, through all its runs."""

    def __init__(self) -> None:
        self._restarts = Backoff(FIRST_DELAY_S, MAX_DELAY_S, GOOD_RUN_S)
        self._heard_s = inf  # inf: it does not run
        self._is_ready = False  # this run serves

    @property
    def num_deaths(self) -> int:
        """In a row."""
        return self._restarts.num_failures

    @property
    def is_given_up(self) -> bool:
        """Whether it died too often in a row."""
        return self.num_deaths > MAX_DEATHS

    def start(self, now: float) -> None:
        """A run begins."""
        self._heard_s, self._is_ready = now, False

    def hear(self, now: float) -> None:
        """Any report has come, or nothing could have been heard up to now."""
        self._heard_s = now

    def become_ready(self, now: float) -> None:
        """It serves. Silence counts from here."""
        self._heard_s, self._is_ready = now, True
        self._restarts.note_success(now)

    def silence_s(self, now: float) -> float:
        """Seconds since the last sign of life; 0 or less if it does not run."""
        return now - self._heard_s

    def is_silent(self, now: float) -> bool:
        """Whether it serves, and several beats are missing."""
        return self._is_ready and self.silence_s(now) >= SILENT_S

    def hangs(self, now: float) -> bool:
        """Whether it has been silent for so long that it will not come back."""
        return self.silence_s(now) >= (HANGS_S if self._is_ready else STARTING_HANGS_S)

    def die(self, now: float) -> float:
        """The run has ended. Returns: seconds to wait before the next start."""
        self._heard_s, self._is_ready = inf, False
        return self._restarts.pause_s(now)
