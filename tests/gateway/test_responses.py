"""`/v1/responses`, through the eyes of the official client: the same answers as chats, in another form."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import openai
import pytest
from pydantic import BaseModel

TEMPLATE = (
    '{% if tools %}<s>tools {{ tools | tojson }} as <tool_call>{"name", "arguments"}</tool_call></s>{% endif %}'
    "{% for message in messages %}<s>{{ message['role'] }}\n"
    "{% if message.reasoning %}<think>{{ message.reasoning }}</think>{% endif %}{{ message['content'] }}"
    "{% for call in message.tool_calls or [] %}<tool_call>{{ call.function.arguments | tojson }}</tool_call>"
    "{% endfor %}</s>{% endfor %}{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)
WEATHER = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "additionalProperties": False},
}
CLOCK = {"type": "function", "name": "clock"}
THOUGHT = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "x"}]}
CALL = {"type": "function_call", "call_id": "c1", "name": "clock", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "x"}
ASKED: dict[str, Any] = {"model": "toy-model", "input": "hi", "tools": [WEATHER, CLOCK]}
TEXT = (
    '<think>why?</think>Let me see.<tool_call>{"name": "weather", "arguments": {"city": "Köln"}}</tool_call>'
    '<tool_call>{"name": "clock"}</tool_call>'
)


@pytest.fixture(scope="module")
def able_folder(model_folder: Path, tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that thinks, and calls tools."""
    folder = tmp_path_factory.mktemp("able") / "toy-model"
    able = deepcopy(tokenizer)
    able.chat_template = TEMPLATE
    able.save_pretrained(folder)
    (folder / "config.json").write_text((model_folder / "config.json").read_text())
    return folder


@pytest.fixture
def make_target(make_target: Callable[[str], Any]) -> Callable[[str], Any]:
    """Targets with room for what templates write."""

    def make(name: str) -> Any:
        target = make_target(name)
        target.max_model_len = 1024
        return target

    return make


@pytest.fixture
async def able(start_gateway: Callable[..., Any], able_folder: Path) -> Any:
    gateway = await start_gateway(model=str(able_folder))
    gateway.target.script = lambda spec: [TEXT[start : start + 7] for start in range(0, len(TEXT), 7)]
    return gateway


def told(items: Any) -> list[Any]:
    """What items say, without their ids."""
    said: list[Any] = []
    for item in items:
        assert item.status == "completed"
        if item.type == "function_call":
            assert item.call_id.startswith("call_")
            said.append((item.name, item.arguments))
        else:
            said.append((item.type, *(part.text for part in item.content)))
    return said


ITEMS = [("reasoning", "why?"), ("message", "Let me see."), ("weather", '{"city": "Köln"}'), ("clock", "{}")]


async def test_a_text_is_a_message(gateway: Any) -> None:
    response = await gateway.client.responses.create(model="toy-model", input="hi")
    assert response.output_text == "Hello, wörld"
    (item,) = response.output
    assert (item.type, item.role, item.status) == ("message", "assistant", "completed")
    assert response.id.startswith("resp-")
    assert (response.object, response.status, response.error) == ("response", "completed", None)
    assert (response.store, response.previous_response_id) == (False, None)
    (spec,) = gateway.target.submitted.values()
    assert response.usage.input_tokens == len(spec.prompt_token_ids)
    assert response.usage.output_tokens == len("Hello, wörld".encode()) + 1
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
    assert response.metrics["speculative_decoding"]["num_spec_steps"] == 2


