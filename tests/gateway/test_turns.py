"""No step of a request keeps the event loop for long: what grows with the request is split, or done on other threads.

Work is counted in turns of the loop, not in seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from collections.abc import Callable, Coroutine
from copy import copy
from itertools import count
from typing import Any

import fastapi.applications
import h11
import pytest
from uvicorn.protocols.http.h11_impl import RequestResponseCycle

from starspec.config import GatewayConfig
from starspec.errors import ContextTooLong, RequestError
from starspec.gateway import app as gateway_app
from starspec.gateway import prompts, recent, stream, token_text, translate
from starspec.gateway.background import STEPS
from starspec.gateway.dashboard.feed import StarFeed
from starspec.gateway.generation import Generation
from starspec.gateway.generation_request import GenerationRequest, ReplyOptions
from starspec.gateway.health import HealthRoutes
from starspec.gateway.http_protocol import MAX_HEAD_BYTES, PIECE_BYTES
from starspec.gateway.prompts import PromptCodec
from starspec.gateway.recent import RECENT_S, Recent
from starspec.gateway.request_body import MAX_BACKSLASHES, parse_body
from starspec.gateway.router import Router
from starspec.gateway.server import Connections, GatewayServer
from starspec.ids import RequestId
from starspec.sampling.spec import SamplingSpec
from starspec.wire.messages import EngineOutput, RequestSpec

EOS = 257
SPEC = RequestSpec(prompt_token_ids=[1, 2, 3], sampling=SamplingSpec())
MANY = 8 * STEPS  # answers
REQUEST = GenerationRequest(specs=(SPEC,) * MANY, num_prompts=1, prompt_param="prompt", options=ReplyOptions())
CHUNK = b"1\r\na\r\n"  # of a body, with one byte
CHUNKED = (
    b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n"
)


async def busiest_turn(count: Callable[[], int], work: Coroutine[Any, Any, Any]) -> int:
    """By how much a count grows in one turn of the event loop, at most, until `work` is done."""
    most, last = 0, count()
    working = asyncio.create_task(work)
    while not working.done():
        await asyncio.sleep(0)
        now = count()
        most, last = max(most, now - last), now
    working.result()
    return most


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 (turns of the loop are what is counted)
            await asyncio.sleep(0)


async def ready(router: Router) -> None:
    await until(lambda: router.is_ready)


@pytest.fixture
def target(make_target: Callable[[str], Any]) -> Any:
    made = make_target("t0")
    made.script = None
    return made


async def test_many_answers_of_one_request_are_submitted_and_aborted_a_few_at_a_time(target: Any) -> None:
    generation_done = asyncio.Event()

    async def generate(router: Router) -> None:
        async with Generation(router, REQUEST, "r"):
            await generation_done.wait()

    async with Router([target]) as router:
        await ready(router)
        generating = asyncio.create_task(generate(router))
        submitting = target.until(lambda: len(target.submitted) == MANY)
        assert 0 < await busiest_turn(lambda: len(target.submitted), submitting) <= STEPS
        generation_done.set()
        assert 0 < await busiest_turn(lambda: len(target.aborted), asyncio.wait_for(generating, 20)) <= STEPS
        assert len(target.aborted) == MANY


async def test_a_request_that_is_cancelled_while_it_is_submitted_or_aborted_leaves_nothing_open(target: Any) -> None:
    async with Router([target]) as router:
        await ready(router)
        for num_turns in range(4, 24, 4):
            entering = asyncio.create_task(Generation(router, REQUEST, f"r{num_turns}").__aenter__())
            await target.until(lambda: len(target.open) >= STEPS)
            for _ in range(num_turns % 5):
                entering.cancel()  # the second time while it aborts
                await asyncio.sleep(0)
            entering.cancel()
            await asyncio.gather(entering, return_exceptions=True)
            assert not target.open
            assert not router.targets[0].num_open


async def test_a_flood_of_outputs_is_handled_a_few_at_a_time(target: Any) -> None:
    heard: list[Any] = []
    async with Router([target]) as router:
        await ready(router)
        router.targets[0].submit(RequestId("r"), SPEC, heard.append)
        for _ in range(MANY):
            target._outbox.put_nowait(EngineOutput(RequestId("r"), [1], "a"))
        assert 0 < await busiest_turn(lambda: len(heard), until(lambda: len(heard) == MANY)) <= STEPS


@pytest.mark.parametrize("is_silent", [False, True])
async def test_the_requests_of_a_lost_target_go_to_another_a_few_at_a_time(
    make_target: Callable[[str], Any], is_silent: bool
) -> None:
    lost, heir = make_target("lost"), make_target("heir")
    lost.script = heir.script = None
    heir.lose()
    async with Router([lost, heir]) as router, contextlib.AsyncExitStack() as stack:
        await ready(router)
        one = GenerationRequest(specs=(SPEC,), num_prompts=1, prompt_param="prompt", options=ReplyOptions())
        for number in range(MANY):
            await stack.enter_async_context(Generation(router, one, f"r{number}"))
        heir.restore()
        await until(lambda: all(each.is_live for each in router.targets))

        async def lose() -> None:
            if is_silent:
                lost.is_answering = False
                router.relieve()
            else:
                lost.lose()
            await heir.until(lambda: len(heir.submitted) == MANY)

        assert 0 < await busiest_turn(lambda: len(heir.submitted), lose()) <= STEPS


async def test_one_answer_with_many_parts_lets_others_have_their_turn(target: Any) -> None:
    got: list[Any] = []

    async def read(generation: Generation) -> None:
        while not generation.is_finished:
            got.append(await generation.next())

    async with Router([target]) as router:
        await ready(router)
        one = GenerationRequest(specs=(SPEC,), num_prompts=1, prompt_param="prompt", options=ReplyOptions())
        async with Generation(router, one, "r") as generation:
            (request,) = router.targets[0]._open.values()
            for _ in range(MANY):
                request.sink(EngineOutput(RequestId("r-0"), [1], "a"))
            request.sink(EngineOutput(RequestId("r-0"), [1], "a", finish_reason="stop"))
            assert 0 < await busiest_turn(lambda: len(got), read(generation)) <= STEPS


@pytest.mark.parametrize("is_early", [False, True], ids=["first request", "sent while another is answered"])
async def test_a_body_in_chunks_of_one_byte_is_parsed_a_piece_at_a_time(
    gateway: Any, monkeypatch: pytest.MonkeyPatch, is_early: bool
) -> None:
    events = [0]
    next_event = h11.Connection.next_event

    def counted(connection: Any) -> Any:
        events[0] += connection.their_role is h11.CLIENT
        return next_event(connection)

    monkeypatch.setattr(h11.Connection, "next_event", counted)
    _, _, port = gateway.url.rpartition(":")
    reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
    before = b"GET /ping HTTP/1.1\r\nhost: a\r\n\r\n" if is_early else b""
    num_chunks = 8000  # fits into what a connection keeps for later
    writer.write(before + CHUNKED + b"\r\n" + CHUNK * num_chunks + b"0\r\n\r\n")

    async def answered() -> None:
        await reader.readuntil(b"not valid JSON")

    most = await busiest_turn(lambda: events[0], answered())
    writer.close()
    assert events[0] > num_chunks
    assert most <= 2 * (PIECE_BYTES // len(CHUNK) + 3)  # a turn may have a piece that was read and one that was kept


async def test_requests_sent_at_once_on_one_connection_wait_for_those_of_others(
    gateway: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[tuple[str, Any]] = []
    run_asgi = RequestResponseCycle.run_asgi

    async def noted(cycle: Any, app: Any) -> None:
        served.append((cycle.scope["path"], cycle.scope["client"]))
        await run_asgi(cycle, app)

    monkeypatch.setattr(RequestResponseCycle, "run_asgi", noted)
    _, _, port = gateway.url.rpartition(":")
    get, num_clients, num_each = b"GET /version HTTP/1.1\r\nhost: a\r\n\r\n", 20, 10
    writers = [(await asyncio.open_connection("127.0.0.1", int(port)))[1] for _ in range(num_clients + 1)]
    honest = writers.pop()
    for writer in writers:
        writer.write(get * num_each)
    await until(lambda: len(served) > 2 * num_clients)
    before = len(served)
    honest.write(get.replace(b"version", b"ping"))
    await until(lambda: any(path == "/ping" for path, _ in served))
    num_before_it = [path for path, _ in served[before:]].index("/ping")
    assert num_before_it < num_clients / 2, "it does not even wait for one request of each"
    await until(lambda: len(served) == num_clients * num_each + 1)
    clients = [client for path, client in served if path == "/version"]
    for start in range(num_clients, len(clients), num_clients):
        assert len(set(clients[start : start + num_clients])) == num_clients, "nobody is served twice before others"
    for writer in (honest, *writers):
        writer.close()


async def test_a_connection_that_ends_before_its_turn_leaves_the_turns_of_others(gateway: Any) -> None:
    _, _, port = gateway.url.rpartition(":")
    get = b"GET /version HTTP/1.1\r\nhost: a\r\n\r\n"
    clients = [await asyncio.open_connection("127.0.0.1", int(port)) for _ in range(6)]
    for _, writer in clients:
        writer.write(get * 20)
    await clients[0][0].readline()
    for _, writer in clients[::2]:
        writer.transport.abort()
    for reader, writer in clients[1::2]:
        for _ in range(20):
            await asyncio.wait_for(reader.readuntil(b'{"version":'), 20)
        writer.close()


async def test_metrics_and_health_are_rendered_once_however_many_ask(
    start_gateway: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recent, "RECENT_S", 3600.0)
    rendered: list[str] = []
    render, report = gateway_app.generate_latest, HealthRoutes._report
    monkeypatch.setattr(gateway_app, "generate_latest", lambda of: rendered.append("metrics") or render(of))
    monkeypatch.setattr(HealthRoutes, "_report", lambda of: rendered.append("health") or report(of))
    gateway = await start_gateway()
    rendered.clear()
    for path in ("/metrics", "/health") * 5:
        assert (await gateway.http.get(path)).status_code == 200
    assert rendered == ["metrics"]
    gateway.target.is_answering = False  # this is told at once
    assert (await gateway.http.get("/health")).json()["status"] == "unavailable"
    assert rendered == ["metrics", "health"]


async def test_very_many_dashboards_get_a_frame_a_few_at_a_time(target: Any) -> None:
    feed = StarFeed(Router([target]), None, ["toy"], shows_text=False)
    num_told = 0

    async def watch() -> None:
        nonlocal num_told
        await feed.next_frame()
        num_told += 1

    watching = asyncio.gather(*(watch() for _ in range(MANY)))
    leaving = asyncio.create_task(watch())
    await asyncio.sleep(0)
    leaving.cancel()
    feed.look()

    async def all_are_told() -> None:
        await watching

    assert await busiest_turn(lambda: num_told, all_are_told()) == STEPS
    assert num_told == MANY


def test_what_is_recent_is_made_anew_after_a_while_or_when_it_must_tell_of_a_change() -> None:
    now, made = 0.0, count()
    kept = Recent(lambda: b"%d" % next(made), lambda: now)
    assert [kept.get(), kept.get()] == [b"0", b"0"]
    now = RECENT_S
    assert [kept.get(), kept.get()] == [b"1", b"1"]
    assert [kept.get(1), kept.get(1), kept.get(2)] == [b"2", b"2", b"3"]


async def test_a_long_head_is_refused(gateway: Any) -> None:
    _, _, port = gateway.url.rpartition(":")
    for num_bytes, status in ((MAX_HEAD_BYTES // 2, b"200"), (2 * MAX_HEAD_BYTES, b"400")):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
        writer.write(b"GET /ping HTTP/1.1\r\nhost: a\r\n" + b"a: b\r\n" * (num_bytes // 6) + b"\r\n")
        assert (await reader.readline()).split()[1] == status
        writer.close()


class Spy:
    """A tokenizer that notes the longest text that it was given."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.longest = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def __len__(self) -> int:
        return len(self._tokenizer)

    def encode(self, text: str, **options: Any) -> Any:
        self.longest = max(self.longest, len(text))
        return self._tokenizer.encode(text, **options)


