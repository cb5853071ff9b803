"""`response_format` and `structured_outputs` reach the target as a grammar; a wrong one is a 400 with the place."""

from __future__ import annotations

import asyncio
from threading import Event
from typing import Any

import pytest

from starspec.gateway import answer_form
from starspec.gateway.answer_form import USUAL_CPU_S
from starspec.grammars.trial import TooSlow
from starspec.sampling.grammar import GrammarSpec
from starspec.wire.messages import GRAMMAR_FAILED

USER = {"role": "user", "content": "hi"}
BODIES = {"/v1/completions": {"prompt": "hi"}, "/v1/chat/completions": {"messages": [USER]}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
PATIENCE_S = 20.0  # of a test that fails
SCHEMA_TEXT = '{"type":"object","properties":{"a":{"type":"integer"}}}'


def json_schema(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": True}}}


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    ("form", "grammar"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": None, "structured_outputs": None}, None),
        ({"response_format": {"type": "text", "json_schema": None}}, None),
        ({"response_format": {"type": "json_object"}}, GrammarSpec("json", '{"type":"object"}')),
        (json_schema(SCHEMA), GrammarSpec("json", SCHEMA_TEXT)),
        ({"structured_outputs": {"json": SCHEMA}}, GrammarSpec("json", SCHEMA_TEXT)),
        ({"structured_outputs": {"json_object": True}}, GrammarSpec("json", '{"type":"object"}')),
        ({"structured_outputs": {"regex": "[a-z]+"}}, GrammarSpec("regex", "[a-z]+")),
        ({"structured_outputs": {"choice": ["ja", "né"]}}, GrammarSpec("choice", '["ja", "né"]')),
        ({"structured_outputs": {"grammar": 'start: "a"'}}, GrammarSpec("grammar", 'start: "a"')),
        (
            {"structured_outputs": {"grammar": 'start: <s> "a"'}},  # a special token of the model
            GrammarSpec("grammar", 'start: <s> "a"'),
        ),
        ({"structured_outputs": {"regex": "a", "whitespace_pattern": None}}, GrammarSpec("regex", "a")),
    ],
)
async def test_the_form_reaches_the_target(gateway: Any, path: str, form: Any, grammar: Any) -> None:
    reply = await gateway.post(path, **BODIES[path], **form, n=2)
    assert reply.status_code == 200, reply.text
    assert [spec.grammar for spec in gateway.target.submitted.values()] == [grammar, grammar]


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    ("form", "param", "words"),
    [
        ({"response_format": "json_object"}, "response_format", "dictionary"),
        ({"response_format": {"type": "yaml"}}, "response_format.type", "not 'yaml'"),
        ({"response_format": {}}, "response_format.type", "must be 'text', 'json_object' or 'json_schema'"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema", "is required"),
        ({"response_format": {"type": "json_object", "schema": {}}}, "response_format", "'schema' is not supported"),
        ({"response_format": {"type": "text", "json_schema": {}}}, "response_format", "'json_schema' is not supported"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "strikt": True}}},
            "response_format.json_schema",
            "'strikt' is not supported",
        ),
        (json_schema("integer"), "response_format.json_schema.schema", "is required"),
        (
            json_schema({"properties": {"a": {"items": {"type": "intger"}}}}),
            "response_format.json_schema.schema",
            "response_format.json_schema.schema: Invalid type: intger (at #/properties/a/items)",
        ),
        (
            json_schema({"type": "integer", "multipleOf": 9_999_991}),
            "response_format.json_schema.schema",
            "takes longer",
        ),
        (
            {"structured_outputs": {"regex": ".*" * 8000}},
            "structured_outputs.regex",
            "takes longer than 0.5 s to compile",
        ),
        (json_schema({"pattern": "é" * 20_000}), "response_format.json_schema.schema", "32768 are allowed"),
        ({"structured_outputs": {"json": {"type": "x"}}}, "structured_outputs.json", "Invalid type: x (at #)"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json", "line 1 column 2"),
        ({"structured_outputs": {"regex": "(a"}}, "structured_outputs.regex", "unclosed group"),
        ({"structured_outputs": {"grammar": "start: x"}}, "structured_outputs.grammar", 'unknown name: "x"'),
        ({"structured_outputs": {"regex": 1}}, "structured_outputs.regex", "must be a string"),
        ({"structured_outputs": {"choice": [1]}}, "structured_outputs.choice", "a list of strings"),
        ({"structured_outputs": {}}, "structured_outputs", "exactly one of"),
        ({"structured_outputs": {"regx": "a"}}, "structured_outputs", "'regx' is not supported"),
        (
            {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
            "response_format",
            "exclude each other",
        ),
    ],
)
async def test_a_wrong_form_is_a_400_that_names_it(gateway: Any, path: str, form: Any, param: str, words: str) -> None:
    reply = await gateway.post(path, **BODIES[path], **form)
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, param), error
    assert words in error["message"]
    assert not gateway.target.submitted


