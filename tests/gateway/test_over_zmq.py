"""The gateway over the real serving link: a toy target on a thread of its own, at the other end of a socket."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from starspec.audit import AuditLog
from starspec.config import GatewayConfig
from starspec.errors import ConfigError
from starspec.gateway import routed_target
from starspec.gateway.server import Connections, GatewayServer, zmq_connections
from starspec.ids import StageId, TargetId
from starspec.stages.inbox import NO_STAGE_WANTED, StageInbox
from starspec.stats import RequestStats, TargetStats
from starspec.wire.keys import generate_keys, load_keys
from starspec.wire.messages import (
    PROTOCOL_VERSION,
    Abort,
    Alive,
    Ask,
    EngineOutput,
    PromptLogprob,
    Submit,
    TargetStatus,
    TokenLogprob,
)
from starspec.wire.transports.serving_client import ServingClient
from starspec.wire.transports.serving_server import ServingServer
from starspec.wire.transports.stage_port import StagePort

PATIENCE_S = 20.0


NUM_STREAMS = 200  # half of them have had a token when their target is killed
CHATTY, MUTE, MAD = 7, 5, 9  # the prompts
LIKELY = TokenLogprob(1, -0.5, [(1, -0.5)])
TARGET = """
import sys
import time

from starspec.ids import TargetId
from starspec.stats import TargetStats
from starspec.wire.messages import Ask, EngineOutput, Submit, TargetStatus
from starspec.wire.transports.serving_server import ServingServer

server = ServingServer("127.0.0.1", 0)
sys.stdout.write(f"{server.port}\\n")
sys.stdout.flush()
begun, next_s = [], 0.0
while True:
    for peer, message in server.receive(0.005):
        if isinstance(message, Ask):
            server.send(peer, [TargetStatus(TargetId("a"), "toy", 64, 0, 0, 999, 999, True, TargetStats())])
        elif isinstance(message, Submit) and message.spec.prompt_token_ids == [7]:
            begun.append(message.request_id)
    if begun and time.monotonic() > next_s:  # slowly: a busy gateway that cannot read so much would be cut off
        next_s = time.monotonic() + 0.2
        server.send(peer, [EngineOutput(request_id, [1], "x") for request_id in begun])
"""


class ThreadedTarget:
    """Emits one `x` for each prompt token of a request, then waits for ever if the prompt says so (token 7).

    A prompt that begins with MAD gets an `x`, and then `nonsense`.
    """

    nonsense: Mapping[str, Any] = {}  # fields of an output

    def __init__(self, port: int = 0, keys: Any = None) -> None:
        self._server = ServingServer("127.0.0.1", port, keys)
        self.port = self._server.port
        self.has_begun = threading.Event()  # an answer that will not end by itself
        self.has_aborted = threading.Event()
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def die(self) -> None:
        self._is_stopping.set()
        self._thread.join(PATIENCE_S)

    def _run(self) -> None:
        while not self._is_stopping.is_set():
            for peer, message in self._server.receive(0.02):
                self._handle(peer, message)
        self._server.close()

    def _handle(self, peer: bytes, message: Any) -> None:
        match message:
            case Ask():
                self._server.send(peer, [TargetStatus(TargetId("toy"), "toy", 64, 0, 0, 1, 1, True, TargetStats())])
            case Abort():
                self.has_aborted.set()
            case Submit(request_id=request_id, spec=spec) if spec.prompt_token_ids[0] == MAD:
                output = {"request_id": request_id, "token_ids": [1], "text": "x", "logprobs": [LIKELY]}
                self._server.send(peer, [EngineOutput(**output), EngineOutput(**output | self.nonsense)])
            case Submit(request_id=request_id, spec=spec):
                parts = [EngineOutput(request_id, [1], "x") for _ in spec.prompt_token_ids]
                is_endless = 7 in spec.prompt_token_ids
                last = [] if is_endless else [EngineOutput(request_id, [2], "!", None, "stop", None, RequestStats())]
                self._server.send(peer, [*parts, *last])
                if is_endless:
                    self.has_begun.set()


@pytest.fixture
def target() -> Iterator[ThreadedTarget]:
    made = ThreadedTarget()
    yield made
    made.die()


@pytest.fixture
async def http(target: ThreadedTarget, model_folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a gateway over the target."""
    config = GatewayConfig(port=0, model=str(model_folder), targets=(f"tcp://127.0.0.1:{target.port}",))
    server = GatewayServer(config)
    serving = asyncio.create_task(server.serve())
    async with httpx.AsyncClient(base_url=server.address, timeout=PATIENCE_S, trust_env=False) as client:
        await until_health(client, 200)
        yield client
    server.stop()
    await asyncio.wait_for(serving, PATIENCE_S)


