"""The live table and its plain line say what the statuses say."""

from io import StringIO

from rich.console import Console

from starspec.ids import TargetId
from starspec.observe.metrics import StatusSnapshot
from starspec.observe.table import names_of_stages, star_line, star_table
from starspec.stats import AcceptanceStats, HubStats, LengthStats, Mean, PipeStats, StageStats, TargetStats
from starspec.wire.messages import HubStatus, TargetStatus


def target_status(name: str, *, is_draft_connected: bool = True) -> TargetStatus:
    acceptance = AcceptanceStats(num_drafts=10, num_draft_tokens=40, num_accepted_tokens=25)
    lengths = LengthStats()
    for num_steps in (4, 1):
        lengths.add(num_steps, "cost")
    return TargetStatus(
        target_id=TargetId(name),
        model="toy",
        max_model_len=128,
        num_running=3,
        num_waiting=1,
        num_rows=8,
        num_free_rows=5,
        is_draft_connected=is_draft_connected,
        stats=TargetStats(
            acceptance=acceptance, tokens_per_s=23.44, lengths=lengths, wait=Mean(0.0123, 1), t_v=Mean(0.0456, 1)
        ),
    )


HUB = HubStatus(
    "toy-draft",
    HubStats(
        load=0.634,
        idle_s=4.21,
        idle_per_request_s=0.0098,
        queue=Mean(0.0005, 1),
        t_s=Mean(0.0081, 1),
        num_targets=2,
        num_full=4,
        num_max=6,
        num_tags=5,
    ),
)
TARGETS = {"target-0": "ready", "target-1": "waiting to restart"}


def shown(snapshot: StatusSnapshot, width: int = 140) -> str:
    out = StringIO()
    Console(file=out, width=width).print(star_table(snapshot, "star", TARGETS, "starting"))
    return out.getvalue()


def test_a_target_shows_its_rate_acceptance_length_and_wait() -> None:
    (row,) = [line for line in shown(StatusSnapshot((target_status("target-0"),), HUB)).splitlines() if "23.4" in line]
    assert row.replace("│", " ").split() == [
        "target-0",
        "23.4",
        "3.50",
        "2.5",
        "12.3",
        "45.6",
        "3",
        "+",
        "1",
        "connected",
    ]


def test_eighty_columns_are_enough_for_every_name_and_number() -> None:
    targets = (target_status("target-0"), target_status("target-1", is_draft_connected=False))
    text = shown(StatusSnapshot(targets, HUB), width=80)
    assert "…" not in text
    for word in ("tokens/s", "acceptance", "running", "waiting", "target-1", "connected", "plainly"):
        assert word in text


def test_the_hub_shows_its_load_and_idle_time() -> None:
    text = " ".join(shown(StatusSnapshot((), HUB)).split())
    assert "toy-draft: load 63%, T_wait 0.5 ms, T_idle 9.8 ms a request, 4.2 s in all, t_s 8.1 ms" in text
    assert "2 targets (N_full 4, N_max 6), 5 tags" in text


def test_a_hub_that_runs_ahead_shows_what_that_saves() -> None:
    stats = HubStats(num_ahead_nodes=9, num_outcomes=10, num_hits=6, saved_s=3.21)
    text = " ".join(shown(StatusSnapshot((), HubStatus("toy-draft", stats))).split())
    assert "60% hits ahead, 3.2 s saved" in text
    assert "(N_full -, N_max -)" in text, "not known yet"


def test_a_silent_process_shows_its_state() -> None:
    lines = shown(StatusSnapshot((target_status("target-0"),))).splitlines()
    assert any("target-1" in line and "waiting to restart" in line for line in lines)
    assert any(line.startswith("hub") and "starting" in line for line in lines)


def test_names_are_shown_as_they_are_and_not_as_markup() -> None:
    snapshot = StatusSnapshot((target_status("[/red] a"),))
    targets, out = {"[/red] a": "ready", "[red]b": "[/silent]"}, StringIO()
    Console(file=out, width=140).print(star_table(snapshot, "[bold] at http://[fe80::1]:80", targets, None))
    for name in ("[/red] a", "[red]b", "[/silent]", "[bold] at http://[fe80::1]:80"):
        assert name in out.getvalue()


def test_what_processes_say_of_themselves_commands_no_terminal() -> None:
    status = target_status("a\x1b[2J")
    status.stats.pipe = PipeStats(stages=[StageStats(endpoint="a", layers="\x9b1J", index=0)])
    snapshot = StatusSnapshot((status,), HubStatus("toy\x07", HubStats()))
    targets, out = {"a\x1b[2J": "ready", "b\r": "away\x1bc"}, StringIO()
    Console(file=out, width=140).print(star_table(snapshot, "title\x1b]0;x", targets, "lost"))
    for shown in (out.getvalue(), star_line(snapshot, targets, "lost")):
        assert shown.replace("\n", "").isprintable()
        assert all(escaped in shown for escaped in (r"a\x1b[2J", r"b\r", r"away\x1bc", r"toy\x07"))
    assert r"title\x1b]0;x" in out.getvalue()


def test_a_target_that_is_named_as_the_hub_is_none() -> None:
    targets, out = {"hub": "silent", "gateway": "starting"}, StringIO()
    Console(file=out, width=140).print(star_table(StatusSnapshot(()), "star", targets, "lost"))
    rows = [line.replace("│", " ").split() for line in out.getvalue().splitlines()]
    assert ["hub", *"------", "silent"] in rows
    assert ["gateway", *"------", "starting"] in rows
    assert ["hub", "lost"] in rows
    assert star_line(StatusSnapshot(()), targets, "lost") == "hub: silent | gateway: starting | hub: lost"


def test_the_line_says_the_same_as_the_table() -> None:
    snapshot = StatusSnapshot((target_status("target-0", is_draft_connected=False),), HUB)
    line = star_line(snapshot, TARGETS, "starting")
    assert line.startswith(
        "target-0: 23.4 tokens/s, acceptance length 3.50, draft length 2.5, hub's response 12.3 ms, 3 running, "
        "draft none"
    )
    assert "target-1: waiting to restart" in line
    assert "hub: toy-draft: load 63%, T_wait 0.5 ms, T_idle 9.8 ms a request, 4.2 s in all" in line
    assert "\n" not in line


def test_stages_stand_below_their_target_with_layers_times_and_states() -> None:
    status = target_status("target-0")
    stages = [
        StageStats(endpoint="a", layers="0:15", index=0, is_attached=True, num_traversals=10, compute_s=0.5),
        StageStats(endpoint="b", layers="15:30", index=1),
        StageStats(endpoint="c", layers="15:30", is_attached=True),
    ]
    status.stats.pipe = PipeStats(stages=stages)
    snapshot, out = StatusSnapshot((status,), HUB), StringIO()
    Console(file=out, width=100).print(star_table(snapshot, "star", TARGETS, "ready"))
    rows = [line.replace("│", " ").split() for line in out.getvalue().splitlines()]
    at = next(index for index, row in enumerate(rows) if row[:1] == ["target-0"])
    assert rows[at + 1] == ["stage", "0", "-", "-", "-", "-", "50.0", "-", "0:15", "attached"]
    assert rows[at + 2] == ["stage", "1", "-", "-", "-", "-", "-", "-", "15:30", "lost"]
    assert rows[at + 3] == ["spare", "-", "-", "-", "-", "-", "-", "15:30", "spare"]
    assert names_of_stages(snapshot) == {"target-0-stage-0", "target-0-stage-1"}
