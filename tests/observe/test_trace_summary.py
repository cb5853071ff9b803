"""A summary of a trace adds up."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from starspec.cli import run
from starspec.errors import ConfigError
from starspec.observe.trace import Trace, merge
from starspec.observe.trace_summary import summarize


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub that drafts twice for a target, which verifies twice, waits twice and makes two answers."""
    hub, target = Trace("hub"), Trace("target-0")
    hub.slice("draft", "draft step", 10.00, 10.02)
    hub.slice("draft", "run ahead", 10.02, 10.03)
    hub.slice("draft", "draft step", 10.08, 10.12)
    hub.slice("idle", "idle", 10.03, 10.08)
    hub.slice("wire", "reply", 10.11, 10.111)  # it begins last, and does not end last
    hub.slice("target target-0", "proposal", 10.00, 10.03, tokens=2, queue_ms=10.0, prefill=0)
    hub.slice("target target-0", "verdict", 10.03, 10.085, emitted=2)
    hub.slice("target target-0", "proposal", 10.085, 10.12, tokens=3, queue_ms=5.0, prefill=0)
    hub.slice("target target-1", "proposal", 10.00, 10.12, tokens=0, queue_ms=120.0, prefill=0)
    target.slice("answers", "answer", 10.00, 10.20, tokens=4)
    target.slice("answers", "answer", 10.05, 10.15, tokens=2)
    target.slice("wire", "wait", 10.00, 10.03)
    target.slice("verify", "verify", 10.03, 10.08)
    target.slice("wire", "wait", 10.08, 10.14)
    target.slice("verify", "verify", 10.15, 10.20)
    parts = [tmp_path / "hub.json", tmp_path / "target.json"]
    for number, (part, each) in enumerate(zip(parts, (hub, target), strict=True)):
        monkeypatch.setattr(os, "getpid", lambda number=number: 100 + number)
        each.write(part)
    merge(parts, tmp_path / "trace.json")
    return tmp_path / "trace.json"


def test_work_and_pauses_fill_the_time(trace: Path) -> None:
    summary = summarize(trace)
    assert summary.span_s == pytest.approx(0.20)
    hub, target = summary.work
    assert (hub.process, target.process) == ("hub", "target-0")
    assert hub.busy_s == pytest.approx(0.07)
    assert list(hub.gaps) == pytest.approx([0.05])
    assert hub.median_step_s == pytest.approx(0.03)
    assert target.busy_share == pytest.approx(0.5)
    assert list(target.gaps) == pytest.approx([0.07])
    assert target.median_step_s == pytest.approx(0.05)


def test_what_a_target_does_is_one_of_five_things(trace: Path) -> None:
    (parts,) = summarize(trace).targets
    assert (parts.process, parts.num) == ("target-0", 1)
    assert parts[2:] == pytest.approx((0.10, 0.05, 0.015, 0.025, 0.01))
    assert parts.whole_s == pytest.approx(0.20)


def test_the_critical_path_is_what_each_answer_waited_for(trace: Path) -> None:
    (parts,) = summarize(trace).answers
    assert (parts.process, parts.num) == ("target-0", 2)
    assert parts[2:] == pytest.approx((0.10 + 0.03, 0.05 + 0.03, 0.015 + 0.005, 0.025 + 0.025, 0.01 + 0.01))
    assert parts.whole_s == pytest.approx(0.20 + 0.10)


def test_what_took_no_time_has_no_shares(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = Trace("target-0")
    trace.slice("verify", "verify", 1.0, 1.0)
    trace.slice("answers", "answer", 1.0, 1.0, tokens=1)
    trace.write(tmp_path / "trace.json")
    assert run(["trace", "summarize", str(tmp_path / "trace.json")]) == 0
    assert "What targets did" in capsys.readouterr().out


def test_a_hub_has_starsds_quantities(trace: Path) -> None:
    (hub,) = summarize(trace).hubs
    assert hub.proposals_per_s == pytest.approx(2 / 0.12)
    assert hub.load == pytest.approx(0.07 / 0.12)
    assert hub.t_s == pytest.approx(0.03)
    assert hub.service_s == pytest.approx(0.025)
    assert hub.queue_s == pytest.approx(0.0075)
    assert hub.idle_per_request_s == pytest.approx(0.025)
    assert (hub.return_s, hub.t_v, hub.t_c) == pytest.approx((0.055, 0.05, 0.005))


def test_a_trace_of_a_target_alone_has_no_hub(tmp_path: Path) -> None:
    alone = Trace("target-0")
    alone.slice("wire", "wait", 0.0, 1.0)
    alone.slice("verify", "verify", 1.0, 2.0)
    alone.write(tmp_path / "trace.json")
    summary = summarize(tmp_path / "trace.json")
    assert (summary.hubs, summary.answers) == ([], [])
    assert [parts[2:] for parts in summary.targets] == [(1.0, 0.0, 0.0, 1.0, 0.0)]


@pytest.mark.parametrize(
    ("content", "why"),
    [(None, "cannot be read"), (b"[1]", "is not a trace"), (b'{"traceEvents": []}', "has no slices")],
)
def test_what_is_no_trace_is_refused_by_name(tmp_path: Path, content: bytes | None, why: str) -> None:
    file = tmp_path / "trace.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=why):
        summarize(file)


WORK = {"ph": "X", "pid": 1, "cat": "verify", "name": "verify", "ts": 0, "dur": 1, "args": {}}


def write(path: Path, **changes: object) -> Path:
    name = {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": changes.pop("process", "target-0")}}
    path.write_text(json.dumps({"traceEvents": [name, {**WORK, **changes}]}))
    return path


def test_the_work_that_the_wrong_ones_are_made_of_is_right(tmp_path: Path) -> None:
    assert summarize(write(tmp_path / "trace.json")).span_s == pytest.approx(1e-6)


@pytest.mark.parametrize(
    "changes",
    [
        {"args": None},
        {"args": [1]},
        {"args": {"queue_ms": None}},
        {"args": {"queue_ms": float("nan")}},
        {"ts": float("nan")},
        {"ts": float("inf")},
        {"ts": 10**400},
        {"dur": float("nan")},
        {"dur": -1},
        {"dur": "1"},
        {"cat": 3},
        {"name": None},
        {"process": ["target-0"]},
        {"process": None},
    ],
)
def test_a_trace_with_something_of_a_wrong_kind_is_refused_by_name(tmp_path: Path, changes: dict) -> None:
    with pytest.raises(ConfigError, match="is not a trace of starspec"):
        summarize(write(tmp_path / "trace.json", **changes))
