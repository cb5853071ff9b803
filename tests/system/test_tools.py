"""An agent of three calls with the openai client's own helpers: real processes, a model of bytes, drafts on and off."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from starspec.harness.servers import POLL_S, START_S, StarspecServer, free_port

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

TEMPLATE = (
    '{% if tools %}{{ tools | tojson }}: <tool_call>{"name", "arguments"}</tool_call>\n{% endif %}'
    "{% for message in messages %}{{ message.role }}: {{ message.content or '' }}"
    "{% for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}\n"
    "{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)
PRICES = {"apple": 2, "pear": 3, "plum": 5}


def tool(name: str, **properties: Any) -> Any:
    parameters = {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


FRUIT = {"enum": sorted(PRICES)}
DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}
TOOLS = [tool("price", fruit=FRUIT), tool("multiply", a=DIGIT, b=DIGIT)]
PLAN: list[Any] = [{"type": "function", "function": {"name": name}} for name in ("price", "multiply")]
CHOICES = [PLAN[0], "required", PLAN[1]]


@pytest.fixture(scope="module")
def client(byte_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAI]:
    folder = tmp_path_factory.mktemp("caller") / "model"
    shutil.copytree(byte_model, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    port = free_port()
    server = StarspecServer(
        *("up", str(folder), "--draft", str(folder), "--draft-quantization", "int4", "--dtype", "float32"),
        *("--port", str(port), "--targets", "1", "--max-model-len", "1024", "--served-model-name", "caller"),
    )
    try:
        wait_until_up(f"http://127.0.0.1:{port}", server)
        yield OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none")
    finally:
        server.end()


def wait_until_up(url: str, server: StarspecServer) -> None:
    deadline_s, pause = time.monotonic() + START_S, threading.Event()
    while f"ready at {url}/v1" not in server.output():
        assert time.monotonic() < deadline_s, server.output()
        assert server.process.poll() is None, server.output()
        pause.wait(POLL_S)


def run(name: str, arguments: dict[str, Any]) -> int:
    return PRICES[arguments["fruit"]] if name == "price" else arguments["a"] * arguments["b"]


def asked(messages: list[Any], choice: Any, **sampling: Any) -> dict[str, Any]:
    given = {"model": "caller", "messages": messages, "tools": TOOLS, "tool_choice": choice, **sampling}
    return {**given, "parallel_tool_calls": False}


def streamed(client: OpenAI, speculative: bool, **request: Any) -> Any:
    """The completion that the client's helper assembles of the deltas."""
    with client.chat.completions.stream(**request, extra_body={"speculative": speculative}) as stream:
        return stream.get_final_completion()


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 1, "seed": 5}], ids=["greedy", "sampled"])
def test_an_agent_makes_the_same_three_calls_with_drafts_and_without(client: OpenAI, sampling: dict[str, Any]) -> None:
    messages: list[Any] = [{"role": "user", "content": "What do an apple and a pear cost, multiplied?"}]
    num_accepted = 0
    for choice in CHOICES:
        request = asked(messages, choice, **sampling)
        drafted = streamed(client, speculative=True, **request)
        others = [
            client.chat.completions.create(**request, extra_body={"speculative": True}),
            client.chat.completions.create(**request, extra_body={"speculative": False}),
            streamed(client, speculative=False, **request),
        ]
        [call] = drafted.choices[0].message.tool_calls
        assert drafted.choices[0].finish_reason == "tool_calls"
        for other in others:
            [same] = other.choices[0].message.tool_calls
            assert (same.function.name, same.function.arguments) == (call.function.name, call.function.arguments)
            assert other.choices[0].finish_reason == "tool_calls"
        assert choice == "required" or call.function.name == choice["function"]["name"]
        result = run(call.function.name, json.loads(call.function.arguments))
        messages += [
            {"role": "assistant", "content": None, "tool_calls": [call.model_dump(include={"id", "type", "function"})]},
            {"role": "tool", "tool_call_id": call.id, "content": str(result)},
        ]
        drafts = others[0].model_extra["metrics"]["speculative_decoding"]
        num_accepted += drafts["num_accepted_draft_tokens"]
    assert num_accepted > 100  # mostly forced: the syntax of calls, names and keys
