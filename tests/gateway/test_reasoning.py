"""What models think before they answer, told apart from the answer."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starspec.gateway.reasoning import ReasoningReader, Thinking, Thought

MESSAGES = [{"role": "user", "content": "hi"}]
TEMPLATE = (
    "{% for message in messages %}<s>{{ message.role }}\n"
    "{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}"
    "{{ message.content }}</s>{% endfor %}<s>assistant\n{% if think_now %}<think>\n{% endif %}"
)


def read(thinking: Thinking, pieces: list[str]) -> Thought:
    reader = ReasoningReader(thinking)
    thoughts = [reader.feed(piece, is_last=False) for piece in pieces] + [reader.feed("", is_last=True)]
    return Thought("".join(each.reasoning for each in thoughts), "".join(each.content for each in thoughts))


@pytest.mark.parametrize(
    ("thinking", "text", "expected"),
    [
        (Thinking.MAY_BEGIN, "<think>\nwhy?\n</think>\n\nSo.", Thought("\nwhy?\n", "\n\nSo.")),
        (Thinking.MAY_BEGIN, "\n <think>why", Thought("why", "")),
        (Thinking.MAY_BEGIN, " Just <think>so</think>", Thought("", " Just <think>so</think>")),
        (Thinking.MAY_BEGIN, " <thin", Thought("", " <thin")),
        (Thinking.HAS_BEGUN, "why? <b></think>So. </think>", Thought("why? <b>", "So. </think>")),
        (Thinking.HAS_BEGUN, "why </thi", Thought("why </thi", "")),
        (Thinking.MAY_BEGIN, "", Thought("", "")),
    ],
)
@given(data=st.data())
def test_a_text_is_told_apart_the_same_however_it_is_cut(
    thinking: Thinking, text: str, expected: Thought, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)))))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert read(thinking, pieces) == expected


@pytest.fixture(scope="module")
def thinking_folder(model_folder: Path, tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("thinks") / "toy-model"
    thinker = deepcopy(tokenizer)
    thinker.chat_template = TEMPLATE
    thinker.save_pretrained(folder)
    (folder / "config.json").write_text((model_folder / "config.json").read_text())
    return folder


@pytest.fixture
async def thinker(start_gateway: Callable[..., Any], thinking_folder: Path) -> Any:
    gateway = await start_gateway(model=str(thinking_folder))
    gateway.target.script = lambda spec: ["<thi", "nk>why", "?</think", ">So", "."]
    return gateway


async def test_reasoning_has_vllms_name_and_is_no_content(thinker: Any) -> None:
    reply = await thinker.post("/v1/chat/completions", messages=MESSAGES)
    message = reply.json()["choices"][0]["message"]
    assert (message["reasoning"], message["content"]) == ("why?", "So.")


async def test_streamed_reasoning_joins_to_the_whole_one(thinker: Any) -> None:
    stream = await thinker.client.chat.completions.create(model="toy-model", messages=MESSAGES, stream=True)
    deltas = [chunk.choices[0].delta async for chunk in stream]
    assert "".join((delta.model_extra or {}).get("reasoning", "") for delta in deltas) == "why?"
    assert "".join(delta.content or "" for delta in deltas) == "So."


async def test_reasoning_that_nobody_wants_is_left_out(thinker: Any) -> None:
    reply = await thinker.post("/v1/chat/completions", messages=MESSAGES, include_reasoning=False)
    message = reply.json()["choices"][0]["message"]
    assert ("reasoning" in message, message["content"]) == (False, "So.")


async def test_a_prompt_can_open_the_reasoning(thinker: Any) -> None:
    thinker.target.script = lambda spec: ["why?</think>", "So."]
    for think_now, reasoning in ((True, "why?"), (False, None)):
        kwargs = {"think_now": think_now}
        reply = await thinker.post("/v1/chat/completions", messages=MESSAGES, chat_template_kwargs=kwargs)
        assert reply.json()["choices"][0]["message"].get("reasoning") == reasoning


async def test_the_template_gets_the_reasoning_of_before(thinker: Any, tokenizer: Any) -> None:
    said = {"role": "assistant", "content": "So.", "reasoning": "w"}
    await thinker.post("/v1/chat/completions", messages=[*MESSAGES, said])
    [spec] = thinker.target.submitted.values()
    assert "<think>w</think>So." in tokenizer.decode(spec.prompt_token_ids)


async def test_a_model_that_does_not_think_aloud_takes_no_reasoning(gateway: Any) -> None:
    said = {"role": "assistant", "content": "So.", "reasoning_content": "why?"}
    response = await gateway.post("/v1/chat/completions", messages=[said, *MESSAGES])
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "messages[0].reasoning_content"


async def test_embeddings_are_refused_with_a_sentence(gateway: Any) -> None:
    response = await gateway.post("/v1/embeddings", input="hi", model="toy-model")
    assert response.status_code == 400
    assert "generates text" in response.json()["error"]["message"]
