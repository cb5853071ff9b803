"""Tools: what a model is told of them, what its answer says of them, and the grammar that demands a call."""

from __future__ import annotations

import asyncio
import json
import time
import tracemalloc
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher
from llguidance.hf import from_tokenizer

from starspec.errors import RequestError
from starspec.gateway import prompts
from starspec.gateway.prompts import PromptCodec
from starspec.gateway.schema import ChatCompletionRequest, ChatMessage, FunctionCall, FunctionTool, ToolCall
from starspec.gateway.tool_reader import CallPiece, Pieces, ToolReader
from starspec.gateway.tools import HERMES, LLAMA, MAX_CALLS, ToolSyntax, ToolUse, syntax_of

HERMES_TEMPLATE = (
    '{% if tools %}<s>tools {{ tools | tojson }} as <tool_call>{"name", "arguments"}</tool_call></s>{% endif %}'
    "{% for message in messages %}<s>{{ message['role'] }}\n{{ message['content'] }}"
    "{% for call in message.tool_calls or [] %}<tool_call>{{ call.function.arguments | tojson }}</tool_call>"
    "{% endfor %}"
    "</s>{% endfor %}{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)
LLAMA_TEMPLATE = HERMES_TEMPLATE.replace("<tool_call>", "").replace('arguments"', 'parameters"') + "{# ipython #}"
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock"}}
USER = {"role": "user", "content": "hi"}
MANY_VALUES = '{"a": [' + "1," * 2**18 + "1]}"  # parsing them at once would hold Python's lock too long
ONE = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln", "days": 2}}\n</tool_call>'
CALLED = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
TWO = f'Let me see. \n{ONE}\n<tool_call>{{"name":"clock","arguments":{{}}}}</tool_call>\n'
JSON_CALLS = ' {"name": "weather", "parameters": {"city": "a; {b}"}}; {"name": "clock", "parameters": {}}'


def reader(syntax: ToolSyntax = HERMES, most: int = MAX_CALLS) -> ToolReader:
    return ToolReader(ToolUse(syntax, most, None))


def read(syntax: ToolSyntax, pieces: list[str], most: int = MAX_CALLS) -> Pieces:
    """All pieces as one."""
    tool_reader, joined = reader(syntax, most), Pieces()
    for each in [tool_reader.feed(piece, is_last=False) for piece in pieces] + [tool_reader.feed("", is_last=True)]:
        for part in each.parts:
            if isinstance(part, str):
                joined.add_text(part)
            else:
                joined.add_call(part)
    return joined


@pytest.mark.parametrize(
    ("syntax", "text", "content", "calls"),
    [
        (HERMES, "Hello. \n", "Hello. \n", []),
        (HERMES, ONE, "", [("weather", '{"city": "Köln", "days": 2}')]),
        (HERMES, TWO, "Let me see.", [("weather", '{"city": "Köln", "days": 2}'), ("clock", "{}")]),
        (HERMES, '<tool_call>{"name": "clock"}</tool_call>', "", [("clock", "{}")]),
        (HERMES, '<tool_call>{"arguments": {"a": "}"}, "name": "f"}</tool_call>', "", [("f", '{"a": "}"}')]),
        (HERMES, '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [("f", '{"a": 1}')]),
        (HERMES, '<tool_call>{"name": "f", "arguments": {"a": [1, {"b"', "", [("f", '{"a": [1, {"b"')]),
        (HERMES, '<tool_call>{"name": "f", "arguments": {}}</tool', "", [("f", "{}")]),
        (HERMES, '<tool_call>{"name": "f", "arguments": 3]}</tool_call>', "]}</tool_call>", [("f", "3")]),
        (HERMES, "a <tool_call> is a tag", "a <tool_call> is a tag", []),
        (HERMES, "a <tool_call>\n<tool_call>{}</tool_call>", "a <tool_call>\n<tool_call>{}</tool_call>", []),
        (HERMES, 'x <tool_call>{"name": 3}', 'x <tool_call>{"name": 3}', []),
        (HERMES, "x <tool_ca", "x <tool_ca", []),
        (LLAMA, JSON_CALLS, "", [("weather", '{"city": "a; {b}"}'), ("clock", "{}")]),
        (LLAMA, '<|python_tag|>{"name": "clock", "parameters": {}}', "", [("clock", "{}")]),
        (LLAMA, '{"answer": 5} is it', '{"answer": 5} is it', []),
        (LLAMA, 'It is {"name": "clock"}', 'It is {"name": "clock"}', []),
        (LLAMA, "  <|python", "  <|python", []),
    ],
)
@given(data=st.data())
def test_a_text_says_the_same_however_it_is_cut(
    syntax: ToolSyntax, text: str, content: str, calls: list[tuple[str, str]], data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)))))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    expected = [CallPiece(index, *call) for index, call in enumerate(calls)]
    for most in (len(expected), 1):
        found = read(syntax, pieces, most=max(1, most))
        assert (found.content, found.calls) == (content, expected[:most])


