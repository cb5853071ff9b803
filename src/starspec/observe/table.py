"""The status table of a star: one row for each target, one line for the hub, in the terms of `stats.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from rich.table import Table
from rich.text import Text

from starspec.config.stages import stage_name
from starspec.observe.metrics import StatusSnapshot
from starspec.stats import StageStats
from starspec.wire.messages import HubStatus, TargetStatus

COLUMNS: Final = (
    "target",
    "tokens/s",
    "acceptance\nlength",
    "draft\nlength",
    "response\nms",
    "t_v\nms",
    "running +\nwaiting",
    "draft",
)
PADDING: Final = (0, 0, 0, 1)  # narrow columns, so that names and numbers fit into 80 columns
UNKNOWN: Final = "-"
NO_TARGETS: Final = ("hub", "gateway")  # names of the other processes


def star_table(snapshot: StatusSnapshot, states: Mapping[str, str], title: str) -> Table:
    """The table for a terminal.

    Args:
        snapshot: the known statuses. A process without one is shown with its state alone.
        states: name -> state at the supervisor, in the order of the rows. The hub is `hub`.
    """
    heading = Text(title, style="table.title")  # in a plain string, rich would read names as markup
    table = Table(title=heading, title_justify="left", caption_justify="left", padding=PADDING)
    for number, column in enumerate(COLUMNS):
        table.add_column(column, justify="left" if number in (0, len(COLUMNS) - 1) else "right")
    statuses = {str(status.target_id): status for status in snapshot.targets}
    shown = _names_of_stages(snapshot)
    for name, state in states.items():
        if name in statuses:
            table.add_row(*map(Text, _cells(statuses[name])))
            for stage in _stages(statuses[name]):
                table.add_row(*map(Text, _stage_cells(stage)))
        elif name not in NO_TARGETS and name not in shown:
            table.add_row(Text(name), *[UNKNOWN] * (len(COLUMNS) - 2), state)
    if "hub" in states:
        table.caption = Text(f"hub    {_hub_text(snapshot.hub, states['hub'])}")
    return table


def star_line(snapshot: StatusSnapshot, states: Mapping[str, str]) -> str:
    """The table as one line, for a log."""
    parts = [_target_text(status) for status in snapshot.targets]
    parts += [f"{name}: {state}" for name, state in states.items() if _is_silent_target(name, snapshot)]
    if "hub" in states:
        parts.append(f"hub: {_hub_text(snapshot.hub, states['hub'])}")
    return " | ".join(parts)


def _is_silent_target(name: str, snapshot: StatusSnapshot) -> bool:
    targets = {str(status.target_id) for status in snapshot.targets}
    return name not in {*NO_TARGETS, *targets, *_names_of_stages(snapshot)}


def _names_of_stages(snapshot: StatusSnapshot) -> set[str]:
    """Of the stages that their targets tell of."""
    return {
        stage_name(str(status.target_id), stage.index)
        for status in snapshot.targets
        for stage in _stages(status)
        if stage.index is not None
    }


def _stages(status: TargetStatus) -> Sequence[StageStats]:
    return () if status.stats.pipe is None else status.stats.pipe.stages


def _stage_cells(stage: StageStats) -> tuple[str, ...]:
    """A row below its target's: what it is, the mean time of a traversal, and its state."""
    name = "  spare" if stage.index is None else f"  stage {stage.index}"
    compute = _ms(stage.compute_s / stage.num_traversals) if stage.num_traversals else UNKNOWN
    return (name, *[UNKNOWN] * 4, compute, UNKNOWN, f"{stage.layers} {stage.state}".strip())


def _cells(status: TargetStatus) -> tuple[str, ...]:
    stats = status.stats
    return (
        str(status.target_id),
        f"{stats.tokens_per_s:.1f}",
        f"{stats.acceptance.acceptance_length:.2f}" if stats.acceptance.num_drafts else UNKNOWN,
        f"{stats.lengths.recent.value:.1f}" if stats.lengths.recent.count else UNKNOWN,
        _ms(stats.wait.value),
        _ms(stats.t_v.value),
        f"{status.num_running} + {status.num_waiting}",
        "connected" if status.is_draft_connected else f"{status.hub_state or 'none'}: decoding plainly",
    )


def _target_text(status: TargetStatus) -> str:
    _, tokens_per_s, acceptance_length, draft_length, wait_ms, _, _, draft = _cells(status)
    drafting = "" if status.is_draft_connected else f", draft {draft}"
    return (
        f"{status.target_id}: {tokens_per_s} tokens/s, acceptance length {acceptance_length}, "
        f"draft length {draft_length}, "
        f"hub's response {wait_ms} ms, {status.num_running} running{drafting}"
    )


def _hub_text(status: HubStatus | None, state: str) -> str:
    if status is None:
        return state
    stats = status.stats
    idle = f"T_idle {_ms(stats.idle_per_request_s)} ms a request, {stats.idle_s:.1f} s in all"
    ahead = f"{stats.hit_rate:.0%} hits ahead, {stats.saved_s:.1f} s saved, " if stats.num_ahead_nodes else ""
    return (
        f"{status.draft_name}: load {stats.load:.0%}, T_wait {_ms(stats.queue.value)} ms, {idle}, "
        f"t_s {_ms(stats.t_s.value)} ms, "
        f"{ahead}{stats.sequences_per_step.value:.1f} sequences a draft step, "
        f"{stats.num_targets} targets (N_full {_count(stats.num_full)}, N_max {_count(stats.num_max)}), "
        f"{stats.num_tags} tags"
    )


def _count(number: int) -> str:
    """0 = not known."""
    return str(number or UNKNOWN)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f}"
