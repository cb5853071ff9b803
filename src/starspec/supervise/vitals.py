"""Whether a child lives, and when it is started again. No I/O and no clock of its own: `now` is monotonic seconds.

A child sends a beat every BEAT_S from a thread of its own, also while it computes (`report.py`). So a child that is
busy beats, and one that is suspended or deadlocked does not.
"""

from __future__ import annotations

from math import inf
from typing import Final

from starspec.supervise.report import BEAT_S

# A child that serves: nothing that it does keeps its threads from running for seconds. A machine that swaps may.
SILENT_S: Final = 3 * BEAT_S  # shown as not answering; nothing else happens
HANGS_S: Final = 10.0  # killed and started again. Gateways drop its requests then anyhow (`serving_client.py`)
# A child that starts: importing libraries and reading weights from a slow disk may hold the interpreter for long.
STARTING_HANGS_S: Final = 120.0

FIRST_DELAY_S: Final = 0.25  # of a restart; it doubles with each death in a row ...
MAX_DELAY_S: Final = 60.0  # ... up to this, however often
MAX_DEATHS: Final = 5  # in a row; after more, the child is given up: it is still tried, but nobody counts on it
GOOD_RUN_S: Final = 10.0  # a run that served for so long ends the row


class Vitals:
    """The signs of life of one child, through all its runs."""

    def __init__(self) -> None:
        self.num_deaths = 0  # in a row
        self._heard_s = inf  # inf: it does not run
        self._ready_s: float | None = None  # since when this run serves

    @property
    def is_given_up(self) -> bool:
        """Whether it died too often in a row."""
        return self.num_deaths > MAX_DEATHS

    def start(self, now: float) -> None:
        """A run begins."""
        self._heard_s, self._ready_s = now, None

    def hear(self, now: float) -> None:
        """Any report has come, or nothing could have been heard up to now."""
        self._heard_s = now

    def become_ready(self, now: float) -> None:
        """It serves. Silence counts from here."""
        self._heard_s = self._ready_s = now

    def silence_s(self, now: float) -> float:
        """Seconds since the last sign of life; 0 or less if it does not run."""
        return now - self._heard_s

    def is_silent(self, now: float) -> bool:
        """Whether it serves, and several beats are missing."""
        return self._ready_s is not None and self.silence_s(now) >= SILENT_S

    def hangs(self, now: float) -> bool:
        """Whether it has been silent for so long that it will not come back."""
        return self.silence_s(now) >= (STARTING_HANGS_S if self._ready_s is None else HANGS_S)

    def die(self, now: float) -> float:
        """The run has ended. Returns: seconds to wait before the next start."""
        if self._ready_s is not None and now - self._ready_s >= GOOD_RUN_S:
            self.num_deaths = 0
        self.num_deaths += 1
        self._heard_s, self._ready_s = inf, None
        doublings = min(self.num_deaths - 1, 10)  # 2**10 is beyond the limit, and never too large for a float
        return min(MAX_DELAY_S, FIRST_DELAY_S * 2.0**doublings)