@given(text=st.text(alphabet='<tol_ca/>{}[]":, \n\\nmearguts', max_size=60), data=st.data())
def test_any_text_is_read_the_same_however_it_is_cut(text: str, data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(["", "<tool_call>", '<tool_call>{"name": "f", "arguments": '])) + text
    cut = data.draw(st.integers(0, len(text)))
    for syntax in (HERMES, LLAMA):
        assert read(syntax, [text[:cut], text[cut:]]).parts == read(syntax, [text]).parts


def test_reading_a_long_call_takes_time_in_proportion_to_it() -> None:
    """Eight times the text takes eight times the time; copying it at each character would take 64 times."""

    def seconds(num_chars: int) -> float:
        text = '{"name": "f", "parameters": {"a": "' + "x" * num_chars + '"}}'
        taken = []
        for _ in range(3):
            tool_reader, started_s = reader(LLAMA), time.thread_time()
            tool_reader.feed(text, is_last=True)
            taken.append(time.thread_time() - started_s)
        return min(taken)

    assert seconds(400_000) < 24 * seconds(50_000)


def test_arguments_of_very_many_values_are_refused_before_they_are_parsed() -> None:
    call = ToolCall(function=FunctionCall(name="f", arguments=MANY_VALUES))
    with pytest.raises(RequestError, match=r"arguments has 262145 values; 262144 are allowed") as refused:
        prompts._template_call(0, 1, call)
    assert refused.value.param == "messages[0].tool_calls[1].function.arguments"


@pytest.mark.parametrize("slow", [[int("1" * 4200)] * 50, [1.2e-300] * 20_000])
def test_what_a_template_would_write_slowly_is_refused_before(slow: list[float], tokenizer: Any) -> None:
    """Writing JSON holds Python's lock to its end: 200,000 floats in a tool stopped the event loop for 0.3 s."""
    able = deepcopy(tokenizer)
    able.chat_template = HERMES_TEMPLATE
    codec = PromptCodec(able, (257,))
    call = {"function": {"name": "f", "arguments": json.dumps({"a": slow})}}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"enum": slow}}}
    messages = [ChatMessage(**USER), ChatMessage.model_validate({"role": "assistant", "tool_calls": [call]})]
    given = {
        r"messages\[1\].tool_calls\[0\].function.arguments has": (messages, None, {}),
        "tools: their JSON has": (messages[:1], [FunctionTool.model_validate(tool)], {}),
        "chat_template_kwargs has": (messages[:1], None, {"mine": slow}),
    }
    for sentence, (asked, tools, extra) in given.items():
        with pytest.raises(RequestError, match=sentence):
            codec._encode_chat(asked, tools, True, False, extra, 2**20)
    codec.close()


def test_half_of_a_surrogate_pair_in_a_tool_or_in_arguments_is_refused(tokenizer: Any) -> None:
    able = deepcopy(tokenizer)
    able.chat_template = HERMES_TEMPLATE + "{{ mine }}"
    codec = PromptCodec(able, (257,))
    call = {"function": {"name": "f", "arguments": '{"a": "\\ud800"}'}}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"\udfff": 1}}}
    messages = [ChatMessage(**USER), ChatMessage.model_validate({"role": "assistant", "tool_calls": [call]})]
    given: list[Any] = [
        (messages, None, {}),
        (messages[:1], [FunctionTool.model_validate(tool)], {}),
        (messages[:1], None, {"mine": "\ud800"}),
    ]
    for asked, tools, extra in given:
        with pytest.raises(RequestError, match="tools and chat_template_kwargs must be valid Unicode text"):
            codec._encode_chat(asked, tools, True, False, extra, 2**20)
    codec.close()