@pytest.mark.parametrize(
    ("lacks", "asked", "says"),
    [
        ("has_grammars", {"structured_outputs": {"regex": "a"}}, "cannot hold answers to a grammar"),
        ("has_bad_words", {"bad_words": ["a"]}, "too old to keep them out"),
    ],
)
async def test_a_target_that_would_ignore_a_demand_gets_none(
    start_gateway: Any, make_target: Any, monkeypatch: pytest.MonkeyPatch, lacks: str, asked: dict, says: str
) -> None:
    monkeypatch.setattr(type(make_target("old")), lacks, False)
    gateway = await start_gateway()
    await gateway.post("/v1/completions", prompt="hi")
    reply = await gateway.post("/v1/completions", prompt="hi", **asked)
    assert reply.status_code == 400
    assert says in reply.json()["error"]["message"]
    assert len(gateway.target.submitted) == 1


async def test_a_grammar_that_outgrows_its_limits_is_the_clients_error(gateway: Any) -> None:
    why = f"{GRAMMAR_FAILED}: lexer error: too many states"
    gateway.target.script = None
    body = {"prompt": "hi", "structured_outputs": {"regex": "a+"}}
    asked = asyncio.create_task(gateway.post("/v1/completions", **body))
    await gateway.target.until(lambda: bool(gateway.target.submitted))
    (request_id,) = gateway.target.submitted
    gateway.target.emit(request_id, "", finish="error", stop_reason=why)
    reply = await asked
    assert (reply.status_code, reply.json()["error"]["message"]) == (400, why)


async def test_grammars_that_take_long_keep_usual_ones_waiting_for_a_moment(
    start_gateway: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What takes long has no end here until the test says so, however fast the machine is."""
    has_begun, is_over = Event(), Event()

    class ToyTrial:
        def __init__(self, max_cpu_s: float, special_tokens: tuple[str, ...]) -> None:
            self._max_cpu_s = max_cpu_s

        def check(self, spec: GrammarSpec) -> None:
            if spec.text.startswith("slow"):
                if self._max_cpu_s > USUAL_CPU_S:
                    has_begun.set()
                    assert is_over.wait(PATIENCE_S)
                raise TooSlow("too slow", "structured_outputs.regex")

        def close(self) -> None:
            pass

    monkeypatch.setattr(answer_form, "Trial", ToyTrial)
    gateway = await start_gateway()

    def asked(regex: str) -> Any:
        return gateway.post("/v1/completions", prompt="hi", structured_outputs={"regex": regex})

    slow = [asyncio.create_task(asked(f"slow{number}")) for number in range(12)]
    try:
        assert await asyncio.to_thread(has_begun.wait, PATIENCE_S)
        for number in range(3):
            assert (await asked(f"[a-z]{{{number}}}")).status_code == 200
        assert not any(each.done() for each in slow)
    finally:
        is_over.set()
    assert {(await each).status_code for each in slow} == {400}