async def test_a_response_is_the_answer_of_the_chat_that_it_stands_for(gateway: Any) -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
         "content": [{"type": "output_text", "text": "b", "annotations": []}]},
        {"role": "user", "content": "c"},
    ]  # fmt: skip
    drawn = {"temperature": 0.5, "top_p": 0.9, "seed": 7, "speculative": False}
    await gateway.post("/v1/responses", input=items, instructions="be", max_output_tokens=9, **drawn)
    chat = [
        {"role": "system", "content": "be"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    await gateway.post("/v1/chat/completions", messages=chat, max_completion_tokens=9, **drawn)
    of_response, of_chat = gateway.target.submitted.values()
    assert of_response == of_chat
    assert (of_chat.max_tokens, of_chat.num_draft_tokens) == (9, 0)


async def test_reasoning_text_and_calls_are_items(able: Any) -> None:
    response = await able.client.responses.create(**ASKED)
    assert told(response.output) == ITEMS
    assert [(tool.name, tool.type) for tool in response.tools] == [("weather", "function"), ("clock", "function")]


async def test_the_events_of_a_stream_are_openais_and_add_up_to_the_whole(able: Any) -> None:
    events = []
    async with able.client.responses.stream(**ASKED) as stream:
        async for event in stream:
            events.append(event)
        final = await stream.get_final_response()
    assert told(final.output) == ITEMS
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type.removeprefix("response.") for event in events]
    assert [kind for place, kind in enumerate(kinds) if kind != (kinds[place - 1] if place else "")] == [
        "created", "in_progress",
        "output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done", "content_part.done",
        "output_item.done",
        "output_item.added", "content_part.added", "output_text.delta", "output_text.done", "content_part.done",
        "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done",
        "completed",
    ]  # fmt: skip
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert ("".join(deltas), len(deltas) > 1) == ("Let me see.", True)
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert told(done) == ITEMS
    assert [item.id for item in done] == [item.id for item in final.output]


async def test_items_of_before_reach_the_template_as_a_chats_messages(able: Any, tokenizer: Any) -> None:
    called = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Köln"}'}
    items = [
        {"role": "user", "content": "hi"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Wait."}]},
        called,
        {**called, "call_id": "c2", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "rain"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "sun"}]},
        called,
        {"type": "message", "role": "assistant", "content": "So."},
        {"type": "message", "role": "assistant", "content": "And."},
    ]
    await able.client.responses.create(**{**ASKED, "input": items})
    [spec] = able.target.submitted.values()
    text = tokenizer.decode(spec.prompt_token_ids)
    assert text.partition("</s>")[2] == (
        '<s>user\nhi</s><s>assistant\n<think>hm</think>Wait.<tool_call>{"city": "Köln"}</tool_call>'
        "<tool_call>{}</tool_call></s><s>tool\nrain</s><s>tool\nsun</s>"
        '<s>assistant\n<tool_call>{"city": "Köln"}</tool_call></s><s>assistant\nSo.</s><s>assistant\nAnd.</s>'
        "<s>assistant\n"
    )


@pytest.mark.parametrize("follows", ["nothing", "a question"])
async def test_reasoning_that_led_to_nothing_reaches_the_template_too(able: Any, tokenizer: Any, follows: str) -> None:
    """The length can end an answer within its reasoning, and clients send back all that they got."""
    thought = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    asks = [{"role": "user", "content": "So?"}] if follows == "a question" else []
    await able.client.responses.create(**{**ASKED, "input": [{"role": "user", "content": "hi"}, thought, *asks]})
    [spec] = able.target.submitted.values()
    text = tokenizer.decode(spec.prompt_token_ids)
    assert "<s>user\nhi</s><s>assistant\n<think>hm</think></s>" in text
    assert text.endswith("</s><s>user\nSo?</s><s>assistant\n" if asks else "</think></s><s>assistant\n")


async def test_reasoning_that_nobody_wants_is_left_out(able: Any) -> None:
    reply = await able.post("/v1/responses", **ASKED, include_reasoning=False)
    assert [item["type"] for item in reply.json()["output"]] == ["message", "function_call", "function_call"]


class Country(BaseModel):
    name: str
    area: int


async def test_a_form_reaches_the_target_and_the_client_parses_the_answer(gateway: Any) -> None:
    gateway.target.script = lambda spec: ['{"name": "Malta", ', '"area": 316}']
    parsed = await gateway.client.responses.parse(model="toy-model", input="hi", text_format=Country)
    assert parsed.output_parsed == Country(name="Malta", area=316)
    [spec] = gateway.target.submitted.values()
    assert spec.grammar.kind == "json"
    assert json.loads(spec.grammar.text)["required"] == ["name", "area"]
    assert parsed.text.format.name == "Country"
    await gateway.client.responses.create(model="toy-model", input="hi", text={"format": {"type": "json_object"}})
    assert [each.grammar.kind for each in gateway.target.submitted.values()] == ["json", "json"]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "clock"}])
async def test_a_demanded_call_is_held_to_a_grammar(able: Any, choice: Any) -> None:
    response = await able.client.responses.create(**ASKED, tool_choice=choice, parallel_tool_calls=False)
    [spec] = able.target.submitted.values()
    assert ("weather" in spec.grammar.text) is (choice == "required")
    assert response.parallel_tool_calls is False
    assert (response.tool_choice if choice == "required" else response.tool_choice.to_dict()) == choice


async def test_an_answer_that_the_length_ends_is_incomplete(gateway: Any) -> None:
    gateway.target.script = None
    for is_stream in (False, True):
        given = {"model": "toy-model", "input": "hi", "max_output_tokens": 3, "stream": is_stream}
        asking = asyncio.create_task(_last_of(gateway, given))
        await gateway.target.until(lambda: gateway.target.open)
        [request_id] = gateway.target.open
        gateway.target.emit(request_id, "Hel", finish="length")
        response = await asking
        assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
        assert (response.output_text, response.output[0].status) == ("Hel", "incomplete")