def test_arguments_stream_as_they_come() -> None:
    tool_reader = reader()
    assert not tool_reader.feed('<tool_call>{"name": "f"', is_last=False).calls
    assert tool_reader.feed(', "arguments": {"a', is_last=False).calls == [CallPiece(0, "f", '{"a')]
    assert tool_reader.feed('": 1', is_last=False).calls == [CallPiece(0, None, '": 1')]
    assert tool_reader.feed("}}</tool_call>", is_last=True).calls == [CallPiece(0, None, "}")]


def test_the_syntax_is_that_of_the_template(tokenizer: Any) -> None:
    assert syntax_of(HERMES_TEMPLATE) is HERMES
    assert syntax_of(LLAMA_TEMPLATE) is LLAMA
    assert syntax_of(tokenizer.chat_template) is None
    assert syntax_of("{{ tools }}<tool_call>\n<function=f>") is None
    assert syntax_of(None) is None


@pytest.mark.parametrize(
    ("syntax", "choice", "parallel", "good", "bad"),
    [
        (HERMES, "required", True, [ONE, f"{ONE}\n{ONE}"], ["Hi", f"{ONE}\n" * 17, ONE.replace("days", "hours")]),
        (HERMES, "required", False, [ONE, ONE.replace(', "days": 2', "")], [f"{ONE}\n{ONE}"]),
        (HERMES, "clock", True, [CALLED], [ONE, f"{CALLED}\n{CALLED}"]),  # a named function is called once
        (LLAMA, "required", True, ['{"name": "clock", "parameters": {}}'], [JSON_CALLS, '{"name": "clock"}']),
    ],
)
def test_a_demanded_call_has_a_grammar(
    tokenizer: Any, syntax: ToolSyntax, choice: str, parallel: bool, good: list[str], bad: list[str]
) -> None:
    request = ChatCompletionRequest.model_validate(
        {
            "messages": [USER],
            "tools": [WEATHER, CLOCK],
            "tool_choice": choice if choice == "required" else {"type": "function", "function": {"name": choice}},
            "parallel_tool_calls": parallel,
        }
    )
    use = ToolUse.of(request, syntax)
    assert use is not None
    assert use.demand is not None
    vocabulary = from_tokenizer(tokenizer)
    assert LLMatcher.validate_grammar(use.demand.grammar, vocabulary) == ""
    for text in (*good, *bad):
        matcher = LLMatcher(vocabulary, use.demand.grammar)
        ids = tokenizer.encode(text, add_special_tokens=False)
        is_whole = matcher.validate_tokens(ids) == len(ids) and matcher.consume_tokens(ids) and matcher.is_accepting()
        assert is_whole == (text in good), text
    assert all(read(syntax, [text]).calls and not read(syntax, [text]).content for text in good)


