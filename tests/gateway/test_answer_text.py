"""Text and its places through the gateway, where the text comes from the target's own code and not from a script."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def make_target(make_spelling_target: Callable[[str], Any]) -> Callable[[str], Any]:
    return make_spelling_target


async def choices_of(gateway: Any, path: str = "/v1/completions", **body: Any) -> tuple[list[Any], list[list[Any]]]:
    """The choices of the whole reply, and for each the choices of the stream's chunks."""
    whole = (await gateway.post(path, **body)).json()["choices"]
    reply = await gateway.post(path, **body, stream=True)
    events = [json.loads(event.removeprefix("data: ")) for event in reply.text.split("\n\n")[:-2]]
    chunks = [choice for event in events for choice in event["choices"]]
    return whole, [[each for each in chunks if each["index"] == index] for index in range(len(whole))]


def joined(chunks: list[Any], name: str) -> list[Any]:
    return [entry for chunk in chunks for entry in chunk["logprobs"][name]]


@pytest.mark.parametrize("char", ["日", "🚀", "한", "\u00e9"])
@pytest.mark.parametrize("num_left", [1, 2])
async def test_a_character_that_the_prompt_begins_is_in_the_answer(gateway: Any, char: str, num_left: int) -> None:
    ids = gateway.target._encode(f"a {char}")
    if len(char.encode()) <= num_left:
        num_left = 1
    gateway.target.answer = [*ids[-num_left:], *gateway.target._encode(" go")]
    whole, parts = await choices_of(gateway, prompt=ids[:-num_left], n=2, logprobs=0)
    for choice, chunks in zip(whole, parts, strict=True):
        assert choice["text"] == "".join(chunk["text"] for chunk in chunks) == f"{char} go"
        assert choice["logprobs"]["text_offset"] == [0] * num_left + [1, 2, 3] == joined(chunks, "text_offset")
    (stopped,), _ = await choices_of(gateway, prompt=ids[:-num_left], stop=[f"{char} g"])
    assert (stopped["text"], stopped["finish_reason"]) == ("", "stop")


async def test_a_chat_has_every_character_whatever_rounds_cut(gateway: Any) -> None:
    gateway.target.answer = gateway.target._encode("I 🚀 go 👨‍👩‍👧")
    body = {"messages": [{"role": "user", "content": "hi"}]}
    (whole,), (chunks,) = await choices_of(gateway, "/v1/chat/completions", **body)
    streamed = "".join(chunk["delta"].get("content", "") for chunk in chunks)
    assert whole["message"]["content"] == streamed == "I 🚀 go 👨‍👩‍👧"


async def test_offsets_are_places_in_the_text(gateway: Any) -> None:
    gateway.target.answer = gateway.target._encode("I 🚀 go")
    (whole,), (chunks,) = await choices_of(gateway, prompt="hi", logprobs=0)
    assert whole["logprobs"]["text_offset"] == [0, 1, 2, 2, 2, 2, 3, 4, 5] == joined(chunks, "text_offset")


async def test_a_special_token_that_is_skipped_takes_no_place(gateway: Any) -> None:
    encode = gateway.target._encode
    gateway.target.answer = [256, *encode("ab"), 256, *encode("c"), 257]
    (whole,), (chunks,) = await choices_of(gateway, prompt="hi", logprobs=0)
    assert whole["text"] == "abc"
    assert whole["logprobs"]["text_offset"] == [0, 0, 1, 2, 2, 3] == joined(chunks, "text_offset")
    (shown,), _ = await choices_of(gateway, prompt="hi", logprobs=0, skip_special_tokens=False)
    assert shown["text"] == "<s>ab<s>c"
    assert shown["logprobs"]["text_offset"] == [0, 3, 4, 5, 8, 9]


async def test_no_offset_is_behind_the_text_that_a_stop_string_cut(gateway: Any) -> None:
    gateway.target.answer = gateway.target._encode("go home now")
    (whole,), (chunks,) = await choices_of(gateway, prompt="hi", logprobs=0, stop=["home"])
    assert whole["text"] == "go "
    assert whole["logprobs"]["text_offset"] == [0, 1, 2, 3, 3, 3, 3]
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert joined(chunks, name) == whole["logprobs"][name]
    assert "".join(chunk["text"] for chunk in chunks) == "go "


@pytest.mark.parametrize("before", ["", "x", "xy"])
async def test_text_that_was_held_back_has_the_offsets_of_the_whole_reply(gateway: Any, before: str) -> None:
    """Each round ends elsewhere in what may have begun a stop string."""
    gateway.target.answer = gateway.target._encode(f"{before}go home now")
    (whole,), (chunks,) = await choices_of(gateway, prompt="hi", logprobs=0, stop=["homes"])
    assert whole["text"] == f"{before}go home now"
    assert whole["logprobs"]["text_offset"] == [*range(len(whole["text"]))] == joined(chunks, "text_offset")
