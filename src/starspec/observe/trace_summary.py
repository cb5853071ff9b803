"""What a trace tells at a glance: how long each process worked and idled, and what targets and answers waited for."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import isfinite
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final, NamedTuple

from starspec.errors import ConfigError
from starspec.observe.spans import Coverage, Span, intersection, length, union, without

LEAST_GAP_S: Final = 0.001  # shorter pauses do not count
LEAST_SERVICE_S: Final = 1e-6  # the times in a file are rounded
DRAFT, VERIFY, STAGE, IDLE, ANSWERS = "draft", "verify", "stage", "idle", "answers"  # tracks
WAIT, STEP, PROPOSAL, VERDICT = "wait", "draft step", "proposal", "verdict"  # names of slices
OF_TARGET: Final = "target "  # how a hub's track of a target begins; its name follows


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


class Parts(NamedTuple):
    """What one target did in some time, in seconds. It does one thing after the other, so they add up."""

    process: str
    num: int  # spans of time that are added up
    verify_s: float  # prefill included
    draft_s: float  # of the waits: a hub drafts for this target meanwhile
    queue_s: float  # of the waits: its request is in the buffer of the hub
    wire_s: float  # of the waits: neither, so a message is on its way, or is late for another reason
    other_s: float

    @property
    def whole_s(self) -> float:
        return self.verify_s + self.draft_s + self.queue_s + self.wire_s + self.other_s


class HubTimes(NamedTuple):
    """StarSD's quantities of one hub, as `stats.py` defines them, but over the whole trace. None = nothing tells it."""

    process: str
    proposals_per_s: float | None  # R_q: those with draft tokens
    load: float | None
    t_s: float | None
    service_s: float | None  # S
    queue_s: float | None  # T_wait
    idle_per_request_s: float | None  # T_idle
    return_s: float | None  # Z
    t_v: float | None  # of the targets that the trace has

    @property
    def t_c(self) -> float | None:
        """Z - t_v (eq. 6)."""
        return None if self.return_s is None or self.t_v is None else self.return_s - self.t_v


class Summary(NamedTuple):
    """A trace in numbers."""

    span_s: float
    work: Sequence[Work]
    targets: Sequence[Parts]  # from the first to the last that each did; `num` is 1
    answers: Sequence[Parts]  # sums over the answers of each target
    hubs: Sequence[HubTimes]


class _Slice(NamedTuple):
    process: str
    track: str
    name: str
    span: Span
    args: Mapping[str, Any]

    @property
    def seconds(self) -> float:
        return self.span[1] - self.span[0]

    @property
    def queue_s(self) -> float:
        """Of a proposal."""
        return float(self.args.get("queue_ms", 0.0)) / 1e3

    @property
    def service_s(self) -> float:
        """Of a proposal: from its first draft step on; about 0 if it was ready before it was asked for."""
        return self.seconds - self.queue_s

    @property
    def drafted(self) -> Span:
        """Of a proposal: behind its time in the buffer."""
        return min(self.span[0] + self.queue_s, self.span[1]), self.span[1]


def summarize(path: Path) -> Summary:
    """Raises: ConfigError if the file cannot be read, or is not a trace of starspec."""
    slices = _slices(path)
    span_s = max(each.span[1] for each in slices) - min(each.span[0] for each in slices)
    of_process: dict[str, list[_Slice]] = {}
    for each in slices:
        of_process.setdefault(each.process, []).append(each)
    timelines = [_Timeline(name, own, slices) for name, own in of_process.items() if _of(own, track=VERIFY)]
    return Summary(
        span_s,
        [_work(name, own, span_s) for name, own in of_process.items()],
        [each.parts([each.whole]) for each in timelines],
        [each.parts(each.answers) for each in timelines if each.answers],
        [_hub_times(name, own, slices) for name, own in of_process.items() if _of(own, track=DRAFT)],
    )


