"""Every error has one shape, and names what is wrong."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest
from pydantic import ValidationError
from structlog.testing import capture_logs

from starspec.errors import RequestError
from starspec.gateway import http_errors
from starspec.gateway.http_errors import http_error_of
from starspec.gateway.open_request import FAILED
from starspec.gateway.schema import CompletionRequest
from starspec.ids import RequestId
from starspec.log_limit import LogLimit
from starspec.wire.messages import Rejected

USER = {"role": "user", "content": "hi"}
SAID = {"role": "assistant", "content": "yes"}
FUNCTION = {"name": "f", "arguments": "{}"}
CONTEXT, MAX_ANSWERS = 64, 256  # of the toy target


def nested(depth: int) -> list[Any]:
    """A list in a list in a list."""
    inmost: list[Any] = []
    for _ in range(depth):
        inmost = [inmost]
    return inmost


def error_of(reply: Any) -> dict[str, Any]:
    """The error object, after a look at its shape."""
    body = reply.json()
    assert body.keys() == {"error"}
    error: dict[str, Any] = body["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["code"] == reply.status_code
    assert isinstance(error["message"], str)
    return error


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": "hi", "temperature": "hot"}, "temperature"),
        ({"prompt": "hi", "temperature": True}, "temperature"),
        ({"prompt": "hi", "temperature": -0.1}, "temperature"),
        ({"prompt": "hi", "top_p": 0}, "top_p"),
        ({"prompt": "hi", "top_k": -2}, "top_k"),
        ({"prompt": "hi", "top_k": 1.5}, "top_k"),
        ({"prompt": "hi", "min_p": 1.5}, "min_p"),
        ({"prompt": "hi", "repetition_penalty": 0}, "repetition_penalty"),
        ({"prompt": "hi", "presence_penalty": 3}, "presence_penalty"),
        ({"prompt": "hi", "frequency_penalty": -3}, "frequency_penalty"),
        ({"prompt": "hi", "n": 0}, "n"),
        ({"prompt": "hi", "n": 9}, "n"),
        ({"prompt": "hi", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "hi", "max_tokens": 10**30}, "max_tokens"),
        ({"prompt": "hi", "max_tokens": -1}, "max_tokens"),
        ({"prompt": "hi", "min_tokens": 99}, "min_tokens"),
        ({"prompt": "hi", "stop": [""]}, "stop"),
        ({"prompt": "hi", "stop": ["x"] * 17}, "stop"),
        ({"prompt": "hi", "stop": 7}, "stop"),
        ({"prompt": "hi", "stop_token_ids": [258]}, "stop_token_ids"),
        ({"prompt": "hi", "stop_token_ids": [-1]}, "stop_token_ids[0]"),
        ({"prompt": "hi", "bad_words": "x"}, "bad_words"),
        ({"prompt": "hi", "bad_words": [""]}, "bad_words"),
        ({"prompt": "hi", "bad_words": ["x" * 65]}, "bad_words"),
        ({"prompt": "hi", "logit_bias": {"x": 1}}, "logit_bias"),
        ({"prompt": "hi", "logit_bias": {"258": 1}}, "logit_bias"),
        ({"prompt": "hi", "logit_bias": {"1": 101}}, "logit_bias"),
        ({"prompt": "hi", "logprobs": 21}, "logprobs"),
        ({"prompt": "hi", "logprobs": True}, "logprobs"),
        ({"prompt": "hi", "seed": "x"}, "seed"),
        ({"prompt": "hi", "stream": "yes"}, "stream"),
        ({"prompt": "hi", "stop": "x" * 10_001}, "stop"),
        ({"prompt": "hi", "stream_options": {"include_usage": True}}, "stream_options"),
        ({"prompt": "hi", "speculative": "on"}, "speculative"),
        ({"prompt": "hi", "speculative": {"num_speculative_tokens": 65}}, "speculative.num_speculative_tokens"),
        ({"prompt": "hi", "speculative": {"num_speculative_tokens": True}}, "speculative.num_speculative_tokens"),
        ({"prompt": "hi", "speculative": {"relaxed": 0.2}}, "speculative.relaxed"),
        ({"prompt": "hi", "speculative": {"relaxed": {}}}, "speculative.relaxed.tau"),
        ({"prompt": "hi", "speculative": {"relaxed": {"tau": 1.01}}}, "speculative.relaxed.tau"),
        ({"prompt": "hi", "speculative": {"length": "dsde"}}, "speculative.length"),
        ({"prompt": "hi", "speculative": {"length": {"polcy": "dsde"}}}, "speculative.length"),
        ({"prompt": "hi", "speculative": {"length": {}}}, "speculative.length.policy"),
        ({"prompt": "hi", "speculative": {"length": {"policy": "godput"}}}, "speculative.length.policy"),
        ({"prompt": "hi", "speculative": {"length": {"policy": ["dsde"]}}}, "speculative.length.policy"),
        ({"prompt": "hi", "speculative": {"relaxed": {"tau": -0.1}}}, "speculative.relaxed.tau"),
        ({"prompt": "hi", "speculative": {"relaxed": {"tau": True}}}, "speculative.relaxed.tau"),
        ({"prompt": "hi", "speculative": {"relaxed": {"tau": "0.2"}}}, "speculative.relaxed.tau"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt[1]"),
        ({"prompt": [-1]}, "prompt[0]"),
        ({"prompt": [999]}, "prompt"),
        ({"prompt": 7}, "prompt"),
        ({"prompt": "\ud800"}, "prompt"),
        ({"prompt": ["a"] * 65}, "prompt"),
        ({"prompt": "x" * 64}, "prompt"),
        ({}, "prompt"),
        ({"prompt": "hi", "tools": [{"type": "function"}]}, "tools"),
        ({"prompt": "hi", "tool_choice": "required"}, "tool_choice"),
        ({"prompt": "hi", "suffix": "!"}, "suffix"),
        ({"prompt": "hi", "best_of": 2}, "best_of"),
        ({"prompt": "hi", "temprature": 0}, "temprature"),
        ({"prompt": "hi", "max_tokens": 63}, "max_tokens"),
        ({"prompt": ["hi", "hello"], "max_tokens": 60}, "max_tokens"),
    ],
)
async def test_a_bad_completion_parameter_is_a_400_that_names_it(gateway: Any, body: Any, param: str) -> None:
    reply = await gateway.http.post(
        "/v1/completions", content=json.dumps(body), headers={"content-type": "application/json"}
    )
    assert reply.status_code == 400, reply.text
    error = error_of(reply)
    assert error["param"] == param
    assert re.split(r"[.[]", param)[0] in error["message"]
    assert not gateway.target.submitted


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": [USER], "max_completions_tokens": 5}, "max_completions_tokens"),
        ({"messages": [USER], "max_completion_tokens": 64}, "max_completion_tokens"),
        ({"messages": [USER], "max_tokens": 64}, "max_tokens"),
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [USER, {"role": "user", "content": None}]}, "messages[1].content"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        ({"messages": [{"content": None}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "villain", "content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "", "content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": "villain"}]}, "messages"),
        ({"messages": [{"role": "user", "content": "x" * 64}]}, "messages"),
        ({"messages": [USER], "top_logprobs": 2}, "top_logprobs"),
        ({"messages": [USER], "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"messages": [USER], "logprobs": 2}, "logprobs"),
        ({"messages": [USER], "max_completion_tokens": 0}, "max_completion_tokens"),
        ({"messages": [USER], "max_tokens": 0}, "max_tokens"),
        ({"messages": [USER], "tools": [{"type": "function"}]}, "tools[0].function"),
        ({"messages": [USER], "reasoning_effort": "low"}, "reasoning_effort"),
        ({"messages": [USER], "add_special_tokens": True}, "add_special_tokens"),
        (
            {"messages": [USER, {"role": "assistant", "tool_calls": [{"id": "a"}]}]},
            "messages[1].tool_calls[0].function",
        ),
        ({"messages": [USER, {"role": "tool", "content": "42", "tool_call_id": "a"}]}, "messages[1].tool_call_id"),
        ({"messages": [{**USER, "tool_call_id": "a"}]}, "messages[0]"),
        ({"messages": [{**USER, "tool_calls": [{"function": {"name": "f", "arguments": ""}}]}]}, "messages[0]"),
        ({"messages": [{**USER, "reasoning": "hm"}]}, "messages[0]"),
        ({"messages": [{**SAID, "reasoning": "hm", "reasoning_content": "ah"}]}, "messages[0]"),
        ({"messages": [{**SAID, "prefix": True}]}, "messages[0].prefix"),
        ({"messages": [{**SAID, "refusal": "no"}]}, "messages[0].refusal"),
        ({"messages": [USER], "chat_template": "{{ x }}"}, "chat_template"),
        ({"messages": [USER], "chat_template_kwargs": {"tokenize": False}}, "chat_template_kwargs"),
        ({"messages": [USER], "chat_template_kwargs": {"a": nested(900)}}, "chat_template_kwargs"),
        (
            {"messages": [USER], "continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
        ),
    ],
)
async def test_a_bad_chat_parameter_is_a_400_that_names_it(gateway: Any, body: Any, param: str) -> None:
    reply = await gateway.post("/v1/chat/completions", **body)
    assert reply.status_code == 400, reply.text
    error = error_of(reply)
    assert error["param"] == param
    assert not gateway.target.submitted


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"speculative": "off"}, 'speculative: must be true, false or an object, as {"num_speculative_tokens": 4}'),
        ({"speculative": 0}, 'speculative: must be true, false or an object, as {"num_speculative_tokens": 4}'),
        ({"max_tokens": -1}, "max_tokens: must be at least 1"),
        ({"max_tokens": 0}, "max_tokens: must be at least 1"),
    ],
)
async def test_the_sentence_about_a_wrong_value_says_what_works(gateway: Any, wrong: Any, said: str) -> None:
    for path, body in (("completions", {"prompt": "hi"}), ("chat/completions", {"messages": [USER]})):
        assert error_of(await gateway.post(f"/v1/{path}", **body, **wrong))["message"] == said
    if "max_tokens" in wrong:
        reply = await gateway.post("/v1/chat/completions", messages=[USER], max_completion_tokens=wrong["max_tokens"])
        assert error_of(reply)["message"] == said.replace("max_tokens", "max_completion_tokens")


async def test_an_unknown_speculative_key_names_the_nearest_one(gateway: Any) -> None:
    reply = await gateway.post("/v1/completions", prompt="hi", speculative={"num_spec_tokens": 3})
    assert "num_speculative_tokens" in error_of(reply)["message"]
    reply = await gateway.post("/v1/completions", prompt="hi", speculative={"relaxed": {"tua": 0.2}})
    assert "did you mean 'tau'" in error_of(reply)["message"]


@pytest.mark.parametrize(
    "extra",
    [
        {"tools": None},
        {"tools": []},
        {"response_format": {"type": "text"}},
        {"echo": False},
        {"best_of": 1},
        {"suffix": None},
        {"user": "someone"},
        {"metadata": {"team": "blue"}},
        {"service_tier": "auto"},
        {"safety_identifier": "someone"},
        {"prompt_cache_key": "here"},
        {"parallel_tool_calls": True},
        {"request_id": "mine"},
    ],
)
async def test_what_asks_for_nothing_is_accepted(gateway: Any, extra: dict[str, Any]) -> None:
    assert (await gateway.post("/v1/completions", prompt="hi", **extra)).status_code == 200


@pytest.mark.parametrize("prompt", [[-1] * 200_000, [*[5] * 200_000, -1], [[5, -1]] * 100_000, ["a", 7] * 100_000])
def test_of_a_body_with_many_faults_the_first_is_told_and_no_more_are_looked_for(prompt: list[Any]) -> None:
    """All of them would take gigabytes, and the event loop with everybody's answers would wait."""
    with pytest.raises(ValidationError) as caught:
        CompletionRequest.model_validate({"prompt": prompt})
    assert len(caught.value.errors()) < 8


