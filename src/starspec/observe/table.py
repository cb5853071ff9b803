"""The status table of a star: one row for each target, one line for the hub, in the terms of `stats.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from rich.table import Table
from rich.text import Text

from starspec.config.stages import stage_name
from starspec.observe.metrics import StatusSnapshot
from starspec.quoting import harmless
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


def star_table(snapshot: StatusSnapshot, title: str, targets: Mapping[str, str], hub: str | None) -> Table:
    """The table for a terminal.

    Args:
        snapshot: the known statuses. A process without one is shown with its state alone.
        targets: name -> state, in the order of the rows; a stage's process that no status tells of may be among them.
        hub: its state; None = there is none.
    """
    heading = Text(harmless(title), style="table.title")
    table = Table(title=heading, title_justify="left", caption_justify="left", padding=PADDING)
    for number, column in enumerate(COLUMNS):
        table.add_column(column, justify="left" if number in (0, len(COLUMNS) - 1) else "right")
    statuses = {str(status.target_id): status for status in snapshot.targets}
    for name, state in targets.items():
        if name in statuses:
            rows = [_cells(statuses[name]), *map(_stage_cells, _stages(statuses[name]))]
        else:
            rows = [(name, *[UNKNOWN] * (len(COLUMNS) - 2), state)]
        for row in rows:
            table.add_row(*map(_text, row))
    if hub is not None:
        table.caption = _text(f"hub    {_hub_text(snapshot.hub, hub)}")
    return table


def star_line(snapshot: StatusSnapshot, targets: Mapping[str, str], hub: str | None) -> str:
    """The table as one line, for a log."""
    parts = [_target_text(status) for status in snapshot.targets]
    told = {str(status.target_id) for status in snapshot.targets}
    parts += [f"{name}: {state}" for name, state in targets.items() if name not in told]
    if hub is not None:
        parts.append(f"hub: {_hub_text(snapshot.hub, hub)}")
    return harmless(" | ".join(parts))


def names_of_stages(snapshot: StatusSnapshot) -> set[str]:
    """Of the stages that their targets tell of."""
    return {
        stage_name(str(status.target_id), stage.index)
        for status in snapshot.targets
        for stage in _stages(status)
        if stage.index is not None
    }


def _text(text: str) -> Text:
    """A cell. What processes say of themselves is no markup for rich, and no command for the terminal."""
    return Text(harmless(text))


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
