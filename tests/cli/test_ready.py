"""What a server says when it is ready: to a person, to the `up` that started it, and what `up` says then."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from starspec.cli.display import LineDisplay
from starspec.cli.process import ServerProcess
from starspec.cli.up import _removed
from starspec.config import ProcessConfig
from starspec.supervise.child import ChildSpec, ChildState
from starspec.supervise.report import Ready, Report
from starspec.supervise.supervisor import ChildView

ADDRESS, MEMORY = "tcp://[fe80::1]:7700", "32 cache rows, at most 98 MiB"


@pytest.fixture(autouse=True)
def _own_signal_handlers() -> Iterator[None]:
    handlers = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    yield
    for each, handler in handlers.items():
        signal.signal(each, handler)


def serve(memory: str) -> None:
    class Toy:
        address = ADDRESS

        def run(self) -> None: ...

        def stop(self) -> None: ...

    server = Toy()
    server.memory = memory
    ServerProcess("hub", ProcessConfig()).serve(server)


@pytest.mark.parametrize(("memory", "told"), [(MEMORY, f"{ADDRESS}, {MEMORY}"), ("", ADDRESS)])
def test_a_person_reads_where_it_is_and_what_it_takes(
    memory: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    serve(memory)
    assert capsys.readouterr().err == f"hub: ready at {told}, Ctrl-C stops it\n"


def test_what_is_loaded_has_any_name(capsys: pytest.CaptureFixture[str]) -> None:
    name = "[/x] " + "long " * 20
    with ServerProcess("hub", ProcessConfig()).loading(f"loading draft {name}"):
        pass
    assert capsys.readouterr().err == f"hub: loading draft {name} ...\n"


def test_a_supervisor_is_told_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    reports: list[Report] = []

    class Line:
        def send(self, report: Report) -> None:
            reports.append(report)

    monkeypatch.setattr("starspec.cli.process.supervisor_line", lambda _: Line())
    serve(MEMORY)
    assert reports == [Ready(ADDRESS, MEMORY)]


@pytest.mark.parametrize(("memory", "told"), [(MEMORY, f"{ADDRESS}, {MEMORY}"), ("", ADDRESS)])
def test_up_passes_it_on(memory: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    spec = ChildSpec(name="hub", command=(), environment={})
    LineDisplay().show_start([ChildView(spec, ChildState.READY, ADDRESS, memory)])
    assert capsys.readouterr().out == f"hub      | ready at {told}\n"


def test_the_addresses_of_a_star_go_with_it_and_a_link_to_them_stays(tmp_path: Path) -> None:
    addresses, link = tmp_path / "addresses.json", tmp_path / "link.json"
    addresses.write_text("of an earlier run")
    link.symlink_to(addresses)
    with _removed(link):
        assert not addresses.exists()
        addresses.write_text("of this one")
    assert not addresses.exists()
    assert link.is_symlink()