async def test_a_text_of_many_tokens_is_refused_after_a_piece_of_it(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompts, "PIECE", 16)
    spy = Spy(copy(tokenizer))
    codec = PromptCodec(spy, (EOS,))
    context = 100  # tokens; the toy tokenizer makes one of each character, and 400 characters may fit
    assert await codec.encode("1" * 99, "prompt", context) == tokenizer.encode("1" * 99)
    spy.longest = 0
    with pytest.raises(ContextTooLong, match=r"prompt: the first 208 of 400 characters have about 208 tokens"):
        await codec.encode("1" * 400, "prompt", context)
    assert spy.longest == 16
    codec.close()


async def test_a_long_text_is_tokenized_without_offsets_and_masks(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompts, "PIECE", 16)
    codec = PromptCodec(tokenizer, (EOS,))
    text = "wörld </s> 1 " * 9
    expected = [tokenizer.encode(text, add_special_tokens=each) for each in (True, False)]
    encode = tokenizer.encode

    def short_only(text: str, **options: Any) -> list[int]:
        assert len(text) <= 16, "it would keep Python's lock for long"
        return list(encode(text, **options))

    monkeypatch.setattr(tokenizer, "encode", short_only)
    found = [await codec.encode(text, "prompt", 1000, add_special_tokens=each) for each in (True, False)]
    assert found == expected
    codec.close()