COLOUR = {
    "type": "object",
    "properties": {"$ref": {"$ref": "#/$defs/Colour"}, "const": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
    "required": ["$ref", "const"],
    "additionalProperties": False,
    "$defs": {"Colour": {"enum": ["red", "blue"], "default": {"$ref": "#/no/reference"}}},
}


def test_references_of_a_tools_schema_are_to_itself(tokenizer: Any) -> None:
    tools = [CLOCK, {"type": "function", "function": {"name": "paint", "parameters": COLOUR}}]
    asked = {"messages": [USER], "tools": tools, "tool_choice": "required"}
    use = ToolUse.of(ChatCompletionRequest.model_validate(asked), LLAMA)
    assert use is not None
    assert use.demand is not None
    vocabulary = from_tokenizer(tokenizer)
    for inner, is_right in (("null", True), ('{"$ref": "blue", "const": null}', True), ('{"name": "clock"}', False)):
        matcher = LLMatcher(vocabulary, use.demand.grammar)
        text = f'{{"name": "paint", "parameters": {{"$ref": "red", "const": {inner}}}}}'
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert (matcher.validate_tokens(ids) == len(ids)) == is_right, text


@pytest.mark.parametrize(
    ("root", "reference"),
    [
        ({}, "#/$defs/Colour"),
        ({"$anchor": "all"}, "#/$defs/Colour"),
        ({"$id": "http://a.b/c"}, "#/$defs/Colour"),
        ({"$id": "http://a.b/c#"}, "http://a.b/c#/$defs/Colour"),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "$id": "c"}, "c#/$defs/Colour"),
        ({"$schema": "http://json-schema.org/draft-04/schema#", "id": "http://a.b/c"}, "#/$defs/Colour"),
    ],
)
def test_a_tools_schema_may_have_an_address_of_its_own(tokenizer: Any, root: Any, reference: str) -> None:
    colour = {"$anchor": "colour", "enum": ["red", "blue"]}
    parameters = {
        "type": "object",
        "properties": {"$id": {"$ref": reference}, "id": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
        "required": ["$id", "id"],
        "additionalProperties": False,
        "$defs": {"Colour": colour},
        **root,
    }
    tools = [{"type": "function", "function": {"name": each, "parameters": parameters}} for each in ("a", "b")]
    request = ChatCompletionRequest.model_validate({"messages": [USER], "tools": tools, "tool_choice": "required"})
    use = ToolUse.of(request, LLAMA)
    assert use is not None
    assert use.demand is not None
    vocabulary = from_tokenizer(tokenizer)
    for inner, is_right in (("null", True), ('{"$id": "blue", "id": null}', True), ('{"$id": "green"}', False)):
        matcher = LLMatcher(vocabulary, use.demand.grammar)
        text = f'{{"name": "b", "parameters": {{"$id": "red", "id": {inner}}}}}'
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert (matcher.validate_tokens(ids) == len(ids)) == is_right, matcher.get_error()


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"items": {"$ref": "#name"}}, "$ref: '#name' must be '#' or begin with '#/' (at #/items)"),
        ({"$id": "a", "items": {"$ref": "b#/x"}}, "$ref: 'b#/x' must be '#' or begin with '#/' (at #/items)"),
        ({"$ref": "http://a.b"}, "$ref: 'http://a.b' must be '#' or begin with '#/' (at #)"),
        ({"$defs": {"a": {"$id": "a"}}}, "$id: only the root of parameters may have one (at #/$defs/a)"),
        ({"properties": {"a": {"maxlength": 3}}}, "unknown keyword 'maxlength'; did you mean 'maxLength'? (at #/prop"),
    ],
)
def test_what_is_wrong_in_a_tools_schema_is_told_with_function_and_place(parameters: Any, words: str) -> None:
    tool = {"type": "function", "function": {"name": "paint", "parameters": parameters}}
    request = ChatCompletionRequest.model_validate({"messages": [USER], "tools": [tool], "tool_choice": "required"})
    with pytest.raises(RequestError) as refused:
        ToolUse.of(request, HERMES)
    assert str(refused.value).startswith(f"tools: parameters of 'paint': {words}")
    assert refused.value.param == "tools"


def test_schemas_of_tools_are_measured_before_anything_looks_into_them() -> None:
    """The JSON pointers of these would take 60 MB, and those of a whole body gigabytes."""
    inner = {"properties": {f"{number}": {} for number in range(3000)}}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a" * 20_000: inner}}}}
    request = ChatCompletionRequest.model_validate({"messages": [USER], "tools": [tool], "tool_choice": "required"})
    tracemalloc.start()
    try:
        with pytest.raises(RequestError, match="tools: the grammar of their schemas has more than the 32768 bytes"):
            ToolUse.of(request, HERMES)
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()


def test_tags_that_are_tokens_are_demanded_as_tokens(tokenizer: Any) -> None:
    tagged = deepcopy(tokenizer)
    tagged.add_tokens(["<tool_call>", "</tool_call>"])
    tagged.chat_template = HERMES_TEMPLATE
    codec = PromptCodec(tagged, (257,))
    codec.close()
    asked = {"messages": [USER], "tools": [WEATHER], "tool_choice": "required"}
    use = ToolUse.of(ChatCompletionRequest.model_validate(asked), codec.tool_syntax)
    assert use is not None
    assert use.grammar is not None
    matcher = LLMatcher(from_tokenizer(tagged), use.grammar.text)
    ids = tagged.encode(f"{ONE}\n{ONE}", add_special_tokens=False)
    assert ids.count(258) == 2
    assert matcher.try_consume_tokens(ids) == len(ids)
    assert matcher.is_accepting()


