"""`echo` and `prompt_logprobs`: what evaluation harnesses ask for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from starspec.gateway import translate
from starspec.gateway.replies import CompletionLogprobs
from starspec.gateway.token_text import TokenText, echoed_logprobs
from starspec.wire.messages import PromptLogprob

PROMPT = "wörld"  # six tokens: ö is two


async def test_an_echo_is_the_prompt_and_then_the_answer(gateway: Any) -> None:
    reply = await gateway.client.completions.create(model="toy-model", prompt=PROMPT, echo=True, logprobs=1)
    plain = await gateway.client.completions.create(model="toy-model", prompt=PROMPT, logprobs=1)
    (echoed,), (answer,) = reply.choices, plain.choices
    assert echoed.text == PROMPT + answer.text
    assert echoed.logprobs.tokens == ["w", r"bytes:\xc3", r"bytes:\xb6", "r", "l", "d", *answer.logprobs.tokens]
    assert echoed.logprobs.token_logprobs == [
        None,
        -0.25,
        -0.5,
        -0.75,
        -1.0,
        -1.25,
        *answer.logprobs.token_logprobs,
    ]
    assert echoed.logprobs.top_logprobs[0] is None
    assert echoed.logprobs.top_logprobs[6:] == answer.logprobs.top_logprobs
    assert all(len(top) == 2 for top in echoed.logprobs.top_logprobs[1:6])  # the likeliest, and the prompt's own
    assert echoed.logprobs.text_offset[:6] == [0, 1, 1, 2, 3, 4]
    assert echoed.logprobs.text_offset[6:] == [len(PROMPT) + each for each in answer.logprobs.text_offset]
    assert reply.usage == plain.usage


async def test_token_ids_are_echoed_as_their_text(gateway: Any, tokenizer: Any) -> None:
    ids = [256, *tokenizer.encode("hi")]
    reply = await gateway.client.completions.create(model="toy-model", prompt=[ids, ids[1:]], echo=True, logprobs=0)
    assert [choice.text for choice in reply.choices] == ["<s>hiHello, wörld", "hiHello, wörld"]
    assert reply.choices[0].logprobs.text_offset[:3] == [0, 3, 4]
    assert [list(top) for top in reply.choices[0].logprobs.top_logprobs[1:3]] == [["h"], ["i"]]


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_character_that_the_prompt_begins_is_not_echoed_but_left_to_the_answer(
    gateway: Any, tokenizer: Any, is_stream: bool
) -> None:
    """A target puts it into the answer's text, if the answer completes it."""
    begun = tokenizer.encode("wö")[:-1]
    asked = {"model": "toy-model", "prompt": begun, "echo": True}
    reply = await gateway.client.completions.create(**asked, stream=is_stream)
    chunks = [chunk async for chunk in reply] if is_stream else [reply]
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == "wHello, wörld"
    alone = await gateway.client.completions.create(**asked, max_tokens=0)
    assert alone.choices[0].text == "w\ufffd"


@pytest.mark.parametrize("has_logprobs", [True, False])
async def test_an_echo_without_tokens_is_the_prompt_alone(gateway: Any, has_logprobs: bool) -> None:
    asked = {"logprobs": 1} if has_logprobs else {}
    reply = await gateway.client.completions.create(model="toy-model", prompt=PROMPT, echo=True, max_tokens=0, **asked)
    (choice,) = reply.choices
    assert (choice.text, choice.finish_reason, reply.usage.completion_tokens) == (PROMPT, "length", 0)
    assert (len(choice.logprobs.tokens) if choice.logprobs else None) == (6 if has_logprobs else None)


async def test_no_tokens_without_an_echo_are_refused(gateway: Any) -> None:
    response = await gateway.post("/v1/completions", prompt=PROMPT, max_tokens=0)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "max_tokens"


