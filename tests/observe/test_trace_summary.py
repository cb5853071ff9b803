"""A summary of a trace adds up."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from starspec.errors import ConfigError
from starspec.observe.trace import Trace, merge
from starspec.observe.trace_summary import summarize


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub that drafts twice for a target, which verifies twice and waits once for nobody."""
    hub, target = Trace("hub"), Trace("target-0")
    hub.slice("draft", "draft step", 10.00, 10.02)
    hub.slice("draft", "run ahead", 10.02, 10.03)
    hub.slice("draft", "draft step", 10.08, 10.12)
    hub.slice("target target-0", "proposal", 10.00, 10.03)
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


def test_a_wait_is_drafting_or_wire(trace: Path) -> None:
    (rounds,) = summarize(trace).rounds
    assert rounds.verify_s == pytest.approx(0.10)
    assert rounds.draft_s == pytest.approx(0.07)
    assert rounds.wire_s == pytest.approx(0.02)
    assert rounds.other_s == pytest.approx(0.01)
    assert rounds.whole_s == pytest.approx(0.20)


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