async def _last_of(gateway: Any, given: dict[str, Any]) -> Any:
    """The response, which the last event of a stream has."""
    made = await gateway.client.responses.create(**given)
    if not given["stream"]:
        return made
    *_, last = [event async for event in made]
    assert last.type == "response.incomplete"
    return last.response


async def test_an_answer_without_a_text_is_an_empty_message(gateway: Any) -> None:
    gateway.target.script = lambda spec: [""]
    response = await gateway.client.responses.create(model="toy-model", input="hi")
    assert [(item.type, item.content[0].text) for item in response.output] == [("message", "")]


async def test_a_failure_in_mid_stream_is_an_error_for_the_client(gateway: Any) -> None:
    gateway.target.script = None
    asking = asyncio.create_task(gateway.client.responses.create(model="toy-model", input="hi", stream=True))
    await gateway.target.until(lambda: gateway.target.open)
    [request_id] = gateway.target.open
    gateway.target.emit(request_id, "Hel")
    stream = await asking
    kinds = [(await anext(stream)).type for _ in range(5)]
    assert kinds[-1] == "response.output_text.delta"
    gateway.target.lose()
    with pytest.raises(openai.APIError, match="is lost"):
        await anext(stream)


@pytest.mark.parametrize(
    ("asked", "param", "words"),
    [
        ({"store": True}, "store", "this server keeps no responses"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "send the whole conversation as input"),
        ({"background": True}, "background", "not supported"),
        ({"include": ["reasoning.encrypted_content"]}, "include", "not supported"),
        ({"instructons": "x"}, "instructons", "did you mean 'instructions'?"),
        ({"max_tokens": 4}, "max_tokens", "did you mean 'max_output_tokens'?"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "function"),
        ({"tools": [CLOCK]}, "tools", "chat template"),
        ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice", "no tool"),
        ({"input": []}, "input", "at least 1"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role", "must be one of"),
        ({"input": [{"role": "user"}]}, "input[0].content", "required"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type", "input_text"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type", "must be one of message"),
        ({"input": [{"type": ["x"]}]}, "input[0].type", "must be one of message"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id", "required"),
        ({"input": "x" * 100_000}, "input", "characters"),
        ({"input": "x" * 1020}, "input", "leaves no room"),
        ({"max_output_tokens": 1024}, "max_output_tokens", "maximum context length"),
        ({"max_output_tokens": 0}, "max_output_tokens", "at least 1"),
        ({"input": [THOUGHT]}, "input", "input: reasoning is not supported: this model does not think aloud"),
        ({"input": [CALL, {**OUTPUT, "outputs": "x"}]}, "input[1]", "did you mean 'output'?"),
        ({"input": [{**CALL, "arguments": "["}]}, "input", "input: tool_calls is not supported"),
        ({"input": [{"type": "reasoning", "summary": [{"text": "x"}]}]}, "input[0]", "content of reasoning only"),
        ({"input": [{"type": "reasoning", "encrypted_content": "x"}]}, "input[0]", "content of reasoning only"),
        ({"tool_choice": {"type": "function", "name": "f", "mode": "auto"}}, "tool_choice", "unknown key 'mode'"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "unknown key 'include_usage'"),
        ({"text": {"verbosity": "medium", "form": {}}}, "text", "did you mean 'format'?"),
        ({"text": {"format": {"type": "text", "shema": {}}}}, "text.format", "did you mean 'schema'?"),
        ({"text": {"format": {"type": "json_object", "schema": {}}}}, "text.format", "a schema is"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema", "required"),
        (
            {"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "nothing"}}}},
            "text.format.schema",
            "nothing",
        ),
        ({"text": {"format": {"type": "text", "schema": {}}}}, "text.format", "a schema is for type 'json_schema'"),
        ({"text": {"more": [1]}}, "text", "unknown key 'more'"),
        ({"metadata": {str(each): "" for each in range(17)}}, "metadata", "at most 16 items"),
        ({"metadata": {"a": "x" * 513}}, "metadata.a", "at most 512 characters"),
        ({"metadata": {"a" * 65: "x"}}, f"metadata.{'a' * 65}", "at most 64 characters"),
    ],
)
async def test_what_is_wrong_is_named_as_this_api_does(gateway: Any, asked: dict, param: str, words: str) -> None:
    reply = await gateway.post("/v1/responses", **{"input": "hi", **asked})
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, param), error
    assert words in error["message"]
    assert "messages" not in error["message"]
    assert not gateway.target.submitted


async def test_what_a_client_says_besides_comes_back(gateway: Any) -> None:
    said = {"metadata": {"a": "b"}, "instructions": "be", "temperature": 0.5, "max_output_tokens": 9, "store": False}
    response = await gateway.client.responses.create(model="toy-model", input="hi", **said)
    assert {name: getattr(response, name) for name in said} == said
    assert response.text.format.type == "text"