async def test_messages_whose_further_parts_ask_for_nothing_are_accepted(gateway: Any) -> None:
    nothing = {"tool_calls": [], "function_call": None, "refusal": None, "prefix": False, "annotations": []}
    said = {**SAID, **nothing, "id": "m1", "info": {"any": "thing"}}
    assert (await gateway.post("/v1/chat/completions", messages=[USER, said, USER])).status_code == 200
    silent = {"role": "assistant", "content": None}
    assert (await gateway.post("/v1/chat/completions", messages=[USER, silent, USER])).status_code == 200


@pytest.mark.parametrize(
    ("place", "part", "meant"),
    [
        ("messages[1]", {"tool_cals": []}, "tool_calls"),
        ("messages[1]", {"toolCalls": []}, "tool_calls"),
        ("messages[1]", {"reasoningcontent": "x"}, "reasoning_content"),
        ("messages[1].tool_calls[0]", {"tool_calls": [{"fuction": {}, "function": FUNCTION}]}, "function"),
        (
            "messages[1].tool_calls[0].function",
            {"tool_calls": [{"function": {**FUNCTION, "argument": ""}}]},
            "arguments",
        ),
    ],
)
async def test_a_part_of_a_message_that_is_misspelt_is_not_lost(
    gateway: Any, place: str, part: dict[str, Any], meant: str
) -> None:
    reply = await gateway.post("/v1/chat/completions", messages=[USER, {**SAID, **part}])
    error = error_of(reply)
    assert (reply.status_code, error["param"]) == (400, place)
    assert f"did you mean '{meant}'?" in error["message"]


