"""No client can hold a connection, a descriptor or a row for ever, and none can fill the log."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import json
import os
import resource
import socket
import struct
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from structlog.testing import capture_logs

from starspec.gateway import http_protocol
from starspec.gateway.connections import ConnectionTable
from starspec.gateway.http_server import affordable_connections
from starspec.log_limit import LINES, LogLimit
from starspec.policy.newcomers import PROGRESS_BYTES

PATIENCE_S = 20.0
GET = b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n"
NO_LIMIT = LogLimit(lambda: 0.0)


class Client:
    """A bare socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, url: str) -> Client:
        address = urlsplit(url)
        return cls(*await asyncio.open_connection(address.hostname, address.port))

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def rest(self) -> bytes:
        """What comes until the gateway closes."""
        async with asyncio.timeout(PATIENCE_S):
            try:
                return await self.reader.read()
            except ConnectionResetError:
                return b""
            finally:
                self.writer.close()

    async def rest_while_dribbling(self) -> bytes:
        """As `rest`, with a byte sent now and then, as by a client that wants to keep the connection."""
        reading = asyncio.create_task(self.rest())
        while not reading.done():
            self.writer.write(b"x")
            await asyncio.sleep(0.02)
        return await reading


def open_descriptors() -> list[int]:
    return [int(each.name) for each in Path("/proc/self/fd").iterdir()]


def fill_up() -> list[int]:
    """Open descriptors until there are none left."""
    opened: list[int] = []
    with contextlib.suppress(OSError):
        while True:
            opened.append(os.dup(0))
    return opened


def post(path: str, body: dict[str, Any]) -> bytes:
    payload = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
    )
    return head.encode() + payload


def body_of(answer: bytes) -> Any:
    return json.loads(answer.partition(b"\r\n\r\n")[2])


@pytest.mark.parametrize("after_an_answer", [False, True])
async def test_a_connection_without_a_request_is_closed(start_gateway: Any, after_an_answer: bool) -> None:
    gateway = await start_gateway(idle_timeout_s=0.2)
    client = await Client.connect(gateway.url)
    if after_an_answer:
        await client.send(GET)
    assert (b"200 OK" in await client.rest()) == after_an_answer


