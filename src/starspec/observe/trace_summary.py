"""What a trace tells at a glance: how long each process worked and idled, and what targets waited for."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from starspec.errors import ConfigError

LEAST_GAP_S: Final = 0.001  # shorter pauses do not count
DRAFT, VERIFY, STAGE, WAIT = "draft", "verify", "stage", "wait"  # tracks of a hub, target, stage; a slice's name
STEP: Final = "draft step"

Span = tuple[float, float]  # start and end, in seconds


class Work(NamedTuple):
    """One process, from the first slice of the trace to the last."""

    process: str
    span_s: float  # of the whole trace
    busy_s: float  # a hub drafts, a target verifies, a stage computes
    gaps: Sequence[float]  # seconds of pauses between two pieces of work
    steps: Sequence[float]  # of draft steps that targets waited for, of verifications, of a stage's computing

    @property
    def busy_share(self) -> float:
        return self.busy_s / self.span_s if self.span_s else 0.0

    @property
    def median_step_s(self) -> float | None:
        """t_s of a hub, t_v of a target or of a stage."""
        return median(self.steps) if self.steps else None


class Rounds(NamedTuple):
    """The rounds of one target, which does one thing after the other: what their time is made of, in seconds."""

    process: str
    verify_s: float
    draft_s: float  # of the waits: a hub drafts meanwhile
    wire_s: float  # of the waits: no hub drafts, so a message is on its way, or the hub is late for other reasons
    other_s: float  # between rounds, and while there was no request

    @property
    def whole_s(self) -> float:
        return self.verify_s + self.draft_s + self.wire_s + self.other_s


class Summary(NamedTuple):
    """A trace in numbers."""

    span_s: float
    work: Sequence[Work]
    rounds: Sequence[Rounds]


class _Slice(NamedTuple):
    process: str
    track: str
    name: str
    span: Span


def summarize(path: Path) -> Summary:
    """Raises: ConfigError if the file cannot be read, or is not a trace of starspec."""
    slices = _slices(path)
    first, last = min(each.span[0] for each in slices), max(each.span[1] for each in slices)
    processes = dict.fromkeys(each.process for each in slices)
    drafting = _union(each.span for each in slices if each.track == DRAFT)
    work = [_work(name, [each for each in slices if each.process == name], last - first) for name in processes]
    rounds = [_rounds(name, [each for each in slices if each.process == name], drafting) for name in processes]
    return Summary(last - first, work, [each for each in rounds if each.verify_s])


def _slices(path: Path) -> list[_Slice]:
    try:
        events: list[dict[str, Any]] = json.loads(path.read_bytes())["traceEvents"]
        names = {each["pid"]: each["args"]["name"] for each in events if each["name"] == "process_name"}
        found = [
            _Slice(names[each["pid"]], each["cat"], each["name"], (each["ts"] / 1e6, (each["ts"] + each["dur"]) / 1e6))
            for each in events
            if each["ph"] == "X"
        ]
    except OSError as error:
        raise ConfigError(f"'{path}' cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"'{path}' is not a trace of starspec (--trace writes one)") from error
    if not found:
        raise ConfigError(f"'{path}' has no slices: nothing was asked of the star while it ran")
    return sorted(found, key=lambda each: each.span)


def _work(process: str, slices: Sequence[_Slice], span_s: float) -> Work:
    busy = _union(each.span for each in slices if each.track in (DRAFT, VERIFY, STAGE))
    gaps = [later[0] - earlier[1] for earlier, later in pairwise(busy)]
    steps = [each.span[1] - each.span[0] for each in slices if each.name in (STEP, VERIFY) or each.track == STAGE]
    return Work(process, span_s, _length(busy), [gap for gap in gaps if gap >= LEAST_GAP_S], steps)


def _rounds(process: str, slices: Sequence[_Slice], drafting: Sequence[Span]) -> Rounds:
    verifying = _union(each.span for each in slices if each.track == VERIFY)
    waiting = _union(each.span for each in slices if each.name == WAIT)
    draft_s = _length(_intersection(waiting, drafting))
    verify_s, wait_s = _length(verifying), _length(waiting)
    both = _union([*verifying, *waiting])
    whole_s = both[-1][1] - both[0][0] if both else 0.0
    return Rounds(process, verify_s, draft_s, wait_s - draft_s, max(0.0, whole_s - verify_s - wait_s))


def _union(spans: Iterable[Span]) -> list[Span]:
    """The same time without overlaps, in order."""
    whole: list[Span] = []
    for start, end in sorted(spans):
        if whole and start <= whole[-1][1]:
            whole[-1] = whole[-1][0], max(whole[-1][1], end)
        else:
            whole.append((start, end))
    return whole


def _intersection(some: Sequence[Span], others: Sequence[Span]) -> list[Span]:
    """Args: both in order and without overlaps."""
    shared, index = [], 0
    for start, end in some:
        while index < len(others) and others[index][1] <= start:
            index += 1
        for other_start, other_end in others[index:]:
            if other_start >= end:
                break
            shared.append((max(start, other_start), min(end, other_end)))
    return shared


def _length(spans: Iterable[Span]) -> float:
    return sum(end - start for start, end in spans)
