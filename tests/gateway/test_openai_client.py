"""The gateway through the eyes of the official client."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from starspec.ids import RequestId
from starspec.wire.messages import Rejected

MESSAGES = [{"role": "user", "content": "hi"}]


async def test_models_are_listed_and_retrieved(gateway: Any) -> None:
    listed = await gateway.client.models.list()
    assert [model.id for model in listed.data] == ["toy-model"]
    card = await gateway.client.models.retrieve("toy-model")
    assert card.object == "model"
    assert card.max_model_len == 64


async def test_a_chat_answer_is_the_text_of_all_outputs(gateway: Any) -> None:
    reply = await gateway.client.chat.completions.create(model="toy-model", messages=MESSAGES)
    assert reply.id.startswith("chatcmpl-")
    assert reply.object == "chat.completion"
    assert reply.system_fingerprint.startswith("starspec-")
    (choice,) = reply.choices
    assert (choice.message.role, choice.message.content) == ("assistant", "Hello, wörld")
    assert choice.finish_reason == "stop"
    (spec,) = gateway.target.submitted.values()
    assert reply.usage.prompt_tokens == len(spec.prompt_token_ids)
    assert reply.usage.completion_tokens == len("Hello, wörld".encode()) + 1  # the end token counts
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens


async def test_a_chat_stream_starts_with_the_role_and_ends_with_the_reason(gateway: Any) -> None:
    stream = await gateway.client.chat.completions.create(model="toy-model", messages=MESSAGES, stream=True)
    chunks = [chunk async for chunk in stream]
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert (deltas[0].role, deltas[0].content) == ("assistant", "")
    assert all(delta.role is None for delta in deltas[1:])
    assert [delta.content for delta in deltas[1:]] == ["Hel", "lo, ", "wörld"]
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None, None, None, "stop"]
    assert all(chunk.usage is None for chunk in chunks)


async def test_include_usage_adds_one_last_chunk_without_choices(gateway: Any) -> None:
    options = {"include_usage": True}
    stream = await gateway.client.chat.completions.create(
        model="toy-model", messages=MESSAGES, stream=True, stream_options=options
    )
    *chunks, last = [chunk async for chunk in stream]
    assert all(chunk.usage is None for chunk in chunks)
    assert all(chunk.choices for chunk in chunks)
    assert last.choices == []
    assert last.usage.completion_tokens == 14
    assert last.metrics["speculative_decoding"]["num_spec_steps"] == 2
    assert all("metrics" not in (chunk.model_extra or {}) for chunk in chunks)


async def test_continuous_usage_counts_up(gateway: Any) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    stream = await gateway.client.completions.create(
        model="toy-model", prompt="hi", stream=True, stream_options=options
    )
    counts = [chunk.usage.completion_tokens async for chunk in stream]
    assert counts == [3, 7, 14, 14]


@pytest.mark.parametrize("prompt", ["ab", ["ab"], "ids", "list of ids"])
async def test_every_form_of_a_prompt_means_the_same(gateway: Any, tokenizer: Any, prompt: Any) -> None:
    ids = tokenizer.encode("ab")
    given = {"ids": ids, "list of ids": [ids]}.get(prompt, prompt) if isinstance(prompt, str) else prompt
    reply = await gateway.client.completions.create(model="toy-model", prompt=given)
    (spec,) = gateway.target.submitted.values()
    assert spec.prompt_token_ids == ids
    assert reply.id.startswith("cmpl-")
    assert reply.choices[0].text == "Hello, wörld"


async def test_choices_are_numbered_prompt_by_prompt(gateway: Any, tokenizer: Any) -> None:
    gateway.target.script = lambda spec: [f"{tokenizer.decode(spec.prompt_token_ids)}{spec.sampling.seed}"]
    reply = await gateway.client.completions.create(model="toy-model", prompt=["a", "b"], n=3, seed=7)
    assert [choice.index for choice in reply.choices] == [0, 1, 2, 3, 4, 5]
    assert [choice.text for choice in reply.choices] == ["a7", "a8", "a9", "b7", "b8", "b9"]
    assert reply.usage.prompt_tokens == 2
    assert reply.usage.completion_tokens == 6 * 3


async def test_streamed_choices_are_told_apart_by_index(gateway: Any) -> None:
    gateway.target.script = lambda spec: [str(spec.sampling.seed), "!"]
    stream = await gateway.client.chat.completions.create(
        model="toy-model", messages=MESSAGES, n=3, seed=1, stream=True
    )
    texts, roles, reasons = ["", "", ""], [0, 0, 0], [None, None, None]
    async for chunk in stream:
        (choice,) = chunk.choices
        texts[choice.index] += choice.delta.content or ""
        roles[choice.index] += choice.delta.role == "assistant"
        reasons[choice.index] = choice.finish_reason or reasons[choice.index]
    assert texts == ["1!", "2!", "3!"]
    assert roles == [1, 1, 1]
    assert reasons == ["stop"] * 3


async def test_chat_logprobs_hold_the_tokens_bytes_and_alternatives(gateway: Any) -> None:
    reply = await gateway.client.chat.completions.create(
        model="toy-model", messages=MESSAGES, logprobs=True, top_logprobs=2
    )
    content = reply.choices[0].logprobs.content
    assert len(content) == reply.usage.completion_tokens
    assert bytes(byte for entry in content[:-1] for byte in entry.bytes).decode() == "Hello, wörld"
    assert content[0].token == "H"
    assert content[-1].token == "</s>"
    assert content[8].token == r"bytes:\xc3"  # half of ö
    assert {len(entry.top_logprobs) for entry in content} == {2}
    assert content[0].top_logprobs[0].token == "H"
    assert {entry.logprob for entry in content} == {-0.5}


async def test_chat_logprobs_without_a_number_have_no_alternatives(gateway: Any) -> None:
    reply = await gateway.client.chat.completions.create(model="toy-model", messages=MESSAGES, logprobs=True)
    assert all(entry.top_logprobs == [] for entry in reply.choices[0].logprobs.content)


async def test_zero_logprobs_are_those_of_the_tokens_alone(gateway: Any) -> None:
    gateway.target.script = lambda spec: ["ab"]
    [choice] = (await gateway.post("/v1/completions", prompt="hi", logprobs=0)).json()["choices"]
    assert choice["logprobs"]["token_logprobs"] == [-0.5] * 3
    assert [list(each) for each in choice["logprobs"]["top_logprobs"]] == [["a"], ["b"], ["</s>"]]
    [spec] = gateway.target.submitted.values()
    assert spec.logprobs == 0
    [choice] = (await gateway.post("/v1/completions", prompt="hi")).json()["choices"]
    assert choice["logprobs"] is None


async def test_completion_logprobs_are_parallel_lists_with_the_chosen_token_among_the_top(gateway: Any) -> None:
    reply = await gateway.client.completions.create(model="toy-model", prompt="hi", logprobs=1)
    logprobs = reply.choices[0].logprobs
    num_tokens = reply.usage.completion_tokens
    assert [len(each) for each in (logprobs.tokens, logprobs.token_logprobs, logprobs.text_offset)] == [num_tokens] * 3
    assert all(token in top for token, top in zip(logprobs.tokens, logprobs.top_logprobs, strict=True))
    assert logprobs.text_offset[:4] == [0, 1, 2, 3]


async def test_streamed_completion_logprobs_join_to_the_whole_ones(gateway: Any) -> None:
    ask = {"model": "toy-model", "prompt": "hi", "logprobs": 2}
    whole = (await gateway.client.completions.create(**ask)).choices[0].logprobs
    parts = [chunk.choices[0].logprobs async for chunk in await gateway.client.completions.create(**ask, stream=True)]
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert [entry for part in parts for entry in getattr(part, name)] == getattr(whole, name)


async def test_metrics_have_vllms_shape(gateway: Any) -> None:
    reply = await gateway.client.chat.completions.create(model="toy-model", messages=MESSAGES)
    assert reply.metrics["speculative_decoding"] == {
        "mean_acceptance_length": 3.0,
        "draft_acceptance_rate": 0.5,
        "acceptance_histogram": [0, 1, 0, 1, 0],
        "num_spec_steps": 2,
        "num_accepted_draft_tokens": 4,
        "num_draft_tokens": 8,
        "num_spec_tokens": 4,
        "lossless": True,
        "num_relaxed_tokens": 0,
    }
    assert reply.metrics["queue_time_ms"] == 250.0
    assert reply.metrics["time_to_first_token_ms"] == 500.0
    assert reply.metrics["generation_time_ms"] == 2000.0
    assert reply.metrics["tokens_per_second"] == 6.5  # 13 tokens after the first in 2 s


async def test_speculation_is_switched_and_sized_by_request(gateway: Any) -> None:
    for asked, expected in ((False, 0), (True, None), ({"num_speculative_tokens": 2}, 2), (None, None)):
        reply = await gateway.client.completions.create(
            model="toy-model", prompt="hi", extra_body={"speculative": asked}
        )
        assert list(gateway.target.submitted.values())[-1].num_draft_tokens == expected
        metrics = reply.metrics["speculative_decoding"]
        assert metrics["num_draft_tokens"] == 2 * (4 if expected is None else expected)
        assert len(metrics["acceptance_histogram"]) == (4 if expected is None else expected) + 1


async def test_a_request_may_ask_for_a_length_policy(gateway: Any) -> None:
    for asked, policy in (({"length": {"policy": "dsde"}}, "dsde"), ({"length": None}, None), (True, None)):
        await gateway.client.completions.create(model="toy-model", prompt="hi", extra_body={"speculative": asked})
        assert list(gateway.target.submitted.values())[-1].length_policy == policy


async def test_a_request_with_a_prediction_may_ask_for_a_length_policy(gateway: Any) -> None:
    await gateway.client.chat.completions.create(
        model="toy-model",
        messages=[{"role": "user", "content": "hi"}],
        prediction={"type": "content", "content": "hello"},
        extra_body={"speculative": {"length": {"policy": "dsde"}}},
    )
    submitted = list(gateway.target.submitted.values())[-1]
    assert submitted.length_policy == "dsde"
    assert submitted.prediction


async def test_relaxed_verification_is_asked_for_by_request_and_labelled(gateway: Any) -> None:
    for asked, tau in (({"relaxed": {"tau": 0.25}}, 0.25), ({"relaxed": {"tau": 0}}, 0.0), ({"relaxed": None}, 0.0)):
        reply = await gateway.client.completions.create(
            model="toy-model", prompt="hi", extra_body={"speculative": asked}
        )
        assert list(gateway.target.submitted.values())[-1].relaxed_tau == tau
        metrics = reply.metrics["speculative_decoding"]
        assert (metrics["lossless"], metrics["num_relaxed_tokens"]) == ((False, 3) if tau else (True, 0))


async def test_token_ids_come_when_asked_for(gateway: Any, tokenizer: Any) -> None:
    ask = {"model": "toy-model", "prompt": "hi", "extra_body": {"return_token_ids": True}}
    whole = (await gateway.client.completions.create(**ask)).choices[0]
    parts = [chunk.choices[0] async for chunk in await gateway.client.completions.create(**ask, stream=True)]
    assert whole.prompt_token_ids == tokenizer.encode("hi")
    assert [token_id for part in parts for token_id in part.token_ids] == whole.token_ids
    assert tokenizer.decode(whole.token_ids, skip_special_tokens=True) == "Hello, wörld"
    assert ["prompt_token_ids" in part.model_extra for part in parts] == [True, False, False]


async def test_errors_arrive_as_the_clients_own_classes(gateway: Any) -> None:
    create = gateway.client.chat.completions.create
    with pytest.raises(openai.BadRequestError) as bad:
        await create(model="toy-model", messages=MESSAGES, temperature=-1)
    assert (bad.value.param, bad.value.type) == ("temperature", "BadRequestError")
    with pytest.raises(openai.NotFoundError) as missing:
        await create(model="no-such-model", messages=MESSAGES)
    assert missing.value.param == "model"


async def test_a_wrong_key_is_refused_everywhere_but_at_health(start_gateway: Any) -> None:
    gateway = await start_gateway(api_key="sesame")
    assert (await gateway.client.models.list()).data
    stranger = gateway.client.with_options(api_key="guess")
    with pytest.raises(openai.AuthenticationError) as refused:
        await stranger.models.list()
    assert refused.value.response.headers["www-authenticate"] == "Bearer"
    for path in ("/metrics", "/version", "/v1/models", "/openapi.json", "/nowhere"):
        assert (await gateway.http.get(path, headers={"Authorization": ""})).status_code == 401
    assert (await gateway.http.get("/health", headers={"Authorization": ""})).status_code == 200


async def test_a_full_target_is_a_503_that_says_when_to_retry(gateway: Any) -> None:
    gateway.target.refusal = Rejected(RequestId(""), "the waiting line is full", None, 503, 2.5)
    for stream in (False, True):
        with pytest.raises(openai.InternalServerError) as full:
            await gateway.client.completions.create(model="toy-model", prompt="hi", stream=stream)
        assert full.value.status_code == 503
        assert full.value.response.headers["retry-after"] == "3"