async def test_a_misspelt_part_of_a_tool_is_not_lost(gateway: Any) -> None:
    tool = {"type": "function", "function": {"name": "f", "paramters": {"type": "object"}}}
    error = error_of(await gateway.post("/v1/chat/completions", messages=[USER], tools=[tool]))
    assert error["param"] == "tools[0].function"
    assert "did you mean 'parameters'?" in error["message"]


@pytest.mark.parametrize("num_digits", [400, 4000, 5000, 100_000])
@pytest.mark.parametrize(
    ("body", "param"),
    [
        ('{"prompt": "hi", "n": %s}', "n"),
        ('{"prompt": "hi", "n": -%s}', "n"),
        ('{"prompt": "hi", "temperature": %s}', "temperature"),
        ('{"prompt": "hi", "max_tokens": %s}', "max_tokens"),
        ('{"prompt": [1, %s]}', "prompt[1]"),
        ('{"prompt": "hi", "logit_bias": {"%s": 1}}', "logit_bias"),
        ('{"prompt": "hi", "logit_bias": {"1": %s}}', "logit_bias"),
        ('{"prompt": "hi", "stop": [%s]}', "stop[0]"),
        ('{"prompt": "hi", "speculative": {"num_speculative_tokens": %s}}', "speculative.num_speculative_tokens"),
    ],
)
async def test_an_integer_of_thousands_of_digits_is_a_400_that_names_it(
    gateway: Any, body: str, param: str, num_digits: int
) -> None:
    payload = body % ("1" * num_digits)
    reply = await gateway.http.post("/v1/completions", content=payload, headers={"content-type": "application/json"})
    assert reply.status_code == 400, reply.text
    error = error_of(reply)
    assert error["param"] == param
    assert param in error["message"]
    assert len(error["message"]) < 200