@pytest.fixture(scope="module")
def tool_folder(model_folder: Path, tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the toy model with a template that knows tools."""
    folder = tmp_path_factory.mktemp("with-tools") / "toy-model"
    able = deepcopy(tokenizer)
    able.chat_template = HERMES_TEMPLATE
    able.save_pretrained(folder)
    for name in ("config.json", "generation_config.json"):
        (folder / name).write_text((model_folder / name).read_text())
    return folder


@pytest.fixture
def make_target(make_target: Callable[[str], Any]) -> Callable[[str], Any]:
    """Targets with room for tools in their context."""

    def make(name: str) -> Any:
        target = make_target(name)
        target.max_model_len = 1024
        return target

    return make


@pytest.fixture
async def able(start_gateway: Any, tool_folder: Path) -> Any:
    gateway = await start_gateway(model=str(tool_folder))
    gateway.target.script = lambda spec: [TWO[start : start + 7] for start in range(0, len(TWO), 7)]
    return gateway


ASKED: dict[str, Any] = {"model": "toy-model", "messages": [USER], "tools": [WEATHER, CLOCK]}


async def test_calls_are_told_in_openais_form(able: Any) -> None:
    reply = await able.client.chat.completions.create(**ASKED)
    (choice,) = reply.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "Let me see.")
    weather, clock = choice.message.tool_calls
    assert (weather.type, weather.function.name) == ("function", "weather")
    assert json.loads(weather.function.arguments) == {"city": "Köln", "days": 2}
    assert (clock.function.name, clock.function.arguments) == ("clock", "{}")
    assert weather.id != clock.id


async def test_the_deltas_of_a_stream_join_to_the_whole_answer(able: Any) -> None:
    whole = (await able.client.chat.completions.create(**ASKED)).choices[0]
    async with able.client.chat.completions.stream(**ASKED) as stream:
        events = [event.type async for event in stream]
        streamed = (await stream.get_final_completion()).choices[0]
    assert events.count("tool_calls.function.arguments.done") == 2
    assert (streamed.finish_reason, streamed.message.content) == (whole.finish_reason, whole.message.content)
    functions = [
        [(call.type, call.function.name, call.function.arguments) for call in choice.message.tool_calls]
        for choice in (streamed, whole)
    ]
    assert functions[0] == functions[1]


async def test_without_parallel_calls_there_is_one(able: Any) -> None:
    asked = {**ASKED, "parallel_tool_calls": False}
    reply = await able.client.chat.completions.create(**asked)
    assert [call.function.name for call in reply.choices[0].message.tool_calls] == ["weather"]


async def test_a_text_that_the_length_ends_has_the_calls_so_far(able: Any) -> None:
    able.target.script = None
    asking = asyncio.create_task(able.client.chat.completions.create(**ASKED))
    await able.target.until(lambda: able.target.open)
    [request_id] = able.target.open
    able.target.emit(request_id, ONE[:60], finish="length")
    (choice,) = (await asking).choices
    assert choice.finish_reason == "length"
    assert choice.message.tool_calls[0].function.arguments == '{"city": "Köln"'


async def test_the_template_gets_the_tools_and_the_calls_of_before(able: Any, tokenizer: Any) -> None:
    called = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Köln"}'}}
    messages = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [called]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "rain"}]},
    ]
    await able.client.chat.completions.create(**{**ASKED, "messages": messages})
    [spec] = able.target.submitted.values()
    text = tokenizer.decode(spec.prompt_token_ids)
    assert '<s>assistant\n<tool_call>{"city": "Köln"}</tool_call></s><s>tool\nrain</s>' in text
    assert '"description": "of a city"' in text
    told = (await able.post("/tokenize", messages=messages, tools=[WEATHER, CLOCK])).json()
    assert told["tokens"] == spec.prompt_token_ids


async def test_a_choice_of_none_leaves_the_tools_out(able: Any, tokenizer: Any) -> None:
    reply = await able.client.chat.completions.create(**ASKED, tool_choice="none")
    assert reply.choices[0].message.content == TWO
    assert reply.choices[0].message.tool_calls is None
    [spec] = able.target.submitted.values()
    assert "tools" not in tokenizer.decode(spec.prompt_token_ids)


async def test_a_demanded_call_reaches_the_target_as_a_grammar(able: Any) -> None:
    await able.client.chat.completions.create(**ASKED, tool_choice="required")
    await able.client.chat.completions.create(**ASKED, tool_choice="auto")
    required, auto = able.target.submitted.values()
    assert required.grammar.kind == "grammar"
    assert auto.grammar is None


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [CLOCK], "tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"tools": [CLOCK], "tool_choice": "some"}, "tool_choice"),
        ({"tools": [{"type": "retrieval"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": 3}}]}, "tools[0].function.parameters"),
        ({"functions": [{"name": "f"}]}, "functions"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "["}}]}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "3"}}]}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            {
                "messages": [
                    {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": MANY_VALUES}}]}
                ]
            },
            "messages",
        ),
        (
            {
                "tool_choice": "required",
                "tools": [{"type": "function", "function": {"name": "f", "parameters": {"title": "x" * 70_000}}}],
            },
            "tools",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"title": "x" * 2**20}}}]},
            "tools",
        ),
        ({"tools": [{"type": "function", "function": {"name": "f", "more": ["x" * 2**20]}}]}, "tools"),
    ],
)
async def test_what_is_wrong_with_tools_is_named(able: Any, asked: dict[str, Any], param: str) -> None:
    response = await able.post("/v1/chat/completions", **{"messages": [USER], **asked})
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "f"}}])
async def test_a_number_that_would_become_another_one_is_named(able: Any, choice: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2**53]}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    response = await able.post("/v1/chat/completions", messages=[USER], tools=[CLOCK, tool], tool_choice=choice)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "tools")
    assert "tools: parameters of 'f': enum: 9007199254740992 is not kept" in response.json()["error"]["message"]
    assert "(at #/properties/a)" in response.json()["error"]["message"]


async def test_a_schema_of_which_no_grammar_can_be_made_is_named(able: Any) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"items": {"type": "nothing"}}}}
    response = await able.post("/v1/chat/completions", messages=[USER], tools=[CLOCK, tool], tool_choice="required")
    assert (response.status_code, response.json()["error"]["param"]) == (400, "tools")
    assert "tools: parameters of 'f': Invalid type: nothing (at #/items)" in response.json()["error"]["message"]
    endless = {"type": "object", "required": ["x"], "properties": {"x": {"$ref": "#"}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": endless}}
    response = await able.post("/v1/chat/completions", messages=[USER], tools=[tool], tool_choice="required")
    assert (response.status_code, response.json()["error"]["param"]) == (400, "tools")
    assert "parameters of 'f': no text fits it" in response.json()["error"]["message"]
    both = {"tools": [CLOCK], "tool_choice": "required", "response_format": {"type": "json_object"}}
    response = await able.post("/v1/chat/completions", messages=[USER], **both)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "tool_choice")


@pytest.mark.parametrize("depth", [900, 5000])
async def test_what_is_nested_too_deeply_is_named(able: Any, depth: int) -> None:
    arguments = '{"a":' + "[" * depth + "]" * depth + "}"
    said = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}
    response = await able.post("/v1/chat/completions", messages=[said])
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith("messages")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
@pytest.mark.parametrize("choice", ["required", "auto", "none"])
async def test_a_schema_of_any_depth_that_json_has_is_answered(able: Any, path: str, choice: str) -> None:
    for depth in (80, 160, 320, 480, 640, 800, 900, 940, 960, 970, 980, 985, 990):
        function = {"name": "f", "parameters": "SCHEMA"}
        of_chat = path == "/v1/chat/completions"
        tool = {"type": "function", **({"function": function} if of_chat else function)}
        asked = {"messages": [USER]} if of_chat else {"input": "hi"}
        schema = '{"items":' * depth + "{}" + "}" * depth
        body = json.dumps({**asked, "tools": [tool], "tool_choice": choice}).replace('"SCHEMA"', schema)
        reply = await able.http.post(path, content=body, headers={"content-type": "application/json"})
        assert reply.status_code in (200, 400), (depth, reply.text)


@pytest.mark.parametrize(
    "asked",
    [
        {"tools": [CLOCK]},
        {"messages": [USER, {"role": "tool", "content": "rain", "tool_call_id": "c1"}]},
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}]},
    ],
)
async def test_a_model_without_a_tool_syntax_says_so(gateway: Any, asked: dict[str, Any]) -> None:
    response = await gateway.post("/v1/chat/completions", **{"messages": [USER], **asked})
    assert response.status_code == 400
    assert "none of the tool syntaxes" in response.json()["error"]["message"]
