"""Everything of a request is bounded before it costs anything, and its errors help and are short."""

from __future__ import annotations

import asyncio
import json
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from copy import copy
from itertools import count
from typing import Any

import pytest

from starspec.config import nearest
from starspec.errors import ContextTooLong, RequestError
from starspec.gateway import chat_template, request_body
from starspec.gateway.http_errors import MAX_MESSAGE
from starspec.gateway.prompts import NUM_WORKERS, PromptCodec
from starspec.gateway.request_body import MAX_CONTAINERS, MAX_KEYS, MAX_STRINGS, MAX_VALUES, parse_body, read_body
from starspec.gateway.responses.schema import ResponsesRequest
from starspec.gateway.retry_after import RetryAfter
from starspec.gateway.schema import (
    MAX_MESSAGES,
    MAX_PARTS,
    MAX_STOP_TOKEN_IDS,
    ChatCompletionRequest,
    ChatPrompt,
    CompletionRequest,
)
from starspec.gateway.served_model import GenerationDefaults
from starspec.gateway.translate import MAX_TOKENS_SENT, Translator
from starspec.gateway.unsupported import refuse_unsupported
from starspec.ids import RequestId
from starspec.policy.retry_after import QueueTime
from starspec.quoting import MAX_QUOTED, quoted
from starspec.sampling.spec import MAX_LOGIT_BIAS
from starspec.wire.messages import Rejected

EOS = 257
CONTEXT, LONGEST_TOKEN = 64, 4  # of the toy target, and characters of `</s>`
USER = {"role": "user", "content": "hi"}
JSON = {"content-type": "application/json"}


@pytest.fixture
def make_codec(tokenizer: Any) -> Iterator[Callable[..., PromptCodec]]:
    """Makes codecs of the toy tokenizer with another chat template."""
    made = []

    def make(template: str | None = None, clock: Callable[[], float] | None = None) -> PromptCodec:
        mine = copy(tokenizer)
        mine.chat_template = template
        made.append(PromptCodec(mine, (EOS,)) if clock is None else PromptCodec(mine, (EOS,), clock))
        return made[-1]

    yield make
    for each in made:
        each.close()


def prompt(**more: Any) -> ChatPrompt:
    return ChatPrompt.model_validate({"messages": [USER], **more})


async def test_max_tokens_beyond_the_context_are_refused_in_vllms_words(gateway: Any) -> None:
    reply = await gateway.post("/v1/completions", prompt="hello", max_tokens=60)
    assert reply.json()["error"]["message"] == (
        "max_tokens: this model's maximum context length is 64 tokens. However, you requested 65 tokens (5 in the "
        "prompt, 60 in the completion). Please reduce the length of the prompt or max_tokens."
    )
    assert (await gateway.post("/v1/completions", prompt="hello", max_tokens=59)).status_code == 200


async def test_the_default_of_max_tokens_shrinks_to_what_fits(gateway: Any) -> None:
    reply = await gateway.post("/v1/completions", prompt=[[1] * 60, [1] * 5])
    assert reply.status_code == 200
    assert [spec.max_tokens for spec in gateway.target.submitted.values()] == [4, 16]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("temprature", "did you mean 'temperature'?"),
        ("max_token", "did you mean 'max_tokens'?"),
        ("topP", "did you mean 'top_p'?"),
        ("respones_format", "did you mean 'response_format'?"),
        ("zzzzzz", "leave it out"),
    ],
)
async def test_an_unknown_parameter_names_the_nearest_one(gateway: Any, name: str, hint: str) -> None:
    for path, body in (("/v1/completions", {"prompt": "hi"}), ("/v1/chat/completions", {"messages": [USER]})):
        reply = await gateway.post(path, **body, **{name: 1})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, name)
        assert hint in reply.json()["error"]["message"]
    assert not gateway.target.submitted


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("messages", "messages: for /v1/chat/completions: ask there"),
        ("max_completion_tokens", "max_completion_tokens is for chats: ask there"),
    ],
)
async def test_a_parameter_of_chats_only_is_not_said_to_be_one_of_completions(
    gateway: Any, name: str, told: str
) -> None:
    reply = await gateway.post("/v1/completions", prompt="hi", **{name: 1})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, name)
    assert reply.json()["error"]["message"].startswith(told)


