"""Predicted outputs: what reaches the target, and what the usage says of them."""

from __future__ import annotations

from typing import Any

import pytest

USER = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    "content", ["wörld", [{"type": "text", "text": "wör"}, {"type": "text", "text": "ld"}]], ids=["text", "parts"]
)
async def test_the_predicted_text_reaches_the_target_as_tokens(gateway: Any, content: Any) -> None:
    prediction = {"type": "content", "content": content}
    reply = await gateway.post("/v1/chat/completions", messages=[USER], n=2, prediction=prediction)
    assert reply.status_code == 200
    (_, first), (_, second) = gateway.target.submitted.items()
    tokenized = await gateway.post("/tokenize", prompt="wörld", add_special_tokens=False)
    assert first.prediction == second.prediction == tokenized.json()["tokens"]
    assert first.prompt_token_ids == second.prompt_token_ids


async def test_usage_tells_what_became_of_the_prediction(gateway: Any) -> None:
    given: dict[str, Any] = {"model": "toy-model", "messages": [USER]}
    prediction = {"type": "content", "content": "world"}
    whole = await gateway.client.chat.completions.create(**given, prediction=prediction)
    details = whole.usage.completion_tokens_details
    assert (details.accepted_prediction_tokens, details.rejected_prediction_tokens) == (5, 3)
    options = {"include_usage": True}
    stream = await gateway.client.chat.completions.create(
        **given, prediction=prediction, stream=True, stream_options=options
    )
    *_, last = [chunk async for chunk in stream]
    assert last.usage.completion_tokens_details == details
    without = await gateway.client.chat.completions.create(**given)
    assert without.usage.completion_tokens_details is None


async def test_a_prediction_that_could_never_fit_is_refused(gateway: Any) -> None:
    long = {"type": "content", "content": "x" * 100_000}
    reply = await gateway.post("/v1/chat/completions", messages=[USER], prediction=long)
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, "prediction")


@pytest.mark.parametrize(
    ("prediction", "param"),
    [
        ("text", "prediction"),
        ({"type": "picture", "content": "x"}, "prediction.type"),
        ({"type": "content"}, "prediction.content"),
        ({"type": "content", "content": [{"type": "image"}]}, "prediction.content[0].type"),
    ],
)
async def test_what_is_no_prediction_is_refused_by_name(gateway: Any, prediction: Any, param: str) -> None:
    reply = await gateway.post("/v1/chat/completions", messages=[USER], prediction=prediction)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


async def test_a_completion_has_no_prediction(gateway: Any) -> None:
    reply = await gateway.post("/v1/completions", prompt="hi", prediction={"type": "content", "content": "x"})
    assert reply.status_code == 400
    assert "it is for /v1/chat/completions" in reply.json()["error"]["message"]