async def test_a_streamed_echo_joins_to_the_whole_one(gateway: Any) -> None:
    asked = {"model": "toy-model", "prompt": [PROMPT, "b"], "n": 2, "echo": True, "logprobs": 2, "seed": 1}
    whole = await gateway.client.completions.create(**asked)
    texts, logprobs = [""] * 4, [CompletionLogprobs([], [], [], []) for _ in range(4)]
    async for chunk in await gateway.client.completions.create(**asked, stream=True):
        (choice,) = chunk.choices
        texts[choice.index] += choice.text
        for name in CompletionLogprobs.__struct_fields__:
            getattr(logprobs[choice.index], name).extend(getattr(choice.logprobs, name))
    assert texts == [choice.text for choice in whole.choices]
    for joined, choice in zip(logprobs, whole.choices, strict=True):
        for name in CompletionLogprobs.__struct_fields__:
            assert getattr(joined, name) == getattr(choice.logprobs, name)


async def test_prompt_logprobs_have_vllms_form(gateway: Any) -> None:
    reply = (await gateway.post("/v1/completions", prompt="abc", prompt_logprobs=1)).json()
    first, second, third = reply["choices"][0]["prompt_logprobs"]
    b, c = gateway.target.submitted.popitem()[1].prompt_token_ids[1:]
    assert first is None
    assert second[str(b)] == {"logprob": -0.25, "rank": 2, "decoded_token": "b"}
    assert third[str(c)] == {"logprob": -0.5, "rank": 3, "decoded_token": "c"}
    assert second["200"]["rank"] == 1
    assert reply["choices"][0]["text"] == "Hello, wörld"


async def test_a_chat_has_the_log_probabilities_of_its_prompt_once(gateway: Any) -> None:
    messages = [{"role": "user", "content": "hi"}]
    reply = (await gateway.post("/v1/chat/completions", messages=messages, prompt_logprobs=0, n=2)).json()
    assert len(reply["prompt_logprobs"]) == reply["usage"]["prompt_tokens"]
    assert all(len(each) == 1 for each in reply["prompt_logprobs"][1:])
    assert "prompt_logprobs" not in reply["choices"][0]


@pytest.mark.parametrize(
    ("path", "asked", "param"),
    [
        ("/v1/completions", {"prompt": "a", "prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ("/v1/completions", {"prompt": "a", "prompt_logprobs": 21}, "prompt_logprobs"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "echo": True}, "echo"),
    ],
)
async def test_what_cannot_be_told_of_a_prompt_is_refused_by_name(
    gateway: Any, path: str, asked: dict[str, Any], param: str
) -> None:
    response = await gateway.post(path, **asked)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("asked", [{"echo": True, "logprobs": 2}, {"prompt_logprobs": 2}])
async def test_log_probabilities_of_very_many_prompt_tokens_are_refused_before_a_target_computes_them(
    gateway: Any, monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any]
) -> None:
    monkeypatch.setattr(translate, "MAX_SCORES", 3 * 6)
    assert (await gateway.post("/v1/completions", prompt=PROMPT, **asked)).status_code == 200
    for more in ({"prompt": [PROMPT, "a"]}, {"prompt": PROMPT, "n": 2}):
        reply = await gateway.post("/v1/completions", **more, **asked)
        assert reply.status_code == 400
        assert "log-probabilities of prompts are asked for, more than the 18" in reply.json()["error"]["message"]
    assert len(gateway.target.submitted) == 1


def test_tokens_that_the_text_does_not_spell_have_no_length(tokenizer: Any) -> None:
    tokens = TokenText(tokenizer)
    ids = [256, *tokenizer.encode(" ab")]  # as by a tokenizer with a BOS token that puts a space in front
    entries = [PromptLogprob(token_id, -1.0, 1, []) for token_id in ids[1:]]
    assert echoed_logprobs(ids, entries, tokens, "ab", 0).text_offset == [0, 0, 0, 1]


def test_a_token_that_ends_within_a_character_begins_where_its_first_one_does() -> None:
    pieces = {1: b"Go", 2: b" \xf0\x9f", 3: b"\x9a"}  # of the rocket, whose last byte is the answer's
    tokens: Any = SimpleNamespace(bytes_of=pieces.__getitem__, text_of=str)
    entries = [PromptLogprob(token_id, -0.5, 1, []) for token_id in (2, 3)]
    assert echoed_logprobs([1, 2, 3], entries, tokens, "Go ", 0).text_offset == [0, 2, 3]
