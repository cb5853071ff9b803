"""Whatever a client sends, it gets an answer or is told what is wrong; the gateway itself never fails."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from starspec.gateway.responses.schema import ResponsesRequest
from starspec.gateway.schema import ChatCompletionRequest, CompletionRequest
from starspec.gateway.unsupported import UNSUPPORTED

NUM_BODIES = 250
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 7, 63, 2**31, 2**63, -(10**30), 0.5, -0.5, 1e308, float("nan"), float("inf")),
    *("", "a", "\ud800", "\x00", "auto", "x" * 80, [], [""], ["a", "b"], [0], [1, 2], [[1], [2]], [[]], [None], {}),
    *({"a": 1}, {"5": 1.0}, {"5": None}, {"num_speculative_tokens": 2}, {"include_usage": True}, [{"role": "user"}]),
    *([{"role": "user", "content": "hi"}], [{"role": "x", "content": None}], {"type": "text"}, [{}], [[["deep"]]]),
]


@pytest.mark.parametrize(
    ("path", "kind", "base"),
    [
        ("/v1/completions", CompletionRequest, {"prompt": "hi"}),
        ("/v1/responses", ResponsesRequest, {"input": "hi"}),
        ("/v1/chat/completions", ChatCompletionRequest, {"messages": [{"role": "user", "content": "hi"}]}),
    ],
)
async def test_any_body_is_answered_or_refused_by_name(gateway: Any, path: str, kind: Any, base: Any) -> None:
    rng = random.Random(path)
    names = [*kind.model_fields, *UNSUPPORTED, "nobody_knows", "\ud800"]
    statuses = []
    for _ in range(NUM_BODIES):
        body = base | {rng.choice(names): rng.choice(VALUES) for _ in range(rng.randint(0, 3))}
        reply = await gateway.http.post(path, content=json.dumps(body), headers={"content-type": "application/json"})
        statuses.append(reply.status_code)
        assert reply.status_code in (200, 400, 404), (body, reply.text)
    assert {200, 400} <= set(statuses)
    assert not gateway.target.open