def _slices(path: Path) -> list[_Slice]:
    try:
        events: list[dict[str, Any]] = json.loads(path.read_bytes())["traceEvents"]
        names = {each["pid"]: each["args"]["name"] for each in events if each["name"] == "process_name"}
        found = [_slice(names[each["pid"]], each) for each in events if each["ph"] == "X"]
    except OSError as error:
        raise ConfigError(f"'{path}' cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ConfigError(f"'{path}' is not a trace of starspec (--trace writes one)") from error
    if not found:
        raise ConfigError(f"'{path}' has no slices: nothing was asked of the star while it ran")
    return sorted(found, key=lambda each: each.span)


def _slice(process: str, event: Mapping[str, Any]) -> _Slice:
    """Raises: ValueError, TypeError, KeyError or OverflowError if it is none of starspec."""
    start_s, seconds, args = event["ts"] / 1e6, event["dur"] / 1e6, event["args"]
    words = process, event["cat"], event["name"]
    if not isinstance(args, dict) or not all(isinstance(each, str) for each in words):
        raise TypeError(args, words)
    if seconds < 0 or not all(map(isfinite, (start_s, seconds, args.get("queue_ms", 0.0)))):
        raise ValueError(start_s, seconds)
    return _Slice(*words, (start_s, start_s + seconds), args)


def _of(slices: Iterable[_Slice], *, track: str | None = None, name: str | None = None) -> list[_Slice]:
    """The slices of a track, of a name, or of both."""
    return [each for each in slices if track in (None, each.track) and name in (None, each.name)]


def _work(process: str, slices: Sequence[_Slice], span_s: float) -> Work:
    busy = union(each.span for each in slices if each.track in (DRAFT, VERIFY, STAGE))
    gaps = [later[0] - earlier[1] for earlier, later in pairwise(busy)]
    steps = [each.seconds for each in slices if each.name in (STEP, VERIFY) or each.track == STAGE]
    return Work(process, span_s, length(busy), [gap for gap in gaps if gap >= LEAST_GAP_S], steps)


class _Timeline:
    """What one target did, and when. Args: slices: its own. others: those of all processes, with its hub's."""

    def __init__(self, process: str, slices: Sequence[_Slice], others: Sequence[_Slice]) -> None:
        self._process = process
        verifying = union(each.span for each in _of(slices, track=VERIFY))
        waiting = without(union(each.span for each in _of(slices, name=WAIT)), verifying)
        proposals = _of(others, track=OF_TARGET + _role(process), name=PROPOSAL)
        drafting = intersection(waiting, union(each.drafted for each in proposals))
        not_drafting = without(waiting, drafting)
        queued = intersection(not_drafting, union((each.span[0], each.drafted[0]) for each in proposals))
        self._kinds = [Coverage(each) for each in (verifying, drafting, queued, without(not_drafting, queued))]
        busy = union([*verifying, *waiting])
        self.whole: Span = busy[0][0], busy[-1][1]
        self.answers = [each.span for each in _of(slices, track=ANSWERS)]

    def parts(self, spans: Sequence[Span]) -> Parts:
        """What it did in these spans of time, added up."""
        verify_s, draft_s, queue_s, wire_s = (sum(map(each.within, spans)) for each in self._kinds)
        other_s = max(0.0, length(spans) - verify_s - draft_s - queue_s - wire_s)
        return Parts(self._process, len(spans), verify_s, draft_s, queue_s, wire_s, other_s)


def _role(process: str) -> str:
    """The name of a target's process, without the note on slices that are forgotten."""
    return process.partition(" (")[0]


def _hub_times(process: str, slices: Sequence[_Slice], others: Sequence[_Slice]) -> HubTimes:
    """Args: slices: its own. others: those of all processes."""
    targets = {each.track.removeprefix(OF_TARGET) for each in slices if each.track.startswith(OF_TARGET)}
    proposals = _of(slices, name=PROPOSAL)
    served = [each for each in proposals if each.service_s > LEAST_SERVICE_S]
    verified = [each.seconds for each in _of(others, name=VERIFY) if _role(each.process) in targets]
    drafted = [each for each in proposals if each.args.get("tokens")]
    busy_s, idle_s = (length(union(each.span for each in _of(slices, track=track))) for track in (DRAFT, IDLE))
    span_s = max(each.span[1] for each in slices) - slices[0].span[0]
    return HubTimes(
        process,
        len(drafted) / span_s if span_s else None,
        busy_s / (busy_s + idle_s) if busy_s else None,
        _mean(each.seconds for each in _of(slices, name=STEP)),
        _mean(each.service_s for each in served if not each.args.get("prefill")),
        _mean(each.queue_s for each in served),
        idle_s / len(drafted) if drafted else None,
        _mean(each.seconds for each in _of(slices, name=VERDICT)),
        _mean(verified),
    )


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return fmean(known) if known else None
