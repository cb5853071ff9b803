"""`starspec up` as a real process: it serves, keeps its children alive, and leaves none behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

TARGET = "synthetic:vocab=256,step_ms=10,alpha=0.8"
DRAFT = f"{TARGET},role=draft".replace("step_ms=10", "step_ms=2")
FIXED = json.dumps({"length": {"policy": "fixed"}})  # each round drafts, whether or not it pays on these cores
STAR = ("--target", TARGET, "--draft", DRAFT, "--speculative-config", FIXED)
LIMIT_S = 150.0  # five processes import their libraries, on a busy machine of two cores
LONG = 400  # tokens: some seconds of a stream


def until(holds: Callable[[], Any], what: str) -> Any:
    """Wait for something that another process brings about. Returns: what `holds` returned."""
    limit_s = time.monotonic() + LIMIT_S
    pause = threading.Event()
    while not (result := holds()):
        assert time.monotonic() < limit_s, f"{what} did not happen within {LIMIT_S} s"
        pause.wait(0.05)
    return result


class Up:
    """One run of `starspec up`."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.log, self.ready_file = folder / "up.log", folder / "ready.json"
        command = [sys.executable, "-m", "starspec", "up", "--port", "0", "--ready-file", str(self.ready_file)]
        with self.log.open("wb") as log:
            self.process = psutil.Popen([*command, *arguments], stdout=log, stderr=subprocess.STDOUT)
        self.children: list[psutil.Process] = []

    def wait_ready(self) -> str:
        """Returns: the address of the gateway."""
        until(lambda: self.ready_file.is_file() or self.process.poll() is not None, "ready")
        assert self.process.poll() is None, self.log.read_text()
        self.children = self.process.children()
        return str(json.loads(self.ready_file.read_text())["gateway"])

    def child(self, command: str) -> psutil.Process | None:
        """The child that runs this command, if it runs."""
        children = [each for each in self.process.children() if each.cmdline()[-3:-1] == ["child", command]]
        return children[0] if children else None

    def end(self, number: signal.Signals) -> int:
        """Signal it. Returns: its exit code."""
        self.process.send_signal(number)
        return int(self.process.wait(LIMIT_S))

    def are_children_gone(self) -> bool:
        _, alive = psutil.wait_procs(self.children, timeout=LIMIT_S)
        return not alive


@contextmanager
def running(folder: Path, *arguments: str) -> Iterator[Up]:
    up = Up(folder, *arguments)
    try:
        yield up
    finally:
        if up.process.poll() is None:
            up.process.kill()
            up.process.wait()


def answer(url: str, **fields: object) -> dict[str, Any]:
    body = {"model": "star", "prompt": "bipa bigu", "max_tokens": 40, "temperature": 0, **fields}
    response = httpx.post(f"{url}/v1/completions", json=body, timeout=LIMIT_S)
    assert response.status_code == 200, response.text
    return dict(response.json())


def text_of(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["text"])