async def test_a_seed_of_more_digits_than_python_reads_is_a_400_that_names_it(gateway: Any) -> None:
    for digits, status in (("1" * 4000, 200), ("1" * 5000, 400)):
        payload = f'{{"prompt": "hi", "seed": {digits}}}'
        headers = {"content-type": "application/json"}
        reply = await gateway.http.post("/v1/completions", content=payload, headers=headers)
        assert reply.status_code == status
    assert error_of(reply)["param"] == "seed"


LONG_INTEGER = b'{"prompt": "hi", "seed": ' + b"1" * 5000


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b"[1]", b"null", b"\xff", b'{"prompt": "hi"', b"[" * 100_000),
        *(LONG_INTEGER + rest for rest in (b"", b", }", b', "user": ' + b"[" * 16_000 + b"]" * 16_000 + b"}")),
    ],
)
async def test_a_body_that_is_no_json_object_is_a_400(gateway: Any, body: bytes) -> None:
    reply = await gateway.http.post("/v1/completions", content=body, headers={"content-type": "application/json"})
    assert reply.status_code == 400
    error_of(reply)


async def test_the_name_of_a_long_integer_is_shortened(gateway: Any) -> None:
    payload = b'{"%s": %s}' % (b"a" * 100_000, b"1" * 5000)
    reply = await gateway.http.post("/v1/completions", content=payload, headers={"content-type": "application/json"})
    assert reply.status_code == 400
    error = error_of(reply)
    assert "has an integer of too many digits" in error["message"]
    assert len(error["message"]) < 300
    assert len(error["param"]) <= 200