async def test_an_unknown_model_names_the_one_there_is_and_an_omitted_one_takes_it(start_gateway: Any) -> None:
    gateway = await start_gateway(served_model_name="our-model")
    reply = await gateway.post("/v1/completions", model="gpt-4", prompt="hi")
    assert reply.status_code == 404
    assert reply.json()["error"]["message"] == "the model 'gpt-4' does not exist; this server has 'our-model'"
    reply = await gateway.post("/v1/completions", model="our-modell", prompt="hi")
    assert reply.json()["error"]["message"] == (
        "the model 'our-modell' does not exist; this server has 'our-model'; did you mean 'our-model'?"
    )
    assert (await gateway.post("/v1/completions", prompt="hi")).json()["model"] == "our-model"


@pytest.mark.parametrize(
    ("name", "value", "advice"),
    [
        ("functions", [{"name": "f"}], "chats take tools and tool_choice"),
        ("guided_json", {}, "use structured_outputs in its place"),
        ("echo", True, "ask there"),
        ("best_of", 4, "ask for as many answers with n and logprobs"),
        ("suffix", "end", "write the text around the gap into the prompt"),
        ("typical_p", 0.5, "leave it out"),
    ],
)
async def test_a_refusal_says_what_to_do_instead(gateway: Any, name: str, value: Any, advice: str) -> None:
    reply = await gateway.post("/v1/chat/completions", messages=[USER], **{name: value})
    assert f"{name} is not supported" in reply.json()["error"]["message"]
    assert advice in reply.json()["error"]["message"]


LONG = "x" * 50_000


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "hi", "model": LONG}),
        ("/v1/completions", {"prompt": "hi", LONG: 1}),
        ("/v1/completions", {"prompt": "hi", "temperature": LONG}),
        ("/v1/completions", {"prompt": "hi", "stop": LONG}),
        ("/v1/completions", {"prompt": "hi", "logit_bias": {LONG: 1}}),
        ("/v1/completions", {"prompt": "hi", "speculative": {LONG: 1}}),
        ("/v1/completions", {"prompt": "hi", "speculative": LONG}),
        ("/v1/completions", {"prompt": "hi", "speculative": {"length": {"policy": LONG}}}),
        ("/v1/completions", {"prompt": "hi", "structured_outputs": {LONG: 1}}),
        ("/v1/completions", {"prompt": "hi", "structured_outputs": {"json": {"type": LONG}}}),
        ("/v1/completions", {"prompt": "hi", "response_format": {"type": LONG}}),
        ("/v1/completions", {"prompt": "hi", "response_format": {"type": "text", LONG: 1}}),
        ("/v1/completions", {"prompt": "hi", "stream_options": {LONG: 1}}),
        ("/v1/completions", {"prompt": LONG}),
        ("/v1/completions", {"prompt": {LONG: LONG}}),
        ("/v1/chat/completions", {"messages": [{"role": LONG, "content": "hi"}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": LONG}]}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi", LONG: 1, "tool_calls": [LONG]}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG}]}),
        ("/v1/chat/completions", {"messages": [USER], "chat_template_kwargs": {LONG: 1, "tokenize": LONG}}),
        ("/v1/chat/completions", {"messages": [USER], "tools": LONG}),
        ("/tokenize", {"prompt": LONG}),
        ("/tokenize", {"messages": [USER], LONG: LONG}),
        ("/detokenize", {"tokens": [LONG]}),
        ("/detokenize", {"tokens": [1], LONG: LONG}),
        ("/v1/" + LONG, {}),
    ],
)
async def test_an_error_repeats_little_of_what_was_sent(gateway: Any, path: str, body: Any) -> None:
    reply = await gateway.post(path, **body)
    assert reply.status_code in (400, 404), reply.text[:500]
    error = reply.json()["error"]
    assert error["message"].count("x") <= MAX_QUOTED + 10  # our own words have some
    assert len(error["message"]) <= MAX_MESSAGE
    assert len(error["param"] or "") <= MAX_QUOTED


