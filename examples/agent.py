"""An agent of three calls: the model plans with tools, this script runs them. Any OpenAI client works the same way.

starspec up path/to/Qwen2.5-Coder-0.5B-Instruct --spec-method ngram
python examples/agent.py http://127.0.0.1:8000
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from openai import OpenAI

PRICES = {"apple": 2, "pear": 3}
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "price",
            "description": "The price of one fruit",
            "parameters": {
                "type": "object",
                "properties": {"fruit": {"enum": sorted(PRICES)}},
                "required": ["fruit"],
                "additionalProperties": False,
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "multiply",
            "description": "The product of two integers",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                "required": ["a", "b"],
                "additionalProperties": False,
            },
        },
    },
]
PLAN = ["price", "price", "multiply"]  # the tool of each turn; a model of half a billion parameters needs the hint


def run(name: str, arguments: dict[str, Any]) -> int:
    return PRICES[arguments["fruit"]] if name == "price" else arguments["a"] * arguments["b"]


def main(url: str, *, may_choose: bool, speculative: bool) -> None:
    """Args: may_choose: the model chooses the tool of each turn; speculative: drafts are on."""
    started_s = time.monotonic()
    client = OpenAI(base_url=f"{url}/v1", api_key="none")
    model = client.models.list().data[0].id
    question = "Look up the price of an apple, then the price of a pear, then multiply both prices."
    messages: list[Any] = [{"role": "user", "content": question}]
    for name in PLAN:
        choice: Any = "required" if may_choose else {"type": "function", "function": {"name": name}}
        with client.chat.completions.stream(
            model=model,
            messages=messages,
            tools=TOOLS,
            tool_choice=choice,
            parallel_tool_calls=False,
            temperature=0,
            extra_body={"speculative": speculative},
        ) as stream:
            message = stream.get_final_completion().choices[0].message
        [call] = message.tool_calls or []
        result = run(call.function.name, json.loads(call.function.arguments))
        print(f"{call.function.name}({call.function.arguments}) = {result}")
        messages.append(message.model_dump(exclude_none=True, include={"role", "content", "tool_calls"}))
        messages.append({"role": "tool", "tool_call_id": call.id, "content": str(result)})
    reply = client.chat.completions.create(
        model=model, messages=messages, temperature=0, max_tokens=64, extra_body={"speculative": speculative}
    )
    print(reply.choices[0].message.content)
    print(f"{time.monotonic() - started_s:.1f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--choose", action="store_true", help="let the model choose the tool of each turn")
    parser.add_argument("--no-drafts", action="store_true", help="decode without drafts")
    given = parser.parse_args()
    main(given.url, may_choose=given.choose, speculative=not given.no_drafts)