async def test_other_errors_of_http_have_the_same_shape(gateway: Any) -> None:
    missing = await gateway.http.get("/v1/nowhere")
    assert (missing.status_code, error_of(missing)["type"]) == (404, "NotFoundError")
    wrong_method = await gateway.http.get("/v1/completions")
    assert (wrong_method.status_code, error_of(wrong_method)["type"]) == (405, "MethodNotAllowedError")
    assert error_of(wrong_method)["message"] == "GET is not for '/v1/completions': use POST"
    assert wrong_method.headers["allow"] == "POST"
    assert wrong_method.headers["allow"] == "POST"
    no_model = await gateway.http.get("/v1/models/some/other")
    assert (no_model.status_code, error_of(no_model)["param"]) == (404, "model")


@pytest.mark.parametrize(("path", "near"), [("/completions", "/v1/completions"), ("/v1/completion", "/v1/completions")])
async def test_an_unknown_path_names_those_there_are(gateway: Any, path: str, near: str) -> None:
    reply = await gateway.post(path, prompt="hi")
    said = error_of(reply)["message"]
    assert reply.status_code == 404
    assert said.startswith(f"there is no '{path}' here; did you mean {near}? known: ")
    assert "/v1/chat/completions" in said


async def test_a_prompt_or_messages_at_the_wrong_route_name_the_other(gateway: Any) -> None:
    chat = await gateway.post("/v1/chat/completions", prompt="hi")
    assert error_of(chat)["message"] == "prompt: for /v1/completions: ask there, or send messages here"
    completion = await gateway.post("/v1/completions", messages=[USER])
    assert error_of(completion)["message"] == "messages: for /v1/chat/completions: ask there, or send prompt here"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"include_usag": True}, "unknown key 'include_usag'; did you mean 'include_usage'?"),
        ({"x": True}, "unknown key 'x'; known: continuous_usage_stats, include_obfuscation, include_usage"),
    ],
)
async def test_an_unknown_key_inside_an_object_is_a_400(gateway: Any, options: dict[str, Any], said: str) -> None:
    reply = await gateway.post("/v1/completions", prompt="hi", stream=True, stream_options=options)
    assert (reply.status_code, error_of(reply)["param"]) == (400, "stream_options")
    assert error_of(reply)["message"] == f"stream_options: {said}"


