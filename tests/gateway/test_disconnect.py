"""A client may leave at any moment: every answer that it waited for is aborted, and nobody else notices."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import urlsplit

import pytest

CHAT = {"messages": [{"role": "user", "content": "hi"}]}


def head_of(path: str, length: int) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: x", "Content-Type: application/json", f"Content-Length: {length}"]
    return "".join(f"{line}\r\n" for line in [*lines, ""]).encode()


class RudeClient:
    """A bare socket that sends one request and hangs up when told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self._writer = writer

    @classmethod
    async def post(cls, url: str, path: str, body: dict[str, Any]) -> RudeClient:
        address = urlsplit(url)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        payload = json.dumps(body).encode()
        writer.write(head_of(path, len(payload)) + payload)
        await writer.drain()
        return cls(reader, writer)

    async def hang_up(self) -> None:
        self._writer.transport.abort()  # a reset: not even a FIN


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 3])
async def test_a_client_that_leaves_before_the_first_token_aborts_all_its_answers(
    gateway: Any, stream: bool, n: int
) -> None:
    target = gateway.target
    target.script = None
    client = await RudeClient.post(gateway.url, "/v1/chat/completions", CHAT | {"stream": stream, "n": n})
    await target.until(lambda: len(target.open) == n)
    await client.hang_up()
    await target.until(lambda: not target.open)
    assert sorted(target.aborted) == sorted(target.submitted)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_between_tokens_aborts_what_is_unfinished_only(gateway: Any, stream: bool) -> None:
    target = gateway.target
    target.script = None
    client = await RudeClient.post(gateway.url, "/v1/completions", {"prompt": "hi", "stream": stream, "n": 2})
    await target.until(lambda: len(target.open) == 2)
    finished, unfinished = target.open
    target.emit(finished, "all of it", finish="stop")
    target.emit(unfinished, "the beg")
    if stream:
        await client.reader.readuntil(b"the beg")
    else:  # the status that answers the next question comes after both outputs
        await gateway.http.get("/health")
        await settle()
    await client.hang_up()
    await target.until(lambda: not target.open)
    assert target.aborted == [unfinished]


async def settle() -> None:
    """Let everything that is ready on the loop run."""
    for _ in range(50):
        await asyncio.sleep(0)


async def test_leaving_is_counted_and_others_go_on(gateway: Any) -> None:
    target = gateway.target
    target.script = None
    staying = asyncio.create_task(gateway.post("/v1/completions", prompt="stay"))
    await target.until(lambda: len(target.open) == 1)
    (stays,) = target.open
    client = await RudeClient.post(gateway.url, "/v1/completions", {"prompt": "leave", "stream": True})
    await target.until(lambda: len(target.open) == 2)
    await client.hang_up()
    await target.until(lambda: len(target.open) == 1)
    target.emit(stays, "here", finish="stop")
    assert (await staying).json()["choices"][0]["text"] == "here"
    metrics = (await gateway.http.get("/metrics")).text
    assert "starspec_gateway_disconnects_total 1.0" in metrics


async def test_a_client_that_leaves_while_it_sends_its_body_costs_nothing(gateway: Any) -> None:
    address = urlsplit(gateway.url)
    _, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(head_of("/v1/completions", 99) + b"{")
    await writer.drain()
    writer.transport.abort()
    assert (await gateway.post("/v1/completions", prompt="hi")).status_code == 200
    assert len(gateway.target.submitted) == 1


@pytest.mark.parametrize("has_begun", [False, True])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_shutdown_that_cannot_wait_aborts_what_is_open_and_tells_its_client(
    start_gateway: Any, stream: bool, has_begun: bool
) -> None:
    gateway = await start_gateway(shutdown_timeout_s=1.0)
    target = gateway.target
    target.script = None
    client = await RudeClient.post(gateway.url, "/v1/completions", {"prompt": "hi", "stream": stream})
    await target.until(lambda: len(target.open) == 1)
    if has_begun:
        (request_id,) = target.open
        target.emit(request_id, "the beg")
        if stream:
            await client.reader.readuntil(b"the beg")
    gateway.server.stop()
    rest = await asyncio.wait_for(client.reader.read(), 20)
    assert b'"code": 503' in rest
    assert b"shut down" in rest
    assert target.aborted == list(target.submitted)
    await client.hang_up()
