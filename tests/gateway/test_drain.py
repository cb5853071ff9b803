"""A gateway that stops lets the answers in flight end, and tells newcomers so: no reset, no hang."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from starspec.errors import OurBug
from starspec.gateway.drain import Drain
from starspec.wire.messages import HubStatus

PATIENCE_S = 20.0


async def test_a_stop_lets_the_answers_in_flight_end(start_gateway: Any) -> None:
    gateway = await start_gateway()
    target = gateway.target
    target.script = None
    answer = asyncio.create_task(gateway.post("/v1/completions", prompt="hi", stream=True))
    await target.until(lambda: target.open)
    gateway.server.stop()
    assert not gateway.serving.done()
    (request_id,) = target.open
    target.emit(request_id, "finished", finish="stop")
    assert "finished" in (await answer).text
    await asyncio.wait_for(gateway.serving, PATIENCE_S)
    assert target.is_closed
    assert not target.aborted


@pytest.mark.parametrize("is_kept_alive", [False, True])
async def test_a_request_that_comes_while_the_gateway_drains_is_a_503(start_gateway: Any, is_kept_alive: bool) -> None:
    gateway = await start_gateway()
    target = gateway.target
    target.script = None
    waiting = asyncio.create_task(gateway.post("/v1/completions", prompt="hi"))
    await target.until(lambda: target.open)
    limits = httpx.Limits(max_keepalive_connections=1 if is_kept_alive else 0)
    async with httpx.AsyncClient(base_url=gateway.url, limits=limits, trust_env=False) as other:
        assert (await other.get("/health")).status_code == 200
        gateway.server.stop()
        for path in ("/v1/completions", "/v1/chat/completions", "/health"):
            reply = await (other.get(path) if path == "/health" else other.post(path, json={"prompt": "new"}))
            assert reply.status_code == 503
            assert int(reply.headers["retry-after"]) >= 1
            assert reply.headers["connection"] == "close"
            assert reply.json()["error"]["type"] == "ServiceUnavailableError"
            assert "shutting down" in reply.json()["error"]["message"]
        assert "starspec_gateway_requests_in_flight 2.0" in (await other.get("/metrics")).text
    assert len(target.submitted) == 1
    target.emit(*target.open, "finished", finish="stop")
    assert (await waiting).json()["choices"][0]["text"] == "finished"


async def test_a_body_that_never_ends_does_not_outlast_the_drain(start_gateway: Any) -> None:
    gateway = await start_gateway(shutdown_timeout_s=0.5)
    host, port = gateway.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{")
    async with asyncio.timeout(PATIENCE_S):
        while "requests_in_flight 2.0" not in (await gateway.http.get("/metrics")).text:
            pass
        gateway.server.stop()
        assert b"503" in await reader.readline()
        await gateway.serving
    writer.close()


@pytest.mark.parametrize("stream", [False, True])
async def test_what_ordinary_clients_do_is_no_traceback(
    start_gateway: Any, stream: bool, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Noise instead of HTTP, an upgrade, a hang-up in mid-answer, a shutdown that cannot wait."""
    gateway = await start_gateway(shutdown_timeout_s=0.0)
    target = gateway.target
    target.script = None
    host, port = gateway.url.removeprefix("http://").split(":")
    noise = b"\x16\x03\x01 hello\r\n\r\n"
    upgrade = b"GET /health HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
    for sent in (noise, upgrade):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(sent)
        assert await reader.readline()
        writer.transport.abort()
    with capture_logs() as logs:
        leaving = asyncio.create_task(gateway.post("/v1/completions", prompt="hi", stream=stream))
        await target.until(lambda: len(target.open) == 1)
        leaving.cancel()
        await target.until(lambda: not target.open)
        broken_off = asyncio.create_task(gateway.post("/v1/completions", prompt="hi", stream=stream))
        await target.until(lambda: len(target.open) == 1)
        gateway.server.stop()
        assert (await broken_off).json()["error"]["code"] == 503
        await gateway.serving
    said = [(each["log_level"], each["event"]) for each in logs if each["log_level"] in ("warning", "error")]
    assert said == [("warning", "the drain timeout is over: answers in flight are cancelled")]
    assert not [record for record in caplog.records if record.levelno > logging.INFO]
    assert "Traceback" not in "".join(capfd.readouterr())


class SilentHub:
    """Is asked and does not answer."""

    def __init__(self) -> None:
        self.is_asked = asyncio.Event()
        self.was_closed_while_asked: bool | None = None

    async def ask(self) -> HubStatus:
        self.is_asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.is_asked.clear()
        raise OurBug("nobody sets it")

    def close(self) -> None:
        self.was_closed_while_asked = self.is_asked.is_set()


@pytest.mark.parametrize("num_stops", [1, 2])
async def test_a_stopped_gateway_gives_back_its_links_in_order(start_gateway: Any, num_stops: int) -> None:
    hub = SilentHub()
    gateway = await start_gateway(fetch_hub_status=hub.ask, close_hub=hub.close)
    gateway.target.script = None
    broken_off = asyncio.create_task(gateway.post("/v1/completions", prompt="hi"))
    await gateway.target.until(lambda: gateway.target.open)
    await asyncio.wait_for(hub.is_asked.wait(), PATIENCE_S)
    for _ in range(num_stops):
        gateway.server.stop()
    if num_stops == 1:
        gateway.target.emit(*gateway.target.open, "finished", finish="stop")
    assert (await broken_off).status_code == (200 if num_stops == 1 else 503)
    await asyncio.wait_for(gateway.serving, PATIENCE_S)
    assert hub.was_closed_while_asked is False
    assert gateway.target.is_closed


def test_a_drain_is_over_when_nothing_is_in_flight_or_time_is_up_or_it_is_asked_twice() -> None:
    now = 0.0
    drain = Drain(10.0, clock=lambda: now)
    assert not drain.is_over
    drain.num_in_flight = 1
    drain.ask()
    assert drain.is_begun
    assert not drain.is_over
    drain.num_in_flight = 0
    assert drain.is_over
    drain.num_in_flight = 1
    now = 10.0
    assert drain.is_over
    now = 9.0
    drain.ask()
    assert drain.is_over
    assert drain.is_impatient