@pytest.mark.parametrize("digits", ["9" * 4000, "-" + "9" * 4000])
@pytest.mark.parametrize("name", ["n", "min_tokens", "max_tokens", "seed", "temperature", "top_k", "logprobs"])
async def test_an_error_repeats_few_digits(gateway: Any, name: str, digits: str) -> None:
    reply = await gateway.http.post("/v1/completions", content=f'{{"prompt": "hi", "{name}": {digits}}}', headers=JSON)
    assert len(reply.text) < 1000


def test_a_word_of_megabytes_is_compared_by_its_beginning() -> None:
    word = "x" * 2**20
    tracemalloc.start()
    assert nearest(word, ["length"]) == "; known: length"
    with pytest.raises(RequestError, match="unknown parameter 'xxx"):
        refuse_unsupported({word: 1}, ["length"])
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 2**20


@pytest.mark.parametrize("value", [[1] * 2**18, {str(each): "é" for each in range(2**15)}, [["x" * 2**20] * 9] * 9])
def test_of_a_large_value_only_the_beginning_is_written(value: Any) -> None:
    """To write all of it would hold Python's lock."""
    tracemalloc.start()
    written = quoted(value)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert written == ascii(value)[: MAX_QUOTED - 3] + "..."
    assert most < 2**18


@pytest.mark.parametrize(
    ("kind", "body", "param"),
    [
        (CompletionRequest, {"prompt": "a", "logit_bias": dict.fromkeys(map(str, range(2**15)))}, "logit_bias"),
        (ResponsesRequest, {"input": "a", "metadata": dict.fromkeys(map(str, range(2**15)))}, "metadata"),
        (ChatCompletionRequest, {"messages": [USER | dict.fromkeys(map(str, range(2**15)))]}, "messages[0]"),
    ],
)
def test_items_of_an_object_are_counted_before_they_are_looked_at(kind: Any, body: Any, param: str) -> None:
    """To say what is wrong with each would hold Python's lock for a quarter of a second."""
    data = json.dumps(body).encode()
    with pytest.raises(RequestError) as raised:
        read_body(data, kind)
    assert raised.value.param == param
    assert "32768" in str(raised.value)


def test_a_quotation_is_ascii_and_has_at_most_200_characters() -> None:
    assert quoted("é") == "'\\xe9'"
    assert quoted({"a": [1, None, "b"]}) == "{'a': [1, None, 'b']}"
    for value in (LONG, [LONG], {LONG: 1}, 10**300, "é" * 500):
        assert len(quoted(value)) <= MAX_QUOTED


@pytest.mark.parametrize(
    ("kind", "body", "param"),
    [
        (CompletionRequest, {"prompt": "a", "stop_token_ids": [1] * (MAX_STOP_TOKEN_IDS + 1)}, "stop_token_ids"),
        (CompletionRequest, {"prompt": "a", "stop": ["a"] * 17}, "stop"),
        (
            CompletionRequest,
            {"prompt": "a", "logit_bias": {str(each): 1 for each in range(MAX_LOGIT_BIAS + 1)}},
            "logit_bias",
        ),
        (CompletionRequest, {"prompt": ["a"] * 65}, "prompt"),
        (CompletionRequest, {"prompt": [[1]] * 65}, "prompt"),
        (CompletionRequest, {"prompt": "a"} | {str(each): 0 for each in range(MAX_KEYS)}, None),
        (CompletionRequest, {"prompt": [1] * (MAX_VALUES + 1)}, None),
        (CompletionRequest, {"prompt": [[]] * MAX_CONTAINERS}, None),
        (CompletionRequest, {"prompt": "a", "chat_template_kwargs": [""] * MAX_STRINGS}, None),
        (ChatCompletionRequest, {"messages": [USER] * (MAX_MESSAGES + 1)}, "messages"),
        (
            ChatCompletionRequest,
            {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * (MAX_PARTS + 1)}]},
            "messages[0].content",
        ),
    ],
)
def test_what_a_request_holds_is_counted(kind: Any, body: Any, param: str | None) -> None:
    with pytest.raises(RequestError) as refused:
        read_body(json.dumps(body).encode(), kind)
    assert refused.value.param == param


