"""What goes over the socket: server-sent events, byte for byte."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from starspec.ids import RequestId
from starspec.wire.messages import Rejected


def events_of(body: bytes) -> list[str]:
    """The blocks of an event stream; it must end with a blank line."""
    assert body.endswith(b"\n\n")
    return body.decode().split("\n\n")[:-1]


async def emit_when_open(target: Any, text: str, finish: str | None = None, stop_reason: str | None = None) -> None:
    await target.until(lambda: target.open)
    (request_id,) = target.open
    target.emit(request_id, text, finish=finish, stop_reason=stop_reason)


async def test_a_stream_is_data_lines_that_end_with_done(gateway: Any) -> None:
    reply = await gateway.post("/v1/completions", prompt="hi", stream=True)
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert reply.headers["cache-control"] == "no-cache"
    *chunks, done = events_of(reply.content)
    assert done == "data: [DONE]"
    read = [json.loads(chunk.removeprefix("data: ")) for chunk in chunks]
    assert [chunk["choices"][0]["text"] for chunk in read] == ["Hel", "lo, ", "wörld"]
    assert read[0].keys() == {"id", "object", "created", "model", "system_fingerprint", "choices"}
    assert read[0]["choices"][0] == {
        "index": 0,
        "finish_reason": None,
        "stop_reason": None,
        "text": "Hel",
        "logprobs": None,
    }


async def test_the_last_chunk_carries_the_metrics_when_no_usage_chunk_follows(gateway: Any) -> None:
    reply = await gateway.post("/v1/chat/completions", messages=[{"role": "user", "content": "hi"}], stream=True, n=2)
    chunks = [json.loads(event.removeprefix("data: ")) for event in events_of(reply.content)[:-1]]
    assert ["metrics" in chunk for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1]["metrics"]["speculative_decoding"]["num_spec_steps"] == 4


async def test_usage_is_null_in_the_chunks_before_the_usage_chunk(gateway: Any) -> None:
    reply = await gateway.post("/v1/completions", prompt="hi", stream=True, stream_options={"include_usage": True})
    *chunks, last = [json.loads(event.removeprefix("data: ")) for event in events_of(reply.content)[:-1]]
    assert [chunk["usage"] for chunk in chunks] == [None, None, None]
    assert last["usage"] == {"prompt_tokens": 2, "completion_tokens": 14, "total_tokens": 16}


async def test_tokens_whose_text_is_held_back_make_no_chunk(gateway: Any) -> None:
    gateway.target.script = lambda spec: ["a", "", "", "b"]
    reply = await gateway.post("/v1/completions", prompt="hi", stream=True)
    assert len(events_of(reply.content)) == 3


async def test_an_answer_that_ends_at_once_has_its_role_and_its_reason(gateway: Any) -> None:
    gateway.target.script = lambda spec: [""]
    reply = await gateway.post("/v1/chat/completions", messages=[{"role": "user", "content": "hi"}], stream=True)
    first, last = [json.loads(event.removeprefix("data: ")) for event in events_of(reply.content)[:-1]]
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert last["choices"][0]["delta"] == {}
    assert last["choices"][0]["finish_reason"] == "stop"


async def test_a_silent_stream_is_kept_alive_by_comments(start_gateway: Any) -> None:
    gateway = await start_gateway(keep_alive_s=0.01)
    target = gateway.target
    target.script = None
    async with gateway.http.stream("POST", "/v1/completions", json={"prompt": "hi", "stream": True}) as reply:
        blocks = reply.aiter_bytes()
        assert (await anext(blocks)).startswith(b": keep-alive\n\n")
        (request_id,) = target.open
        target.emit(request_id, "late", finish="stop")
        rest = b"".join([block async for block in blocks])
    assert b'"text":"late"' in rest
    assert rest.endswith(b"data: [DONE]\n\n")


async def test_a_failure_in_mid_stream_is_an_error_event(gateway: Any) -> None:
    target = gateway.target
    target.script = None
    beginning = asyncio.create_task(emit_when_open(target, "begun"))
    async with gateway.http.stream("POST", "/v1/completions", json={"prompt": "hi", "stream": True}) as reply:
        await beginning
        target.lose()
        body = b"".join([block async for block in reply.aiter_bytes()])
    begun, error, done = events_of(body)
    assert "begun" in begun
    assert json.loads(error.removeprefix("data: "))["error"]["code"] == 503
    assert done == "data: [DONE]"


async def test_a_refusal_before_the_first_token_is_a_plain_error_even_for_a_stream(gateway: Any) -> None:
    gateway.target.refusal = Rejected(RequestId(""), "the prompt is too long", "prompt", 400)
    reply = await gateway.post("/v1/completions", prompt="hi", stream=True)
    assert reply.status_code == 400
    assert reply.json()["error"] == {
        "message": "the prompt is too long",
        "type": "BadRequestError",
        "param": "prompt",
        "code": 400,
    }


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("finish", "status"), [("abort", 503), ("error", 500)])
async def test_an_answer_that_the_target_breaks_off_is_an_error_and_not_a_short_answer(
    gateway: Any, finish: str, status: int, stream: bool
) -> None:
    gateway.target.script = None
    breaking = asyncio.create_task(emit_when_open(gateway.target, "", finish))
    answer = await gateway.post("/v1/completions", prompt="hi", stream=stream)
    await breaking
    assert answer.status_code == status
    assert answer.json()["error"]["code"] == status


@pytest.mark.parametrize("stream", [False, True])
async def test_a_target_says_why_it_gave_up(gateway: Any, stream: bool) -> None:
    gateway.target.script = None
    why = "stage tcp://b:7900 does not answer; no other stage took its place within 30 s"
    breaking = asyncio.create_task(emit_when_open(gateway.target, "", "abort", why))
    answer = await gateway.post("/v1/completions", prompt="hi", stream=stream)
    await breaking
    assert answer.status_code == 503
    assert answer.json()["error"]["message"] == f"the target aborted this request: {why}"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("logprobs", [False, True])
async def test_a_stream_says_what_a_whole_answer_says(gateway: Any, path: str, logprobs: bool) -> None:
    is_chat = "chat" in path
    asked = {"messages": [{"role": "user", "content": "hi"}]} if is_chat else {"prompt": "hi"}
    asked |= {"n": 2, "stream_options": {"include_usage": True}, "return_token_ids": True}
    if logprobs:
        asked |= {"logprobs": True, "top_logprobs": 2} if is_chat else {"logprobs": 2}
    events = events_of((await gateway.post(path, **asked, stream=True)).content)[:-1]
    *chunks, last = [json.loads(event.removeprefix("data: ")) for event in events]
    del asked["stream_options"]
    whole = (await gateway.post(path, **asked)).json()
    assert (last["choices"], last["usage"]) == ([], whole["usage"])
    for choice in whole["choices"]:
        parts = [part for chunk in chunks for part in chunk["choices"] if part["index"] == choice["index"]]
        text = [part["delta"].get("content", "") if is_chat else part["text"] for part in parts]
        assert "".join(text) == (choice["message"]["content"] if is_chat else choice["text"])
        assert [each for part in parts for each in part.get("token_ids", [])] == choice["token_ids"]
        assert (parts[-1]["finish_reason"], parts[-1]["stop_reason"]) == ("stop", choice["stop_reason"])
        if logprobs:
            key = "content" if is_chat else "token_logprobs"
            joined = [each for part in parts if part["logprobs"] for each in part["logprobs"][key]]
            assert joined == choice["logprobs"][key]
