"""A star whose hub is behind a lab: far away, partitioned and cut off in mid-stream. No token changes.

Real processes and sockets, synthetic models. How fast it is does not belong here: docs/lab.md has numbers.
"""

from __future__ import annotations

import json
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from starspec.config.lab import LabLink, LinkShape
from starspec.harness.servers import StarspecServer, free_port
from starspec.lab import LabThread

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

TARGET = "synthetic:vocab=256,step_ms=5,alpha=0.8"
DRAFT = f"{TARGET},role=draft".replace("step_ms=5", "step_ms=1")
DRAFTING = json.dumps({"length": {"policy": "fixed"}, "remote": {"deadline_ms": 400}})  # drafts, whether it pays or not
FAR = LinkShape(delay_ms=40, jitter_ms=5)
PROMPTS = ["bipa bigu", "bana babu", "bemo bare", "beke bina", "befa bile", "boha beba"]
NUM_TOKENS = 80
NUM_PORTS = 4  # the hub's public one, and those of its targets
LIMIT_S = 60.0


def hub_ports() -> int:
    """The first of NUM_PORTS free ports that follow one another."""
    while True:
        first = free_port()
        others: list[socket.socket] = []
        try:
            others = [socket.create_server(("127.0.0.1", first + each)) for each in range(1, NUM_PORTS)]
        except (OSError, OverflowError):
            continue
        finally:
            for each in others:
                each.close()
        if len(others) == NUM_PORTS - 1:
            return first


class FarStar:
    """A hub, a lab at 127.0.0.2 in front of it, a target that knows the lab only, and a gateway."""

    def __init__(self) -> None:
        first = hub_ports()
        last = first + NUM_PORTS - 1
        link = LabLink(listen=f"127.0.0.2:{first}-{last}", to=f"tcp://127.0.0.1:{first}", shape=FAR)
        self.lab = LabThread(link, seed=1)
        self._servers: list[StarspecServer] = []
        hub = ("draft", "--draft", DRAFT, "--port", str(first), "--data-ports", f"{first + 1}-{last}")
        self._start(*hub).wait_ready()
        self.lab.__enter__()
        target = self._start(
            *("target", "--target", TARGET, "--port", "0", "--hub", self.lab.endpoint()),
            *("--speculative-config", DRAFTING),
        )
        gateway = self._start("gateway", "--target", TARGET, "--port", "0", "--endpoint", target.wait_ready())
        self._url = gateway.wait_ready().removesuffix("/v1")
        until(lambda: httpx.get(f"{self._url}/health/ready").is_success, "a target is ready")

    def _start(self, *arguments: str) -> StarspecServer:
        server = StarspecServer(*arguments)
        self._servers.append(server)
        return server

    def close(self) -> None:
        for each in reversed(self._servers):
            each.end()
        self.lab.__exit__(None, None, None)

    def answers(self, *, speculative: bool = True, while_they_run: Callable[[], None] = lambda: None) -> list[str]:
        """The answers to all prompts, asked at once."""
        with ThreadPoolExecutor(len(PROMPTS)) as pool:
            futures = [pool.submit(self._answer, each, speculative) for each in PROMPTS]
            while_they_run()
            return [each.result() for each in futures]

    def _answer(self, prompt: str, speculative: bool) -> str:
        body = {
            **{"model": TARGET, "prompt": prompt, "max_tokens": NUM_TOKENS, "temperature": 0.8, "seed": 5},
            **{"ignore_eos": True, "speculative": speculative},
        }
        response = httpx.post(f"{self._url}/v1/completions", json=body, timeout=LIMIT_S)
        assert response.is_success, response.text
        return str(response.json()["choices"][0]["text"])

    def num_accepted(self) -> float:
        lines = httpx.get(f"{self._url}/metrics").text.splitlines()
        name = "starspec_spec_decode_num_accepted_tokens_total{"
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))

    def answers_until_drafts_are_accepted(self, plain: list[str]) -> None:
        before = self.num_accepted()

        def accepts() -> bool:
            assert self.answers() == plain
            return self.num_accepted() > before

        until(accepts, "a draft is accepted")


def until(holds: Callable[[], bool], what: str) -> None:
    limit_s = time.monotonic() + LIMIT_S
    pause = threading.Event()
    while not holds():
        assert time.monotonic() < limit_s, f"{what}: not within {LIMIT_S} s"
        pause.wait(0.05)


@pytest.fixture
def star() -> Iterator[FarStar]:
    far = FarStar()
    yield far
    far.close()


def test_a_far_hub_that_is_partitioned_and_cut_off_changes_no_token(star: FarStar) -> None:
    plain = star.answers(speculative=False)
    assert len(set(plain)) == len(PROMPTS)
    star.answers_until_drafts_are_accepted(plain)
    pause = threading.Event()

    def fault(cut: bool, seconds: float) -> None:
        pause.wait(0.2)  # the streams run
        star.lab.partition(cut=cut)
        pause.wait(seconds)
        star.lab.heal()

    for cut, seconds in ((False, 0.3), (False, 3.0), (True, 0.3), (True, 3.0)):  # silence ends a link after 2 s
        assert star.answers(while_they_run=lambda cut=cut, seconds=seconds: fault(cut, seconds)) == plain
    star.answers_until_drafts_are_accepted(plain)
    star.lab.reshape(LinkShape(delay_ms=10, mbit_s=0.5, loss=0.05, stall_ms=50))
    star.answers_until_drafts_are_accepted(plain)
    [traffic] = star.lab.traffic()
    assert traffic.num_connections >= 4  # the public port and the target's own, again after each long fault
    assert min(traffic.forth.num_bytes, traffic.back.num_bytes) > 10_000


def test_the_command_says_where_it_listens_and_what_has_passed(tmp_path: Path) -> None:
    receipt, described = tmp_path / "passed.json", tmp_path / "lab.toml"
    with socket.create_server(("127.0.0.1", 0)) as server:
        to = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        described.write_text(
            f'[[link]]\nname = "far"\nlisten = 0\nto = "{to}"\ndelay_ms = 5\nback = {{ mbit_s = 9 }}\n'
        )
        lab = StarspecServer("lab", str(described), "--json", str(receipt))
        host, _, port = lab.wait_ready().removeprefix("tcp://").rpartition(":")
        with socket.create_connection((host, int(port))) as client:
            client.sendall(b"hello")
            accepted, _ = server.accept()
            with accepted:
                assert accepted.recv(5) == b"hello"
                lab.ask_to_end(signal.SIGINT)
                with pytest.raises(ConnectionResetError):
                    client.recv(1)
    until(lambda: lab.process.poll() is not None, "the lab ends")
    output = lab.output()
    assert lab.wait_ended() == 0
    assert f"leads to {to}: 5 ms; back 5 ms, 9 Mbit/s" in output
    assert "What has passed" in output
    [link] = json.loads(receipt.read_text())
    assert (link["name"], link["num_connections"], link["forth"]["num_bytes"]) == ("far", 1, 5)
