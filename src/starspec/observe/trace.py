"""Traces for Chrome and Perfetto: what each process did, and when.

A process is one `pid` with the name of its role. A track (draft, verify, stage, pipe, wire, idle, answers, and at a hub
one for each target) is one `tid`, or several where its slices overlap. Times are those of `time.monotonic()`, which all
processes of a host share, so the traces of several processes can be merged.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from starspec.output_files import write_whole

MAX_SLICES = 200_000  # kept per process: about an hour of rounds; the oldest are dropped first
FLOW_END_US: Final = 1.0  # an arrow ends so long before the end of its slice, to lie within it
TRACKS = ("draft", "verify", "stage", "pipe", "wire", "idle")  # in the order of the viewer; others follow

Event = dict[str, Any]  # one entry of Chrome's `traceEvents`
Lane = tuple[str, int]  # (track, 0...): overlapping slices of a track are in different lanes


class Slice(NamedTuple):
    """One span of time on a track."""

    track: str
    name: str
    start_s: float
    end_s: float
    args: dict[str, Any]


class Trace:
    """The slices of one process, in bounded memory. Safe to call from several threads.

    Args:
        process: the name of the process in the viewer.
        max_slices: slices kept; older ones are dropped and counted.
    """

    def __init__(self, process: str, max_slices: int = MAX_SLICES) -> None:
        self._process = process
        self._slices: deque[Slice] = deque(maxlen=max_slices)
        self._num_seen = 0

    def slice(self, track: str, name: str, start_s: float, end_s: float, **args: str | float) -> None:
        """Record that `name` ran from `start_s` to `end_s`, both of `time.monotonic()`."""
        self._num_seen += 1
        self._slices.append(Slice(track, name, start_s, end_s, args))

    @property
    def num_forgotten(self) -> int:
        return self._num_seen - len(self._slices)

    def write(self, path: Path) -> None:
        """Write the slices as Chrome trace JSON.

        Effects: replaces `path` atomically.
        Raises: OutputError if it cannot be written; an earlier trace is then still there.
        """
        slices = sorted(self._slices, key=lambda each: (each.start_s, -each.end_s))
        placed = list(_in_lanes(slices))
        lanes = sorted({(each.track, lane) for each, lane in placed}, key=_viewing_order)
        tids = {lane: tid for tid, lane in enumerate(lanes, start=1)}
        slice_events = [_slice_event(each, tids[each.track, lane]) for each, lane in placed]
        flow_events = [event for each, lane in placed for event in _flow_events(each, tids[each.track, lane])]
        _write_json(path, [*self._name_events(tids), *slice_events, *flow_events])

    def _name_events(self, tids: dict[Lane, int]) -> Iterator[Event]:
        note = f" ({self.num_forgotten} older slices forgotten)" if self.num_forgotten else ""
        yield _metadata("process_name", 0, {"name": self._process + note})
        for (track, lane), tid in tids.items():
            yield _metadata("thread_name", tid, {"name": track if lane == 0 else f"{track} {lane + 1}"})
            yield _metadata("thread_sort_index", tid, {"sort_index": tid})


def merge(parts: Sequence[Path], path: Path) -> int:
    """Merge the traces of several processes.

    Args:
        parts: files of `Trace.write`; a missing one (of a process that was killed) is skipped.
    Returns: the number of parts found. If there is none, nothing is written.
    Raises: as `Trace.write`.
    """
    found = [part for part in parts if part.is_file()]
    events = [event for part in found for event in json.loads(part.read_bytes())["traceEvents"]]
    if found:
        _write_json(path, events)
    return len(found)


def _in_lanes(slices: Sequence[Slice]) -> Iterator[tuple[Slice, int]]:
    """Assign each slice a lane in which it overlaps no other, because slices of one `tid` must nest.

    Args:
        slices: sorted by start.
    """
    ends: dict[str, list[float]] = {}  # track -> end of the last slice of each lane
    for each in slices:
        lanes = ends.setdefault(each.track, [])
        free = next((lane for lane, end_s in enumerate(lanes) if end_s <= each.start_s), len(lanes))
        lanes[free : free + 1] = [each.end_s]  # a new lane when none is free
        yield each, free


def _viewing_order(lane: Lane) -> tuple[int, Lane]:
    track = lane[0]
    return (TRACKS.index(track) if track in TRACKS else len(TRACKS)), lane


def _metadata(name: str, tid: int, args: Event) -> Event:
    return {"ph": "M", "name": name, "pid": os.getpid(), "tid": tid, "args": args}


def _slice_event(each: Slice, tid: int) -> Event:
    return {
        "ph": "X",
        "name": each.name,
        "cat": each.track,
        "ts": round(each.start_s * 1e6, 3),  # microseconds
        "dur": round((each.end_s - each.start_s) * 1e6, 3),
        "pid": os.getpid(),
        "tid": tid,
        "args": each.args,
    }


def _flow_events(each: Slice, tid: int) -> Iterator[Event]:
    """The points of a slice that arrows connect: `flow` and `flow_from`, as Tracer has them."""
    common = {"name": "flow", "cat": "flow", "pid": os.getpid(), "tid": tid}
    start_us, end_us = round(each.start_s * 1e6, 3), round(each.end_s * 1e6, 3)
    if "flow" in each.args:
        yield {**common, "ph": "t", "ts": start_us, "id": each.args["flow"]}
    if "flow_from" in each.args:
        yield {**common, "ph": "s", "ts": start_us, "id": each.args["flow_from"]}
        within_us = max(start_us, end_us - FLOW_END_US)
        yield {**common, "ph": "f", "bp": "e", "ts": within_us, "id": each.args["flow_from"]}


def _write_json(path: Path, events: Sequence[Event]) -> None:
    write_whole(path, json.dumps({"traceEvents": list(events), "displayTimeUnit": "ms"}).encode())
