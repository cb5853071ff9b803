"""What the numbers of a star were over the last minutes, in bounded memory."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import Final

from starspec.observe.view import StarView, Values

SAMPLE_S: Final = 1.0
NUM_SAMPLES: Final = 600  # ten minutes

# What charts show, by the metrics' names. A target's is about 60 kB.
TARGET_SERIES: Final = (
    *("tokens_per_second", "plain_tokens_per_second", "num_requests_running", "num_requests_waiting"),
    *("wait_seconds", "t_v_seconds", "t_c_seconds", "round_seconds"),
    *("verify_seconds", "draft_seconds", "generation_tokens", "target_forwards"),
)
HUB_SERIES: Final = (
    *("hub_load", "hub_waiting", "hub_sequences_per_step", "hub_targets", "hub_queue_seconds"),
    *("hub_busy_seconds", "hub_ahead_seconds", "hub_outcomes", "hub_hits"),
)

Columns = dict[str, list[float]]  # by the metric's name; NaN = not known at that time
History = dict[str, list[float] | list[Columns]]


class _Recording:
    """The columns of one target or hub."""

    def __init__(self, names: Sequence[str], num_missed: int) -> None:
        self._columns = {name: array("d", [math.nan]) * num_missed for name in names}

    def add(self, values: Values) -> None:
        for name, column in self._columns.items():
            column.append(values.get(name, math.nan))
            del column[:-NUM_SAMPLES]

    @property
    def columns(self) -> Columns:
        return {name: column.tolist() for name, column in self._columns.items()}


class Recorder:
    """Takes a sample of a view each SAMPLE_S. Targets and hubs keep their places in the view."""

    def __init__(self) -> None:
        self._times_s = array("d")
        self._targets: list[_Recording] = []
        self._hubs: list[_Recording] = []

    def add(self, view: StarView) -> None:
        """Take in a view, unless the last sample is younger than SAMPLE_S."""
        if self._times_s and view.time_s - self._times_s[-1] < SAMPLE_S * 0.9:  # timers are late, and do not catch up
            return
        num_before = len(self._times_s)
        _add(self._targets, [each.metrics for each in view.targets], TARGET_SERIES, num_before)
        _add(self._hubs, [each.metrics for each in view.hubs], HUB_SERIES, num_before)
        self._times_s.append(view.time_s)
        del self._times_s[:-NUM_SAMPLES]

    def history(self) -> History:
        """All samples, the oldest first, as JSON takes them."""
        return {
            "times_s": self._times_s.tolist(),
            "targets": [each.columns for each in self._targets],
            "hubs": [each.columns for each in self._hubs],
        }


def _add(recordings: list[_Recording], rows: Sequence[Values], names: Sequence[str], num_before: int) -> None:
    while len(recordings) < len(rows):
        recordings.append(_Recording(names, num_before))
    for recording, values in zip(recordings, rows, strict=True):
        recording.add(values)