async def test_a_body_above_the_limit_is_a_413(start_gateway: Any) -> None:
    gateway = await start_gateway(max_body_bytes=1000)
    declared = await gateway.post("/v1/completions", prompt="x" * 1000)
    assert (declared.status_code, error_of(declared)["type"]) == (413, "RequestTooLargeError")

    async def chunks() -> Any:
        for _ in range(4):
            yield b"x" * 300

    chunked = await gateway.http.post("/v1/completions", content=chunks(), headers={"content-type": "application/json"})
    assert (chunked.status_code, error_of(chunked)["type"]) == (413, "RequestTooLargeError")
    assert (await gateway.post("/v1/completions", prompt="hi")).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {"prompt": "x" * CONTEXT}, "prompt"),
        ("/v1/completions", {"prompt": [[1], [1] * CONTEXT]}, "prompt"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * CONTEXT}]}, "messages"),
    ],
)
async def test_a_prompt_longer_than_the_context_is_a_400_that_says_both_lengths(
    gateway: Any, path: str, body: Any, param: str
) -> None:
    reply = await gateway.http.post(path, json=body)
    error = error_of(reply)
    assert (reply.status_code, error["param"]) == (400, param)
    assert re.search(rf"the prompt has \d+ tokens, .* in the context of {CONTEXT}$", error["message"])
    assert not gateway.target.submitted
    longest = await gateway.http.post("/v1/completions", json={"prompt": [1] * (CONTEXT - 1)})
    assert longest.status_code == 200


@pytest.mark.parametrize("prompt", ["", [], [""], ["hi", ""], [[]], [[1], []]])
async def test_an_empty_prompt_is_a_400(gateway: Any, prompt: Any) -> None:
    reply = await gateway.http.post("/v1/completions", json={"prompt": prompt})
    assert (reply.status_code, error_of(reply)["message"]) == (400, "prompt is empty")
    assert not gateway.target.submitted
    assert (await gateway.http.post("/v1/completions", json={"prompt": "hi"})).status_code == 200


async def test_a_request_for_more_answers_than_the_servers_ever_hold_is_a_400(gateway: Any) -> None:
    reply = await gateway.http.post("/v1/completions", json={"prompt": ["a"] * 64, "n": 5})
    error = error_of(reply)
    assert (reply.status_code, error["param"]) == (400, "prompt")
    assert f"320 answers, more than the {MAX_ANSWERS} that the targets hold at once" in error["message"]
    assert not gateway.target.submitted
    fits = await gateway.http.post("/v1/completions", json={"prompt": ["a"] * 64, "n": 4})
    assert (fits.status_code, len(fits.json()["choices"])) == (200, MAX_ANSWERS)


async def test_without_a_target_everything_that_needs_one_is_a_503(gateway: Any) -> None:
    gateway.target.lose()
    health = await gateway.http.get("/health")
    assert (health.status_code, health.json()["error"]["type"]) == (503, "ServiceUnavailableError")
    reply = await gateway.post("/v1/completions", prompt="hi")
    assert (reply.status_code, error_of(reply)["code"]) == (503, 503)
    assert int(reply.headers["retry-after"]) >= 1
    for path in ("/health/ready", "/v1/models", "/v1/models/toy-model"):
        refused = await gateway.http.get(path)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert (await gateway.http.get("/ping")).status_code == 503