async def test_many_tokens_are_decoded_as_a_batch_of_one(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts, "FEW_TOKENS", 2)
    codec = PromptCodec(tokenizer, (EOS,))
    ids = tokenizer.encode("</s>wörld € 1 </s>", add_special_tokens=False)
    text = tokenizer.decode(ids, skip_special_tokens=False)
    monkeypatch.setattr(type(tokenizer), "decode", None)  # it would keep Python's lock
    assert await codec.decode(ids) == text
    codec.close()


def test_the_stops_of_the_parser_in_strings_are_bounded() -> None:
    text = b'{"prompt": "%s"}'
    assert parse_body(text % (b"\\n" * MAX_BACKSLASHES))["prompt"] == "\n" * MAX_BACKSLASHES
    with pytest.raises(RequestError, match=f"{MAX_BACKSLASHES + 1} backslashes"):
        parse_body(text % (b"\\n" * (MAX_BACKSLASHES + 1)))


@pytest.mark.parametrize(
    ("path", "body", "steps"),
    [
        ("/v1/completions", {"prompt": "a"}, {translate.Translator: "_params"}),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "a"}]},
            {translate.Translator: "_chat_params", translate.ToolUse: "of"},
        ),
        ("/v1/responses", {"input": "a"}, {translate: "as_chat", translate.ToolUse: "of"}),
    ],
)
async def test_what_grows_with_a_body_is_translated_on_another_thread(
    gateway: Any, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any], steps: dict[Any, str]
) -> None:
    threads = []

    def noting(work: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any) -> Any:
            threads.append(threading.current_thread().name)
            return work(*args)

        return noted

    for place, name in steps.items():
        made = noting(getattr(place, name))
        monkeypatch.setattr(place, name, staticmethod(made) if name == "of" else made)
    assert (await gateway.post(path, **body)).status_code == 200
    assert len(threads) == len(steps)
    assert all(name.startswith("tokenizer") for name in threads)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_a_long_reply_is_written_part_by_part_on_another_thread(
    gateway: Any, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    chat = {"messages": [{"role": "user", "content": "a"}], "logprobs": True, "top_logprobs": 2}
    body = chat if path == "/v1/chat/completions" else {"prompt": "a", "logprobs": 2}
    short = (await gateway.post(path, seed=1, **body)).json()
    threads = []
    written = token_text._written

    def noted(part: Any) -> Any:
        threads.append(threading.current_thread().name)
        return written(part)

    monkeypatch.setattr(token_text, "_written", noted)
    monkeypatch.setattr(stream, "FEW_ENTRIES", 2)
    long = (await gateway.post(path, seed=1, **body)).json()
    assert long["choices"] == short["choices"]
    assert len(threads) > 2
    assert all(name.startswith("tokenizer") for name in threads)


async def test_the_description_of_the_api_is_made_on_another_thread(
    gateway: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, describe = list[threading.Thread](), fastapi.applications.get_openapi

    def noting(**given: Any) -> dict[str, Any]:
        threads.append(threading.current_thread())
        return describe(**given)

    monkeypatch.setattr(fastapi.applications, "get_openapi", noting)
    for _ in range(2):
        assert (await gateway.http.get("/openapi.json")).status_code == 200
    assert len(threads) == 1
    assert threads[0] is not threading.current_thread()


def test_the_cycle_collector_does_not_look_through_what_never_dies(
    model_folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen = []

    def noted(serving: Any) -> None:
        serving.close()
        frozen.append(gc.get_freeze_count())

    server = GatewayServer(GatewayConfig(port=0, model=str(model_folder)), lambda: Connections([]))
    monkeypatch.setattr(asyncio, "run", noted)
    try:
        server.run()
    finally:
        gc.unfreeze()
        server.close()
    assert frozen[0] > 1000