class Streaming(threading.Thread):
    """A stream of a long answer, read beside the test."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url = url
        self.text = ""
        self.has_begun = threading.Event()
        self.is_whole = False
        self.failure: object = None  # the error that ended it
        self.start()

    def run(self) -> None:
        body = {"model": "star", "prompt": "bipa bigu", "max_tokens": LONG, "temperature": 0, "stream": True}
        with httpx.stream("POST", f"{self._url}/v1/completions", json=body, timeout=LIMIT_S) as lines:
            for line in lines.iter_lines():
                if line == "data: [DONE]":
                    self.is_whole = True
                elif line.startswith("data: "):
                    event = json.loads(line.removeprefix("data: "))
                    self.failure = event.get("error")
                    self.text += "".join(choice["text"] for choice in event.get("choices", []))
                    self.has_begun.set()


def test_a_star_serves_survives_deaths_and_stops_clean(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    with running(tmp_path, *STAR, "--served-model-name", "star", "--trace", str(trace)) as up:
        url = up.wait_ready()
        assert len(up.children) == 4
        plain = text_of(answer(url, speculative=False, max_tokens=LONG))
        drafted = answer(url)
        assert drafted["metrics"]["speculative_decoding"]["num_accepted_draft_tokens"] > 0
        assert plain.startswith(text_of(drafted))

        stream = Streaming(url)
        assert stream.has_begun.wait(LIMIT_S)
        first_hub = up.child("draft")
        assert first_hub is not None
        first_hub.kill()
        stream.join(LIMIT_S)
        assert stream.is_whole, stream.failure
        assert stream.text == plain
        until(lambda: (hub := up.child("draft")) and hub.pid != first_hub.pid, "the hub's restart")
        until(lambda: _num_accepted(answer(url)) > 0, "speculation with the restarted hub")

        first_target = up.child("target")
        assert first_target is not None
        first_target.kill()
        until(lambda: _is_replaced(up, first_target), "the target's restart")
        until(lambda: httpx.get(f"{url}/health").json()["num_targets"] == 2, "the target's return")
        assert text_of(answer(url)) == text_of(drafted)

        up.children = up.process.children()
        assert up.end(signal.SIGTERM) == 0
        assert up.are_children_gone()
    assert "killed by SIGKILL; starting it again in 0.25 s" in up.log.read_text()
    tracks = {event.get("cat") for event in json.loads(trace.read_text())["traceEvents"]}
    assert {"draft", "idle", "verify", "wire"} <= tracks
    assert f"{trace} lacks what hub, target-0 did before dying" in up.log.read_text()
    assert not up.ready_file.exists()


def test_a_process_that_cannot_write_its_part_of_the_trace_is_named_and_the_old_trace_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    trace = tmp_path / "trace.json"
    trace.write_text("of an earlier run")
    with running(tmp_path, "--target", TARGET, "--spec-method", "ngram", "--targets", "1", "--trace", str(trace)) as up:
        up.wait_ready()
        (parts,) = tmp_path.glob("starspec-trace-*")
        (parts / "target-0.json").mkdir()  # as a disk that has become full
        assert up.end(signal.SIGTERM) == 1
        assert up.are_children_gone()
    assert f"{trace} is not written: target-0 failed at its end: " in up.log.read_text()
    assert trace.read_text() == "of an earlier run"
    assert not list(tmp_path.glob("starspec-trace-*"))


def _is_replaced(up: Up, dead: psutil.Process) -> bool:
    children = up.process.children()
    return len(children) == 4 and dead.pid not in {child.pid for child in children}


def _num_accepted(answer: dict[str, Any]) -> int:
    return int(answer["metrics"]["speculative_decoding"]["num_accepted_draft_tokens"])


def test_a_star_outlives_its_gateway_and_a_target_that_hangs(tmp_path: Path) -> None:
    with running(tmp_path, "--target", TARGET, "--served-model-name", "star") as up:
        url = up.wait_ready()
        whole = text_of(answer(url, max_tokens=LONG))
        gateway = up.child("gateway")
        assert gateway is not None
        gateway.kill()
        until(lambda: _num_targets(url) == 2, "the gateway's return to its port")

        with ThreadPoolExecutor(2) as clients:
            waiting = [clients.submit(answer, url, max_tokens=LONG) for _ in range(2)]
            until(lambda: _is_busy(url, "target-0") and _is_busy(url, "target-1"), "a request at each target")
            hung = up.child("target")
            assert hung is not None
            hung.suspend()
            until(lambda: _num_targets(url) == 1, "the look past the silent target")
            for _ in range(6):
                assert whole.startswith(text_of(answer(url)))
            assert hung.status() == psutil.STATUS_STOPPED  # the other target answered
            until(lambda: not hung.is_running(), "the end of the hung target")
            assert [text_of(each.result()) for each in waiting] == [whole] * 2
        assert up.end(signal.SIGTERM) == 0
    said = up.log.read_text()
    assert "gateway  | killed by SIGKILL; starting it again in 0.25 s" in said
    assert "target-0 | it hung, without a sign of life for 10 s, and was killed; starting it again in 0.25 s" in said


def _num_targets(url: str) -> int:
    """Targets that can answer; 0 while there is no gateway."""
    try:
        return int(httpx.get(f"{url}/health", timeout=LIMIT_S).json()["num_targets"])
    except httpx.TransportError:
        return 0


def _is_busy(url: str, target: str) -> bool:
    metrics = httpx.get(f"{url}/metrics", timeout=LIMIT_S).text.splitlines()
    [running] = [line for line in metrics if line.startswith(f'starspec_num_requests_running{{target="{target}"}}')]
    return float(running.split()[-1]) > 0


@pytest.mark.parametrize("told", ["the supervisor", "all at once"])
def test_a_stop_drains_what_is_running_and_refuses_what_is_new(tmp_path: Path, told: str) -> None:
    """All at once: as a service manager stops the processes of a service."""
    with running(tmp_path, *STAR, "--served-model-name", "star", "--targets", "1") as up:
        url = up.wait_ready()
        whole = text_of(answer(url, max_tokens=LONG))
        stream = Streaming(url)
        assert stream.has_begun.wait(LIMIT_S)
        number = signal.SIGINT if told == "the supervisor" else signal.SIGTERM
        for child in up.children if told == "all at once" else []:
            child.send_signal(number)
        assert up.end(number) == 0
        stream.join(LIMIT_S)
        assert stream.is_whole, stream.failure
        assert stream.text == whole
        assert up.are_children_gone()
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/health")


def test_no_child_outlives_a_supervisor_that_was_killed(tmp_path: Path) -> None:
    with running(tmp_path, "--target", TARGET, "--targets", "1") as up:
        up.wait_ready()
        assert len(up.children) == 2  # no draft, no hub
        assert up.end(signal.SIGKILL) == -signal.SIGKILL
        assert up.are_children_gone()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_start_that_is_interrupted_did_not_succeed(tmp_path: Path, number: signal.Signals) -> None:
    """The exit code is that of a process that does not handle the signal, as before processes are started."""
    with running(tmp_path, *STAR) as up:
        up.children = until(up.process.children, "the first process")
        assert up.end(number) == 128 + number
        assert up.are_children_gone()
    assert "Traceback" not in up.log.read_text()


def failing(*arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "starspec", "up", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=dict(os.environ))
    return done.returncode, done.stderr


@pytest.mark.parametrize("role", ["--target", "--draft"])
def test_a_missing_model_is_one_sentence(role: str) -> None:
    models = {"--target": TARGET, "--draft": DRAFT, role: "/no/such/model"}
    code, said = failing(*(word for pair in models.items() for word in pair), "--port", "0")
    assert (code, said) == (2, "starspec: there is no model at '/no/such/model': '/no/such' is not a folder\n")


def test_a_child_that_cannot_start_is_one_sentence_and_nothing_is_left(tmp_path: Path) -> None:
    ready_file = tmp_path / "ready.json"
    ready_file.write_text('{"gateway": "of a run that was killed"}')
    other = "synthetic:vocab=300,role=draft"
    before = {child.pid for child in psutil.Process().children(recursive=True)}  # other tests' helpers
    code, said = failing("--target", TARGET, "--draft", other, "--port", "0", "--ready-file", str(ready_file))
    assert code == 2
    assert not ready_file.exists()
    assert said.startswith("starspec: hub cannot start: target and draft do not share a vocabulary")
    assert said.count("\n") == 1
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before


def test_a_port_in_use_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, said = failing(*STAR, "--port", str(port))
    assert (code, said) == (2, f"starspec: cannot listen on 127.0.0.1:{port}: address already in use\n")


def test_a_star_whose_hub_has_policies_says_the_same_and_tells_of_them(tmp_path: Path) -> None:
    policies = ("--run-ahead", "auto", "--weights", "target-0=2", "--slo-round-ms", "target-1=15", "--admission", "2")
    limits = ("--rate-limit", "target-0=20,target-1=20", "--max-batch", "2", "--kv-budget", "8MiB")
    with running(tmp_path, *STAR, "--served-model-name", "star", *policies, *limits) as up:
        url = up.wait_ready()
        assert text_of(answer(url, max_tokens=120)) == text_of(answer(url, max_tokens=120, speculative=False))
        metrics = httpx.get(f"{url}/metrics", timeout=LIMIT_S).text
        [rationed] = [line for line in metrics.splitlines() if line.startswith("starspec_hub_rationed_requests_total{")]
        assert float(rationed.split()[-1]) > 0
        assert "starspec_hub_saved_seconds_total{" in metrics
        assert up.end(signal.SIGTERM) == 0