async def until_health(client: httpx.AsyncClient, status: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if (await client.get("/health")).status_code == status:
                return


async def test_answers_come_over_the_link(http: httpx.AsyncClient) -> None:
    replies = await asyncio.gather(
        *(http.post("/v1/completions", json={"prompt": [1] * size, "n": 2}) for size in range(1, 9))
    )
    texts = [[choice["text"] for choice in reply.json()["choices"]] for reply in replies]
    assert texts == [["x" * size + "!"] * 2 for size in range(1, 9)]


async def test_a_target_that_dies_ends_its_streams_and_is_used_again_when_it_is_back(
    http: httpx.AsyncClient, target: ThreadedTarget
) -> None:
    async with http.stream("POST", "/v1/completions", json={"prompt": [7], "stream": True}) as reply:
        blocks = reply.aiter_text()
        assert '"text":"x"' in await anext(blocks)
        await asyncio.to_thread(target.die)
        rest = "".join([block async for block in blocks])
    assert '"code": 503' in rest
    assert rest.endswith("data: [DONE]\n\n")
    await until_health(http, 503)
    heir = ThreadedTarget(target.port)
    try:
        await until_health(http, 200)
        assert (await http.post("/v1/completions", json={"prompt": [1]})).json()["choices"][0]["text"] == "x!"
    finally:
        await asyncio.to_thread(heir.die)


NONSENSE = {
    "a negative token": {"token_ids": [-1]},
    "a token of 40 bits": {"token_ids": [2**40]},
    "its logprob": {"logprobs": [TokenLogprob(-1, -0.5, [])]},
    "a likely token": {"logprobs": [TokenLogprob(1, -0.5, [(2**31, -0.5)])]},
    "a token of the prompt": {"prompt_logprobs": [PromptLogprob(-7, -0.5, 1, [])]},
    "no tokens at all": {"token_ids": 7},
}


@pytest.mark.parametrize("nonsense", NONSENSE.values(), ids=NONSENSE)
async def test_an_answer_of_impossible_tokens_is_the_targets_fault_in_a_sentence_without_a_traceback(
    http: httpx.AsyncClient, target: ThreadedTarget, nonsense: dict[str, Any]
) -> None:
    target.nonsense = nonsense
    with capture_logs() as logs:
        body = {"prompt": [MAD, 1], "logprobs": 1, "prompt_logprobs": 1}
        reply = await http.post("/v1/completions", json=body)
        streamed = await http.post("/v1/completions", json={"prompt": [MAD], "logprobs": 1, "stream": True})
        assert await asyncio.to_thread(target.has_aborted.wait, PATIENCE_S)
    why = "the target answered what cannot be read"
    error = {"message": why, "type": "BadGatewayError", "param": None, "code": 502}
    assert (reply.status_code, reply.json()["error"]) == (502, error)
    first, *_, last, done, _ = streamed.text.split("\n\n")
    assert '"text":"x"' in first
    assert (json.loads(last.removeprefix("data: ")), done) == ({"error": error}, "data: [DONE]")
    assert not [each for each in logs if "exc_info" in each]
    assert "starspec_gateway_broken_answers_total 2.0" in (await http.get("/metrics")).text
    assert (await http.post("/v1/completions", json={"prompt": [1]})).json()["choices"][0]["text"] == "x!"


@pytest.fixture
def stage() -> Iterator[StagePort]:
    """A stage that is asked who it is."""
    port = StagePort("127.0.0.1", 0, None, False, AuditLog.off())
    inbox = StageInbox(port, StageId("0" * 16), "target", lambda peer, beat: Alive(beat.pipe_epoch), time.monotonic)
    inbox.start()
    yield port
    inbox.end()
    inbox.join(PATIENCE_S)


async def test_a_stages_address_is_not_a_targets_and_log_and_health_say_so(
    stage: StagePort, model_folder: Path
) -> None:
    with capture_logs() as logs:
        address = f"tcp://127.0.0.1:{stage.port}"
        server = GatewayServer(GatewayConfig(port=0, model=str(model_folder), targets=(address,), hub=address))
        serving = asyncio.create_task(server.serve())
        async with httpx.AsyncClient(base_url=server.address, timeout=PATIENCE_S, trust_env=False) as client:
            async with asyncio.timeout(PATIENCE_S):
                state, said = "", dict[str, str]()
                while state != "refusing" or len(said) < 2:
                    state = (await client.get("/health")).json()["targets"][0]["state"]
                    said = {each["event"]: each["why"] for each in logs if each["log_level"] == "warning"}
        server.stop()
        await asyncio.wait_for(serving, PATIENCE_S)
    assert said == {
        "a target refuses this gateway": NO_STAGE_WANTED.reason,
        "the hub does not answer": f"the hub at {address} refuses to answer: {NO_STAGE_WANTED.reason}",
    }


async def stream_of(port: int, token_id: int, has_begun: asyncio.Queue[int]) -> str:
    """Stream one answer. Returns: its end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps({"prompt": [token_id], "stream": True, "max_tokens": 60})
    head = "POST /v1/completions HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-type: application/json\r\n"
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())
    end = b""
    while chunk := await reader.read(65536):
        if token_id == CHATTY and not end:
            has_begun.put_nowait(token_id)
        end = (end + chunk)[-1000:]
    writer.close()
    return end.decode()


def stands_still() -> float:
    """A clock."""
    return 1.0


@pytest.fixture
def doomed() -> Iterator[Any]:
    """A target in a process of its own."""
    with subprocess.Popen([sys.executable, "-c", TARGET], stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


async def test_of_many_streams_of_a_killed_target_none_hangs_and_those_without_a_token_go_elsewhere(
    doomed: Any, model_folder: Path
) -> None:
    """No clock of the gateway moves: what ends them is the end of their connection, and not somebody's patience."""
    port = int(doomed.stdout.readline())
    with socket.create_server(("127.0.0.1", 0)) as free:
        heir_port = free.getsockname()[1]
    endpoints = tuple(f"tcp://127.0.0.1:{each}" for each in (port, heir_port))
    limits = {"max_connections": 2 * NUM_STREAMS, "max_connections_per_address": 2 * NUM_STREAMS}
    config = GatewayConfig(port=0, model=str(model_folder), targets=endpoints, **limits)
    server = GatewayServer(
        config, lambda: Connections([ServingClient(each, clock=stands_still) for each in endpoints]), stands_still
    )
    serving = asyncio.create_task(server.serve())
    http_port, has_begun = int(server.address.rsplit(":", 1)[1]), asyncio.Queue[int]()
    async with httpx.AsyncClient(base_url=server.address, timeout=PATIENCE_S, trust_env=False) as client:
        await until_health(client, 200)
        prompts = [CHATTY, MUTE] * (NUM_STREAMS // 2)
        streams = [asyncio.create_task(stream_of(http_port, prompt, has_begun)) for prompt in prompts]
        for _ in range(NUM_STREAMS // 2):
            await asyncio.wait_for(has_begun.get(), PATIENCE_S)
        heir = ThreadedTarget(heir_port)
        async with asyncio.timeout(PATIENCE_S):
            while True:
                if (await client.get("/health")).text.count('"ready"') == 2:
                    break
        doomed.kill()
        doomed.wait()
        ends = await asyncio.wait_for(asyncio.gather(*streams), PATIENCE_S)
    server.stop()
    await asyncio.wait_for(serving, PATIENCE_S)
    await asyncio.to_thread(heir.die)
    assert all('"code": 503' in end for end in ends[::2])
    assert all('"text":"!"' in end for end in ends[1::2])
    assert all("[DONE]" in end for end in ends)


async def test_a_gateway_and_a_target_of_different_versions_refuse_each_other_in_a_sentence(
    target: ThreadedTarget, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routed_target, "PROTOCOL_VERSION", PROTOCOL_VERSION + 1)  # what this gateway says of itself
    config = GatewayConfig(port=0, model=str(model_folder), targets=(f"tcp://127.0.0.1:{target.port}",))
    with capture_logs() as logs:
        server = GatewayServer(config)
        serving = asyncio.create_task(server.serve())
        async with httpx.AsyncClient(base_url=server.address, timeout=PATIENCE_S, trust_env=False) as client:
            async with asyncio.timeout(PATIENCE_S):
                while not (refusals := [each for each in logs if "refuses this gateway" in each["event"]]):
                    assert (await client.get("/health")).status_code == 503
        server.stop()
        await asyncio.wait_for(serving, PATIENCE_S)
    assert "install the same starspec release on both machines" in refusals[0]["why"]
    assert not target.has_begun.is_set()


async def test_a_client_that_leaves_is_an_abort_at_the_target(http: httpx.AsyncClient, target: ThreadedTarget) -> None:
    leaving = asyncio.create_task(http.post("/v1/completions", json={"prompt": [7]}))
    assert await asyncio.to_thread(target.has_begun.wait, PATIENCE_S)
    leaving.cancel()
    assert await asyncio.to_thread(target.has_aborted.wait, PATIENCE_S)


async def test_a_link_with_keys_serves_too(model_folder: Path, tmp_path: Path) -> None:
    generate_keys(tmp_path / "keys")
    target = ThreadedTarget(keys=load_keys(tmp_path / "keys", "target"))
    server = GatewayServer(
        GatewayConfig(
            port=0,
            model=str(model_folder),
            targets=(f"tcp://127.0.0.1:{target.port}",),
            keys=str(tmp_path / "keys"),
        )
    )
    serving = asyncio.create_task(server.serve())
    try:
        async with httpx.AsyncClient(base_url=server.address, timeout=PATIENCE_S, trust_env=False) as client:
            await until_health(client, 200)
    finally:
        server.stop()
        await asyncio.wait_for(serving, PATIENCE_S)
        await asyncio.to_thread(target.die)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"targets": ()}, "at least one target"),
        ({"targets": ("localhost:1",)}, "not of the form"),
        ({"targets": ("tcp://10.0.0.1:1",)}, "without keys"),
        ({"hub": "tcp://10.0.0.1:1"}, "without keys"),
        ({"keys": "/no/such/folder"}, "/no/such/folder"),
    ],
)
def test_addresses_and_keys_are_checked_before_anything_runs(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        zmq_connections(GatewayConfig(**settings))


async def test_a_gateway_with_a_hub_alone_serves_its_metrics_and_no_requests(model_folder: Path) -> None:
    """For a fleet of vLLM servers."""
    server = GatewayServer(GatewayConfig(port=0, model=str(model_folder), targets=(), hub="tcp://127.0.0.1:1"))
    serving = asyncio.create_task(server.serve())
    async with httpx.AsyncClient(base_url=server.address, timeout=PATIENCE_S, trust_env=False) as http:
        await until_health(http, 503)
        assert "starspec_" in (await http.get("/metrics")).text
        refused = await http.post("/v1/completions", json={"prompt": [1], "n": 2})
        assert (refused.status_code, refused.json()["error"]["type"]) == (503, "ServiceUnavailableError")
    server.stop()
    await asyncio.wait_for(serving, PATIENCE_S)


def test_other_machines_may_be_reached_without_keys_if_the_operator_says_so() -> None:
    zmq_connections(GatewayConfig(targets=("tcp://10.0.0.1:1",), hub="tcp://10.0.0.2:1", insecure=True))