WITHOUT_A_TARGET = [  # route, body, parameter at fault
    ("completions", {"prompt": "hi", "temprature": 1}, "temprature"),
    ("completions", {"prompt": "hi", "temperature": -1}, "temperature"),
    ("completions", {"prompt": "hi", "max_tokens": 0}, "max_tokens"),
    ("completions", {"prompt": "hi", "stop": ["x"] * 17}, "stop"),
    ("completions", {"prompt": "hi", "stop_token_ids": [999_999]}, "stop_token_ids"),
    ("completions", {"prompt": "hi", "logit_bias": {"999999": 1}}, "logit_bias"),
    ("completions", {"prompt": "hi", "speculative": {"num_speculative_tokens": 99}}, None),
    ("completions", {"prompt": "hi", "stream_options": {"include_usage": True}}, "stream_options"),
    ("completions", {"prompt": "hi", "best_of": 2}, "best_of"),
    ("completions", {"prompt": ""}, "prompt"),
    ("completions", {"prompt": [999_999]}, "prompt"),
    ("completions", {"prompt": [1] * 200_000, "n": 8}, "prompt"),
    ("chat/completions", {"messages": [USER], "tools": [{"type": "function"}]}, "tools[0].function"),
    ("chat/completions", {"messages": [{"role": "robot", "content": "hi"}]}, "messages[0].role"),
    ("chat/completions", {"messages": [USER], "top_logprobs": 2}, "top_logprobs"),
    ("chat/completions", {"messages": [USER], "chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    ("chat/completions", {"messages": [USER], "continue_final_message": True, "add_generation_prompt": True}, None),
]


async def test_a_request_that_no_target_could_answer_is_a_400_while_there_is_none(gateway: Any) -> None:
    gateway.target.lose()
    for route, body, param in WITHOUT_A_TARGET:
        reply = await gateway.http.post(f"/v1/{route}", json=body)
        assert reply.status_code == 400, (body, reply.text)
        assert param in (None, error_of(reply)["param"])
    for route, body in (
        ("completions", {"prompt": "hi", "max_tokens": 999}),
        ("chat/completions", {"messages": [USER]}),
    ):
        assert (await gateway.http.post(f"/v1/{route}", json=body)).status_code == 503


def test_an_unexpected_error_tells_the_log_and_not_the_client() -> None:
    with capture_logs() as logs:
        fault = http_error_of(ValueError("/secret/path and a prompt"))
    assert fault.status == 500
    assert "secret" not in fault.message
    assert "secret" in str(logs[0]["exc_info"])


def test_a_quoted_surrogate_can_be_sent() -> None:
    assert b"\\ud800" in http_error_of(RequestError("the model '\ud800' does not exist", "model", 404)).body()


async def test_a_refusal_of_the_target_names_the_parameter_as_the_client_calls_it(gateway: Any) -> None:
    gateway.target.refusal = Rejected(RequestId(""), "the prompt is too long", "prompt", 400)
    assert error_of(await gateway.post("/v1/chat/completions", messages=[USER]))["param"] == "messages"
    assert error_of(await gateway.post("/v1/completions", prompt="hi"))["param"] == "prompt"


async def test_a_request_that_a_target_could_not_take_is_a_500_and_not_sent_again(
    gateway: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_errors, "UNEXPECTED", LogLimit(lambda: 0.0))
    gateway.target.refusal = Rejected(RequestId(""), "internal error", None, 500)
    with capture_logs() as logs:
        reply = await gateway.post("/v1/completions", prompt="hi")
    assert (reply.status_code, error_of(reply)["message"]) == (500, FAILED)
    assert "retry-after" not in reply.headers
    assert [each["why"] for each in logs if each["event"] == "a request failed"] == [FAILED]
    assert not [each for each in logs if "exc_info" in each]  # the traceback is the target's


@pytest.mark.parametrize("stream", [False, True])
async def test_a_bug_ends_its_own_request_only(gateway: Any, stream: bool) -> None:
    script, gateway.target.script = gateway.target.script, None
    waiting = asyncio.create_task(gateway.post("/v1/completions", prompt="wait"))
    await gateway.target.until(lambda: gateway.target.open)
    (waits,) = gateway.target.open

    def broken(spec: Any) -> list[str]:
        raise ZeroDivisionError("a bug")

    gateway.target.script = broken
    failed = await gateway.post("/v1/completions", prompt="hi", stream=stream)
    assert (failed.status_code, error_of(failed)["type"]) == (500, "InternalServerError")
    assert "bug" not in failed.text
    counted = (await gateway.http.get("/metrics")).text
    assert 'requests_total{route="/v1/completions",status="500"} 1.0' in counted
    gateway.target.script = script
    assert (await gateway.post("/v1/completions", prompt="hi")).status_code == 200
    gateway.target.emit(waits, "served", finish="stop")
    assert (await waiting).json()["choices"][0]["text"] == "served"
