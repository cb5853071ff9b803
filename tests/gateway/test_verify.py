"""`/v1/verify`: drafts of the client's own, about which a target says how far they are right."""

from __future__ import annotations

from typing import Any

import pytest

from starspec.wire.messages import EngineOutput, Verified


async def asked(gateway: Any, verified: Verified, token_ids: list[int], **body: Any) -> dict[str, Any]:
    """The reply, if the target answers so."""
    target = gateway.target
    target.script = None
    plain = target.send

    def send(message: Any) -> None:
        plain(message)
        for request_id in [*target.open]:
            target.open.pop(request_id)
            output = EngineOutput(request_id, token_ids, "", finish_reason="length", verified=verified)
            target._outbox.put_nowait(output)

    target.send = send
    reply = await gateway.post("/v1/verify", **body)
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


async def test_a_verdict_tells_how_far_a_chain_is_right(gateway: Any, tokenizer: Any) -> None:
    draft = tokenizer.encode("bcx")
    answer = tokenizer.encode("bcd")
    reply = await asked(
        gateway, Verified([0, 1]), answer, prompt="a", draft_token_ids=draft, temperature=0, model="toy-model"
    )
    assert (reply["object"], reply["model"]) == ("verification", "toy-model")
    assert (reply["accepted_length"], reply["accepted_nodes"], reply["token_ids"]) == (2, [0, 1], answer)
    assert (reply["next_token_id"], reply["next_token"]) == (answer[-1], "d")
    assert reply["usage"] == {"prompt_tokens": 1, "completion_tokens": 3, "total_tokens": 4}
    assert "places" not in reply
    [spec] = gateway.target.submitted.values()
    assert (spec.draft.token_ids, spec.draft.parents, spec.draft.num_top) == (draft, None, None)
    assert (spec.max_tokens, spec.num_draft_tokens, spec.sampling.end_token_ids) == (4, 0, ())
    assert spec.sampling.is_greedy


async def test_a_verdict_about_a_tree_has_the_likeliest_tokens_at_each_place(gateway: Any) -> None:
    tops = [[(65, -0.5)], [(66, -1.0)], [(67, -1.5)]]
    body = {"prompt": [64], "draft_token_ids": [65, 66], "parents": [-1, -1], "top_logprobs": 1, "seed": 5}
    reply = await asked(gateway, Verified([1], tops), [66, 67], **body)
    assert [place["node"] for place in reply["places"]] == [-1, 0, 1]
    assert [place["top_logprobs"][0]["token_id"] for place in reply["places"]] == [65, 66, 67]
    [spec] = gateway.target.submitted.values()
    assert (spec.max_tokens, spec.sampling.seed, spec.draft.num_top) == (2, 5, 1)


async def test_a_target_that_generates_instead_of_a_verdict_is_a_501(gateway: Any) -> None:
    reply = await gateway.post("/v1/verify", prompt="a", draft_token_ids=[65], temperature=0)
    assert (reply.status_code, reply.json()["error"]["message"]) == (
        501,
        "the target that answered verifies no drafts: its version is old",
    )


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"draft_token_ids": [1]}, "prompt"),
        ({"prompt": "a"}, "draft_token_ids"),
        ({"prompt": "", "draft_token_ids": [1]}, "prompt"),
        ({"prompt": "a", "draft_token_ids": [999]}, "draft_token_ids"),
        ({"prompt": "a", "draft_token_ids": [1] * 65}, "draft_token_ids"),
        ({"prompt": "a", "draft_token_ids": [1, 2], "parents": [-1]}, "parents"),
        ({"prompt": "a", "draft_token_ids": [1, 1], "parents": [-1, -1]}, "parents"),
        ({"prompt": "a", "draft_token_ids": [1, 2], "parents": [1, -1]}, "parents"),
        ({"prompt": "a", "draft_token_ids": [1], "top_logprobs": 21}, "top_logprobs"),
        ({"prompt": "a", "draft_token_ids": [1], "temperature": -1}, "temperature"),
        ({"prompt": "a", "draft_token_ids": [1], "stream": True}, "stream"),
        ({"prompt": "a" * 62, "draft_token_ids": [1, 2]}, "draft_token_ids"),
    ],
)
async def test_what_is_wrong_with_a_draft_is_named(gateway: Any, body: dict[str, Any], param: str) -> None:
    response = await gateway.post("/v1/verify", **body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("stream", "stream is for completions and chats: ask there"),
        ("max_tokens", "max_tokens is for completions and chats: ask there"),
        ("structured_outputs", "structured_outputs is for completions and chats: ask there"),
        ("stop_token_ids", "stop_token_ids is for completions and chats: ask there"),
        ("return_token_ids", "return_token_ids is for completions and chats: ask there"),
        ("skip_special_tokens", "skip_special_tokens is for completions and chats: ask there"),
        ("logprobs", "did you mean 'top_logprobs'?"),
        ("draft_tokens_ids", "did you mean 'draft_token_ids'?"),
        ("stoer", "unknown parameter 'stoer': leave it out"),
    ],
)
async def test_a_hint_names_only_what_this_route_takes(gateway: Any, name: str, words: str) -> None:
    response = await gateway.post("/v1/verify", prompt="a", draft_token_ids=[1], **{name: 1})
    assert (response.status_code, response.json()["error"]["param"]) == (400, name)
    assert words in response.json()["error"]["message"]