@pytest.mark.parametrize(
    ("sent", "what"),
    [
        (b"GET /version HTTP/1.1\r\nX-Slow: ", b"head of the request did not arrive within 0.3 s"),
        (
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 999\r\n\r\n{",
            b"body of the request did not arrive within 0.3 s",
        ),
    ],
)
async def test_a_request_that_dribbles_in_is_a_408(start_gateway: Any, sent: bytes, what: bytes) -> None:
    gateway = await start_gateway(receive_timeout_s=0.3)
    client = await Client.connect(gateway.url)
    await client.send(sent)
    answer = await client.rest_while_dribbling()
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert what in answer
    assert not gateway.target.submitted


async def test_a_body_that_nobody_waits_for_does_not_keep_the_connection(start_gateway: Any) -> None:
    gateway = await start_gateway(receive_timeout_s=0.3)
    client = await Client.connect(gateway.url)
    await client.send(b"GET /version HTTP/1.1\r\nHost: x\r\nContent-Length: 999\r\n\r\n")
    assert (await client.rest_while_dribbling()).startswith(b"HTTP/1.1 200 ")


async def test_answers_of_a_connection_itself_are_counted_and_audited(start_gateway: Any, tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    gateway = await start_gateway(receive_timeout_s=0.2, audit_log=str(file))
    for data in (GET[:10], post("/v1/completions", {"prompt": "secret"})[:-5], b"nonsense\r\n\r\n"):
        client = await Client.connect(gateway.url)
        await client.send(data)
        assert await client.rest()
    metrics = (await gateway.http.get("/metrics")).text
    for route, status in (("none", "408"), ("/v1/completions", "408"), ("none", "400")):
        assert f'starspec_gateway_requests_total{{route="{route}",status="{status}"}} 1.0' in metrics
    assert 'status="499"' not in metrics
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert {each["process"] for each in lines} == {"gateway"}
    told = [(each["event"], each.get("route"), each.get("status")) for each in lines]
    assert told.count(("connection_refused", None, 408)) == 1
    assert told.count(("connection_refused", None, 400)) == 1
    assert told.count(("request_refused", "/v1/completions", 408)) == 1
    assert sum(event == "client_connected" for event, _, _ in told) >= 4
    assert "secret" not in file.read_text()


async def test_a_newcomer_without_a_place_is_counted_and_audited(start_gateway: Any, tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    gateway = await start_gateway(max_connections=2, audit_log=str(file))
    gateway.target.script = None
    clients = [await Client.connect(gateway.url) for _ in range(2)]
    for client in clients:
        await client.send(post("/v1/completions", {"prompt": "a"}))
    await gateway.target.until(lambda: len(gateway.target.open) == 2)
    assert b"503" in await (await Client.connect(gateway.url)).rest()
    for client in clients:
        client.writer.close()
    await gateway.target.until(lambda: not gateway.target.open)
    assert 'route="none",status="503"} 1.0' in (await gateway.http.get("/metrics")).text
    refused = [json.loads(line) for line in file.read_text().splitlines() if "connection_refused" in line]
    assert [(each["client"], each["status"]) for each in refused] == [("127.0.0.1", 503)]


async def test_the_audit_log_tells_of_targets_and_refused_requests_and_never_of_text(
    start_gateway: Any, tmp_path: Path
) -> None:
    file = tmp_path / "audit.jsonl"
    gateway = await start_gateway(api_key="k", audit_log=str(file), max_body_bytes=1000)
    assert (await gateway.post("/v1/completions", prompt="secret")).status_code == 200
    assert (await gateway.post("/v1/completions", prompt="secret", secret="secret")).status_code == 400
    assert (await gateway.post("/v1/completions", prompt="secret" * 1000)).status_code == 413
    gateway.http.headers["Authorization"] = "Bearer secret"
    assert (await gateway.post("/secret", prompt="secret")).status_code == 401
    gateway.target.lose()
    await gateway.healthy(0)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    told = [(each["event"], each.get("route"), each.get("status")) for each in lines if "refused" in each["event"]]
    assert told == [
        ("request_refused", "/v1/completions", 400),
        ("request_refused", "/v1/completions", 413),
        ("request_refused", "other", 401),
    ]
    of_target = [(each["event"], each["target"]) for each in lines if each["event"].startswith("target_")]
    assert of_target == [("target_connected", "t0"), ("target_lost", "t0")]
    assert "secret" not in file.read_text()


async def test_idle_connections_make_room_for_one_with_a_request(start_gateway: Any) -> None:
    gateway = await start_gateway(max_connections=4)
    idle = [await Client.connect(gateway.url) for _ in range(12)]
    slow = idle[-1]
    await slow.send(GET[:-2])
    for _ in range(3):
        client = await Client.connect(gateway.url)
        await client.send(GET)
        assert await client.reader.readline() == b"HTTP/1.1 200 OK\r\n"
        client.writer.close()
    ended = [await each.rest() for each in idle[:8]]
    assert ended == [b""] * 8
    for each in idle:
        each.writer.close()


@pytest.mark.parametrize("limit", ["max_connections", "max_connections_per_address"])
async def test_a_newcomer_among_working_connections_is_a_503_and_they_go_on(start_gateway: Any, limit: str) -> None:
    gateway = await start_gateway(**{limit: 3})
    target = gateway.target
    target.script = None
    await gateway.http.aclose()  # its connection would be one of the three
    working = []
    for _ in range(3):
        working.append(await Client.connect(gateway.url))
        await working[-1].send(post("/v1/completions", {"prompt": "hi"}))
        await target.until(lambda: len(target.open) == len(working))
    with capture_logs() as logs:
        for _ in range(40):
            answer = await (await Client.connect(gateway.url)).rest()
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"retry-after: 1" in answer.lower()
    assert body_of(answer)["error"]["message"] == "the gateway has no connection left: try again"
    assert len([each for each in logs if each["event"] == "a connection was refused"]) == LINES
    for request_id in list(target.open):
        target.emit(request_id, "done", finish="stop")
    for client in working:
        assert b'"text":"done"' in await client.reader.readuntil(b'"done"')
        client.writer.close()


@pytest.fixture
async def faults() -> list[dict[str, Any]]:
    """What callbacks of this event loop did not catch."""
    uncaught: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: uncaught.append(context))
    return uncaught


async def test_a_client_that_has_left_when_it_is_refused_leaves_no_trace(
    start_gateway: Any, faults: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As between its last byte and our error: the system then knows no other end of the connection."""

    def not_connected(_: Any) -> None:
        raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))

    gateway = await start_gateway(max_connections=1)
    await gateway.http.aclose()
    gateway.target.script = None
    working = await Client.connect(gateway.url)
    await working.send(post("/v1/completions", {"prompt": "a"}))
    await gateway.target.until(lambda: gateway.target.open)
    with monkeypatch.context() as patch:
        patch.setattr("asyncio.selector_events._SelectorSocketTransport.write_eof", not_connected)
        for _ in range(3):
            await (await Client.connect(gateway.url)).rest()
    assert not faults
    working.writer.close()
    await gateway.target.until(lambda: not gateway.target.open)
    client = await Client.connect(gateway.url)
    await client.send(GET)
    assert await client.reader.readline() == b"HTTP/1.1 200 OK\r\n"
    client.writer.close()


async def test_nobody_gives_way_to_a_client_that_left_before_it_was_accepted(start_gateway: Any, faults: Any) -> None:
    gateway = await start_gateway(max_connections=1)
    await gateway.http.aclose()
    idle = await Client.connect(gateway.url)
    await idle.send(GET)
    await idle.reader.readuntil(b"version")
    address = urlsplit(gateway.url)
    for _ in range(3):
        with socket.create_connection((address.hostname, address.port)) as left:  # no turn of the loop until it left
            left.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # with a reset
    await asyncio.sleep(0.1)
    await idle.send(GET)
    assert b"version" in await asyncio.wait_for(idle.reader.readuntil(b'"version":'), PATIENCE_S)
    assert not faults
    idle.writer.close()


class Place:
    """A connection without a network."""

    def __init__(self, name: str, ended: list[str]) -> None:
        self._name = name
        self._ended = ended

    def give_way(self) -> None:
        self._ended.append(self._name)


def test_of_waiting_connections_the_one_that_waits_for_longest_ends_first_and_working_ones_never() -> None:
    ended: list[str] = []
    table = ConnectionTable(3, 2, NO_LIMIT, itertools.count().__next__)
    a, b, c, d, e, f = (Place(name, ended) for name in "abcdef")
    assert table.admit(a, "here")
    assert table.admit(b, "here")
    table.end_wait(a)
    table.begin_wait(a)
    assert table.admit(c, "here")
    assert ended == ["b"]
    for each in (a, c):
        table.end_wait(each)
    assert not table.admit(d, "here")
    assert table.admit(d, "there")
    assert table.admit(e, "elsewhere")
    assert ended == ["b", "d"]
    table.release(a)
    table.release(a)
    assert table.admit(f, "here")
    assert (ended, len(table)) == (["b", "d"], 3)


@pytest.mark.parametrize("num_bytes", [0, 1, PROGRESS_BYTES])
def test_two_addresses_with_slow_bodies_do_not_close_the_gateway_to_a_third(num_bytes: int) -> None:
    now, ended = [0.0], []
    table = ConnectionTable(16, 8, NO_LIMIT, lambda: now[0])
    slow = [Place("slow", ended) for _ in range(16)]
    for index, each in enumerate(slow):
        assert table.admit(each, f"hostile {index % 2}")
        table.end_wait(each)
        table.begin_wait(each)  # for a body that does not come to its end
    now[0] = 10.0
    for each in slow:
        table.hear(each, num_bytes)
    assert table.admit(Place("honest", ended), "here")
    for index in range(100):
        now[0] += 0.01
        assert table.admit(Place("slow", ended), f"hostile {index % 2}")
    assert set(ended) == {"slow"}


@pytest.mark.parametrize("limit", ["max_connections", "max_connections_per_address"])
async def test_a_newcomer_gets_the_place_of_a_body_that_does_not_come(start_gateway: Any, limit: str) -> None:
    gateway = await start_gateway(**{limit: 3})
    await gateway.http.aclose()
    slow = []
    for _ in range(3):
        slow.append(await Client.connect(gateway.url))
        await slow[-1].send(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 999\r\nExpect: 100-continue\r\n\r\n"
        )
        assert b" 100 " in await slow[-1].reader.readline()  # its head has arrived
    client = await Client.connect(gateway.url)
    await client.send(GET)
    assert await client.reader.readline() == b"HTTP/1.1 200 OK\r\n"
    told = await slow[0].rest()
    assert b"HTTP/1.1 503 " in told
    assert b"retry-after: 1" in told.lower()
    for each in (client, *slow):
        each.writer.close()


@pytest.mark.parametrize(("status", "key"), [(401, b"wrong"), (413, b"k"), (404, b"k")])
async def test_a_body_that_nobody_wants_keeps_no_place_for_long(
    start_gateway: Any, monkeypatch: pytest.MonkeyPatch, status: int, key: bytes
) -> None:
    monkeypatch.setattr(http_protocol, "REST_S", 0.2)
    gateway = await start_gateway(api_key="k", max_body_bytes=1000)
    client = await Client.connect(gateway.url)
    path = b"/nowhere" if status == 404 else b"/v1/completions"
    length = b"9999" if status == 413 else b"999"
    head = b"POST %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: %s\r\n\r\n"
    await client.send(head % (path, key, length))
    async with asyncio.timeout(5):  # the gateway would wait for 30 s for a body that it wants
        assert (await client.rest_while_dribbling()).startswith(b"HTTP/1.1 %d " % status)


async def test_without_descriptors_the_gateway_says_so_rarely_and_serves_again_when_there_are_some(
    gateway: Any,
) -> None:
    waiting = [socket.socket() for _ in range(3)]
    for each in waiting:
        each.setblocking(False)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    address = urlsplit(gateway.url)
    with capture_logs() as logs:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(open_descriptors()) + 1, hard))
        holes = fill_up()
        try:
            for each in waiting:
                await asyncio.get_running_loop().sock_connect(each, (address.hostname, address.port))
                await asyncio.get_running_loop().sock_sendall(each, GET)
            await asyncio.sleep(0.5)  # asyncio's own loop would have tried a thousand times
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for each in holes:
                os.close(each)
    assert 1 <= len([each for each in logs if "cannot accept" in each["event"]]) <= 3
    for each in waiting:
        client = Client(*await asyncio.open_connection(sock=each))
        assert await asyncio.wait_for(client.reader.readline(), PATIENCE_S) == b"HTTP/1.1 200 OK\r\n"
        client.writer.close()


def test_the_limit_of_connections_leaves_descriptors_for_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (10_000, 10_000))
    assert affordable_connections(512) == 512
    num_open = len(open_descriptors())
    monkeypatch.setattr(resource, "getrlimit", lambda _: (num_open + 40, 10_000))
    with capture_logs() as logs:
        assert 1 <= affordable_connections(512) <= 40
    assert "ulimit -n" in logs[0]["event"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_takes_too_long_is_a_504_and_frees_its_row(start_gateway: Any, stream: bool) -> None:
    gateway = await start_gateway(request_timeout_s=0.2)
    gateway.target.script = None
    reply = await gateway.post("/v1/completions", prompt="hi", stream=stream)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (504, 504)
    assert "not finished within 0.2 s" in error["message"]
    assert gateway.target.aborted == list(gateway.target.submitted)


async def test_a_stream_that_takes_too_long_ends_with_an_error_event(start_gateway: Any) -> None:
    gateway = await start_gateway(request_timeout_s=1.0)
    gateway.target.script = None
    answering = asyncio.create_task(gateway.post("/v1/completions", prompt="hi", stream=True))
    await gateway.target.until(lambda: gateway.target.open)
    gateway.target.emit(*gateway.target.open, "begun")
    body = (await answering).content
    begun, error, done, _ = body.split(b"\n\n")
    assert b"begun" in begun
    assert json.loads(error.removeprefix(b"data: "))["error"]["code"] == 504
    assert done == b"data: [DONE]"
    assert gateway.target.aborted == list(gateway.target.submitted)


async def test_a_client_that_does_not_read_is_left(start_gateway: Any) -> None:
    gateway = await start_gateway(receive_timeout_s=0.3)
    target = gateway.target
    target.script = None
    address = urlsplit(gateway.url)
    deaf = socket.socket()
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    deaf.connect((address.hostname, address.port))
    deaf.sendall(post("/v1/completions", {"prompt": "hi", "stream": True}))
    await target.until(lambda: target.open)
    (request_id,) = target.open
    for _ in range(8):
        target.flood(request_id, 1_000_000)
    await target.until(lambda: not target.open)
    assert target.aborted == [request_id]
    deaf.close()


async def test_a_half_closed_client_is_ended_and_its_row_is_free(gateway: Any) -> None:
    target = gateway.target
    target.script = None
    client = await Client.connect(gateway.url)
    await client.send(post("/v1/completions", {"prompt": "hi"}))
    await target.until(lambda: target.open)
    client.writer.write_eof()
    assert await client.rest() == b""
    await target.until(lambda: not target.open)


@pytest.mark.parametrize("early", [GET, GET * 3, b"x" * 100, b"y" * 100_000])
async def test_a_client_that_leaves_after_its_next_request_frees_its_row(gateway: Any, early: bytes) -> None:
    target = gateway.target
    target.script = None
    client = await Client.connect(gateway.url)
    await client.send(post("/v1/completions", {"prompt": "hi"}) + early[:10])
    await target.until(lambda: target.open)
    await client.send(early[10:])
    client.writer.close()
    await target.until(lambda: not target.open)


async def test_requests_that_come_early_are_answered_in_order(gateway: Any) -> None:
    target = gateway.target
    target.script = None
    client = await Client.connect(gateway.url)
    await client.send(post("/v1/completions", {"prompt": "a"}))
    await target.until(lambda: target.open)
    await client.send(post("/v1/completions", {"prompt": "b"}) + GET)
    target.emit(*target.open, "first", finish="stop")
    assert b'"text":"first"' in await client.reader.readuntil(b'"first"')
    await target.until(lambda: target.open)
    target.emit(*target.open, "second", finish="stop")
    assert b'"text":"second"' in await client.reader.readuntil(b'"second"')
    assert b"version" in await client.reader.readuntil(b"version")
    client.writer.close()


async def test_a_body_of_two_lengths_is_refused_and_the_connection_closed(gateway: Any) -> None:
    client = await Client.connect(gateway.url)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    await client.send(head + b"Content-Length: 15\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + GET)
    answer = await client.rest()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert "Content-Length" in body_of(answer)["error"]["message"]


async def test_what_is_not_http_gets_an_error_of_the_usual_shape(gateway: Any) -> None:
    client = await Client.connect(gateway.url)
    await client.send(b"\x16\x03\x01 hello\r\n\r\n")
    assert body_of(await client.rest())["error"]["code"] == 400