@pytest.mark.parametrize(
    "text",
    [
        "[" + "1," * 20_000 + "1]",
        '{"a": [' + '{"b": [1, -2.5e3, null, true, "\\u00e9\\ud800"]},' * 4_000 + "NaN]}",
        "[" + '"x",' * 20_000 + "]",
        "[1," * 9_000 + "2",
        "[" + "1," * 9_000 + "[" * 10_000,
        "[" + "1," * 9_000 + "1" * 5_000 + "]",
    ],
)
def test_a_body_of_many_values_is_parsed_like_any_other(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slow parser, which lets the event loop run, and the fast one agree."""

    def outcome() -> str:
        try:
            return repr(parse_body(text.encode()))
        except RequestError as error:
            return str(error)

    patient = outcome()
    monkeypatch.setattr(request_body, "FEW_VALUES", MAX_VALUES)
    monkeypatch.setattr(request_body, "FEW_NUMBER_BYTES", len(text))
    assert outcome() == patient


@pytest.mark.parametrize("text", ["[" + "1," * 20_000 + "1]", "[" + ("9" * 4_000 + ",") * 900 + "1]"])
def test_many_numbers_and_long_ones_are_not_parsed_in_c(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """C would keep Python's lock for a tenth of a second while it reads 900 integers of 4,000 digits."""
    loads, decoders = json.loads, []

    def noting_loads(text: str, *, cls: type[json.JSONDecoder]) -> Any:
        decoders.append(cls)
        return loads(text, cls=cls)

    monkeypatch.setattr(request_body.json, "loads", noting_loads)
    assert len(parse_body(text.encode())) == text.count(",") + 1
    assert json.JSONDecoder not in decoders


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"])
def test_a_body_that_is_not_utf_8_is_refused_before_anything_of_it_is_counted(encoding: str) -> None:
    """In UTF-16, `\\"` is no escaped quote to who counts bytes, so what follows would seem to be inside a string."""
    for text in ('{"a\\"": 1}', '{"a\\"": 1, "prompt": [' + "1, " * MAX_VALUES + "1]}", "1"):
        with pytest.raises(RequestError, match="the body is not valid JSON: it must be UTF-8") as refused:
            parse_body(text.encode(encoding))
        assert refused.value.status == 400


@pytest.mark.parametrize("bytes_", [b'{"a": "\xff"}', b'{"a": "\xed\xa0\x80"}', b'{"a": "\xc3'])
def test_bytes_that_are_no_text_are_refused(bytes_: bytes) -> None:
    with pytest.raises(RequestError, match="it must be UTF-8"):
        parse_body(bytes_)


def test_a_byte_order_mark_of_utf_8_is_ignored() -> None:
    assert parse_body('{"prompt": "w\u00f6rld"}'.encode("utf-8-sig")) == {"prompt": "w\u00f6rld"}
    with pytest.raises(RequestError, match="is not valid JSON"):
        parse_body(b"\xef\xbb\xbf" * 2 + b"{}")


@pytest.mark.parametrize("char", [",", "[", '"', "\\", '\\"', "{:"])
def test_what_a_text_contains_is_no_value(char: str) -> None:
    text = char * 300_000
    assert parse_body(json.dumps({"prompt": text}).encode()) == {"prompt": text}


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize"])
async def test_a_large_body_is_read_and_tokenized_off_the_event_loop(
    gateway: Any, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []
    read = request_body.read_body

    def watched(body: bytes, kind: Any) -> Any:
        threads.append(threading.current_thread().name)
        return read(body, kind)

    monkeypatch.setattr(request_body, "read_body", watched)
    reply = await gateway.post(path, prompt="1" * 100_000, messages=[USER])
    assert reply.status_code == 400
    assert [each.startswith("tokenizer") for each in threads] == [True]


async def test_characters_are_bounded_by_the_context_before_they_are_tokenized(
    gateway: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*args: Any) -> None:
        raise AssertionError("tokenized")

    monkeypatch.setattr(PromptCodec, "_encode", forbidden)
    text = "1" * (CONTEXT * LONGEST_TOKEN + 1)
    for path, body, param in (
        ("/v1/completions", {"prompt": text}, "prompt"),
        ("/v1/completions", {"prompt": ["a" * 257, "b"]}, "prompt"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": text}]}, "messages"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "1" * 30}] * 9}, "messages"),
        ("/tokenize", {"prompt": text, "return_token_strs": True}, "prompt"),
    ):
        reply = await gateway.post(path, **body)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
        assert "at most 256 can fit into the context of 64 tokens" in reply.json()["error"]["message"]


async def test_prompt_tokens_of_all_answers_together_are_bounded(make_codec: Any) -> None:
    translator = Translator(make_codec(), GenerationDefaults())
    body = CompletionRequest(prompt=[[1] * (MAX_TOKENS_SENT // 8)] * 2, n=8)
    with pytest.raises(RequestError, match="ask for fewer answers") as refused:
        await translator.completion(body, MAX_TOKENS_SENT)
    assert refused.value.param == "prompt"


async def test_several_prompts_are_tokenized_at_once(make_codec: Any) -> None:
    codec = make_codec()
    together = threading.Barrier(NUM_WORKERS)
    assert NUM_WORKERS > 1
    await asyncio.wait_for(asyncio.gather(*(codec.run(together.wait, 20) for _ in range(NUM_WORKERS))), 20)


async def test_work_for_a_client_that_left_is_not_begun(make_codec: Any) -> None:
    codec = make_codec()
    release, begun = threading.Event(), []
    busy = [asyncio.create_task(codec.run(release.wait, 20)) for _ in range(NUM_WORKERS)]
    await asyncio.sleep(0)
    left = asyncio.create_task(codec.run(begun.append, "left"))
    await asyncio.sleep(0)
    left.cancel()
    stays = asyncio.create_task(codec.run(begun.append, "stays"))
    await asyncio.gather(left, return_exceptions=True)
    release.set()
    await asyncio.gather(*busy, stays)
    assert begun == ["stays"]


ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize("template", [ENDLESS, ENDLESS.replace("{% endfor %}", "x{% endfor %}", 1)])
async def test_a_template_that_does_not_end_is_ended(make_codec: Any, template: str) -> None:
    codec = make_codec(template, clock=count().__next__)  # each look at the clock takes a second
    for _ in range(NUM_WORKERS + 1):
        with pytest.raises(RequestError, match=f"has not ended after {chat_template.LIMIT_S:.0f} s") as refused:
            await codec.encode_chat(prompt(), CONTEXT)
        assert (refused.value.status, refused.value.param) == (400, "messages")


async def test_the_time_of_a_template_is_its_own(make_codec: Any, tokenizer: Any) -> None:
    now = 0.0
    codec = make_codec("{% for a in range(200) %}{% endfor %}{{ messages[0]['content'] }}", clock=lambda: now)
    for _ in range(3):
        assert await codec.encode_chat(prompt(), CONTEXT) == tokenizer.encode("hi")
        now += chat_template.LIMIT_S * 2


@pytest.mark.parametrize(
    "template",
    [
        "{{ 1 // 0 }}",
        "{{ 10.0 ** 400 }}",
        "{{ messages[0].content + 1 }}",
        "{{ messages[7].content.x }}",
        "{{ raise_exception('no') }}",
        "{% for m in 5 %}{% endfor %}",
        "{{ none() }}",
        "{{ ''.join(5) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% if %}",
        "{{ messages.append(1) }}",
        "{{ '%d' % 'x' }}",
    ],
)
async def test_whatever_goes_wrong_in_a_template_is_a_400_with_a_sentence(make_codec: Any, template: str) -> None:
    codec = make_codec(template)
    with pytest.raises(RequestError) as refused:
        await codec.encode_chat(prompt(), CONTEXT)
    assert refused.value.status == 400
    assert refused.value.param in ("messages", "chat_template_kwargs")


async def test_what_a_template_says_of_the_messages_is_shortened(make_codec: Any) -> None:
    codec = make_codec("{{ raise_exception(messages[0]['content']) }}")
    with pytest.raises(RequestError) as refused:
        await codec.encode_chat(prompt(messages=[{"role": "user", "content": "x" * 5000}]), 10_000)
    assert str(refused.value).count("x") <= MAX_QUOTED


async def test_a_rendered_conversation_is_bounded_too(make_codec: Any) -> None:
    codec = make_codec("{{ messages[0]['content'] * 200 }}")
    with pytest.raises(ContextTooLong, match="400 characters"):
        await codec.encode_chat(prompt(), CONTEXT)


async def test_a_full_queue_says_how_long_it_is(gateway: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RetryAfter, "seconds", lambda self: 17.2)
    gateway.target.refusal = Rejected(RequestId(""), "the waiting line is full", None, 503, 1.0)
    for stream in (False, True):
        reply = await gateway.post("/v1/completions", prompt="hi", stream=stream)
        assert (reply.status_code, reply.headers["retry-after"]) == (503, "18")


async def test_every_answer_that_ends_counts_for_the_rate(gateway: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[RetryAfter] = []

    def finish(self: RetryAfter) -> None:
        ended.append(self)

    monkeypatch.setattr(RetryAfter, "finish", finish)
    for stream in (False, True):
        await gateway.post("/v1/completions", prompt=["a", "b"], n=2, stream=stream)
    assert len(ended) == 8


async def test_answers_in_work_are_counted_however_they_end(gateway: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    loads = []
    monkeypatch.setattr(QueueTime, "note_load", lambda self, *load: loads.append(load[:2]))
    for stream in (False, True):
        await gateway.post("/v1/completions", prompt="a", n=2, stream=stream)
        assert loads == [(2, 8), (1, 8), (0, 8), (0, 8)]
        loads.clear()
    gateway.target.refusal = Rejected(RequestId(""), "the waiting line is full", None, 503, 1.0)
    for stream in (False, True):
        await gateway.post("/v1/completions", prompt="a", n=2, stream=stream)
        assert (loads[0], loads[-1]) == ((2, 8), (0, 8))
        loads.clear()


async def test_time_spent_on_the_prompt_counts_as_the_requests_own(
    start_gateway: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = await start_gateway(request_timeout_s=0.2)

    async def slow(*args: Any, **options: Any) -> list[int]:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(PromptCodec, "encode", slow)
    reply = await gateway.post("/v1/completions", prompt="hi")
    assert reply.status_code == 504


async def test_ready_means_that_a_target_would_take_a_request(gateway: Any) -> None:
    for path in ("/health/ready", "/v1/models"):
        assert (await gateway.http.get(path)).status_code == 200
    gateway.target.is_stopping = True
    async with asyncio.timeout(20):
        while (await gateway.http.get("/health/ready")).status_code != 503:
            pass
    assert (await gateway.http.get("/v1/models")).status_code == 503
