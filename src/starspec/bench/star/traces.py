"""Traces of small stars, and a picture of them that shows where the hub idles."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from starspec.bench.star.processes import Turn
from starspec.bench.star.serving import StarTargets, serve_turn
from starspec.config import HubConfig, ModelConfig
from starspec.harness.figures import COLOURS, require_matplotlib, save
from starspec.observe.trace import merge

STEP, AHEAD, GIVEN_UP, VERIFY = "draft step", "run ahead", "given up", "verify"
KINDS: Final = {STEP: COLOURS[0], AHEAD: COLOURS[5], GIVEN_UP: "#c8c8c8", VERIFY: COLOURS[1]}
HUB: Final = "hub"


class TraceSlice(NamedTuple):
    """One span of work of a process, in seconds of the trace's clock."""

    process: str
    name: str
    start_s: float
    end_s: float


def trace_turn(
    path: Path, draft: ModelConfig, config: HubConfig, targets: StarTargets, num_targets: int, turn: Turn
) -> None:
    """Run one turn and write its trace for Chrome or Perfetto.

    Raises: PeerLost if a process dies or hangs.
    """
    with tempfile.TemporaryDirectory(prefix="starspec-trace-") as folder:
        serve_turn(draft, config, targets, num_targets, replace(turn, trace_folder=Path(folder)))
        path.parent.mkdir(exist_ok=True)
        merge(sorted(Path(folder).iterdir()), path)


def read_trace(path: Path) -> list[TraceSlice]:
    """The draft steps and verifications in a trace, in order."""
    events = json.loads(path.read_bytes())["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    slices = [
        TraceSlice(names[event["pid"]], event["name"], event["ts"] / 1e6, (event["ts"] + event["dur"]) / 1e6)
        for event in events
        if event["ph"] == "X" and event["name"] in KINDS
    ]
    return sorted(slices, key=lambda each: each.start_s)


def draw_traces(traces: Sequence[tuple[str, Path]], path: Path, shown_s: float) -> None:
    """Save a picture: a panel for each trace, with a lane for the hub and for each target.

    Args:
        traces: titles and files.
        shown_s: of each of them.
    Raises: ConfigError if matplotlib is not installed or the picture cannot be written.
    """
    require_matplotlib()
    from matplotlib.figure import Figure  # noqa: PLC0415 (an extra)
    from matplotlib.patches import Patch  # noqa: PLC0415

    shown = [(title, _middle(read_trace(file), shown_s)) for title, file in traces]
    lanes = [sorted({each.process for each in slices}, key=lambda name: (name != HUB, name)) for _, slices in shown]
    heights = [len(each) for each in lanes]
    figure = Figure(figsize=(11, 1.2 + 0.62 * sum(heights)), layout="constrained")
    panels = figure.subplots(len(shown), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for panel, (title, slices), names in zip(panels, shown, lanes, strict=True):
        start_s = slices[0].start_s
        for lane, name in enumerate(names):
            for kind, colour in KINDS.items():
                spans = [
                    ((each.start_s - start_s) * 1e3, (each.end_s - each.start_s) * 1e3)
                    for each in slices
                    if (each.process, each.name) == (name, kind)
                ]
                panel.broken_barh(spans, (lane - 0.38, 0.76), facecolor=colour, edgecolor="white", linewidth=0.4)
        panel.set_yticks(range(len(names)), names)
        panel.invert_yaxis()
        panel.set_xlim(0, shown_s * 1e3)
        panel.set_title(f"{title}: the hub drafts {_busy(slices, shown_s):.0%} of the time", loc="left", fontsize=10)
    panels[-1].set_xlabel("time (ms)")
    handles = [Patch(color=colour, label=name) for name, colour in KINDS.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    save(figure, path)


def _middle(slices: Sequence[TraceSlice], shown_s: float) -> list[TraceSlice]:
    """The slices of `shown_s` seconds, from the first draft step after the middle."""
    half_s = (slices[0].start_s + slices[-1].end_s) / 2
    start_s = next(each.start_s for each in slices if each.start_s >= half_s and each.name == STEP)
    return [each for each in slices if start_s <= each.start_s < start_s + shown_s]


def _busy(slices: Sequence[TraceSlice], shown_s: float) -> float:
    """The share of the shown time in which the hub drafts."""
    end_s = slices[0].start_s + shown_s
    return sum(min(each.end_s, end_s) - each.start_s for each in slices if each.process == HUB) / shown_s
