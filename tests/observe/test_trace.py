"""Traces: readable by Chrome and Perfetto, bounded, mergeable."""

import json
import tempfile
from itertools import pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from starspec.observe.trace import Trace, merge
from starspec.tracing import flow_id


def written(trace: Trace, path: Path) -> list[dict]:
    trace.write(path)
    return json.loads(path.read_text())["traceEvents"]


def slices(events: list[dict]) -> list[dict]:
    return [event for event in events if event["ph"] == "X"]


def test_a_slice_keeps_its_name_times_and_arguments(tmp_path: Path) -> None:
    trace = Trace("target-0")
    trace.slice("verify", "forward", 12.5, 12.75, num_rows=3)
    (event,) = slices(written(trace, tmp_path / "trace.json"))
    assert (event["name"], event["cat"], event["ts"], event["dur"]) == ("forward", "verify", 12.5e6, 0.25e6)
    assert event["args"] == {"num_rows": 3}


def test_the_process_and_its_tracks_are_named_in_viewing_order(tmp_path: Path) -> None:
    trace = Trace("hub")
    for track in ("idle", "gpu", "wire", "draft"):
        trace.slice(track, "x", 0.0, 1.0)
    events = written(trace, tmp_path / "trace.json")
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    order = {event["tid"]: event["args"]["sort_index"] for event in events if event["name"] == "thread_sort_index"}
    assert [names[tid] for tid in sorted(names, key=order.__getitem__)] == ["draft", "wire", "idle", "gpu"]
    assert [event["args"]["name"] for event in events if event["name"] == "process_name"] == ["hub"]
    assert all(isinstance(event["pid"], int) and isinstance(event["tid"], int) for event in events)


def test_memory_is_bounded_and_the_loss_is_stated(tmp_path: Path) -> None:
    trace = Trace("hub", max_slices=3)
    for number in range(10):
        trace.slice("draft", str(number), number, number + 1)
    events = written(trace, tmp_path / "trace.json")
    assert [event["name"] for event in slices(events)] == ["7", "8", "9"]
    assert events[0]["args"]["name"] == "hub (7 older slices forgotten)"


spans = st.tuples(st.integers(0, 50), st.integers(0, 20)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@given(st.lists(spans, max_size=30))
def test_slices_of_one_tid_never_overlap(spans: list[tuple[int, int]]) -> None:
    trace = Trace("hub")
    for start_s, end_s in spans:
        trace.slice("wire", "round trip", start_s, end_s)
    with tempfile.TemporaryDirectory() as folder:
        events = slices(written(trace, Path(folder, "trace.json")))
    assert len(events) == len(spans)
    for tid in {event["tid"] for event in events}:
        lane = sorted((event["ts"], event["ts"] + event["dur"]) for event in events if event["tid"] == tid)
        assert all(one[1] <= other[0] for one, other in pairwise(lane))


def test_parts_merge_and_a_killed_process_is_left_out(tmp_path: Path) -> None:
    parts = [tmp_path / "hub.json", tmp_path / "killed.json", tmp_path / "target.json"]
    for part, name in zip(parts[::2], ("hub", "target"), strict=True):
        trace = Trace(name)
        trace.slice("draft", name, 0.0, 1.0)
        trace.write(part)
    assert merge(parts, tmp_path / "all.json") == 2
    events = json.loads((tmp_path / "all.json").read_text())["traceEvents"]
    assert [event["name"] for event in slices(events)] == ["hub", "target"]


def test_a_flow_leaves_its_origin_passes_slices_of_other_processes_and_comes_back(tmp_path: Path) -> None:
    coordinator, stage = Trace("target-0"), Trace("target-0-stage-1")
    name = flow_id("target-0", 2, 7)
    coordinator.slice("pipe", "traversal", 1.0, 2.0, flow_from=name)
    coordinator.slice("pipe", "traversal", 1.5, 2.5, flow_from=flow_id("target-0", 2, 8))
    stage.slice("stage", "traversal", 1.2, 1.4, flow=name)
    events = [*written(coordinator, tmp_path / "a.json"), *written(stage, tmp_path / "b.json")]
    points = [event for event in events if event.get("id") == name]
    assert [(event["ph"], event["ts"]) for event in points] == [("s", 1e6), ("f", 2e6 - 1), ("t", 1.2e6)]
    (own, _, other) = slices(events)
    assert [event["tid"] for event in points] == [own["tid"], own["tid"], other["tid"]]


def test_flows_of_other_targets_epochs_and_traversals_have_other_names() -> None:
    names = {flow_id(owner, epoch, number) for owner in ("t0", "t1") for epoch in (1, 2) for number in (1, 2)}
    assert len(names) == 8
    assert all(int(name, 16) < 2**64 for name in names)


def test_where_no_process_wrote_a_part_an_older_trace_stays(tmp_path: Path) -> None:
    older = tmp_path / "trace.json"
    older.write_text("older")
    assert merge([tmp_path / "hub.json"], older) == 0
    assert older.read_text() == "older"
