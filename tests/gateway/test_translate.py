"""Every parameter reaches the target."""

from __future__ import annotations

import json
import shutil
from copy import copy
from pathlib import Path
from typing import Any

import pytest

from starspec.config import GatewayConfig
from starspec.errors import ModelError, RequestError
from starspec.gateway.prompts import PromptCodec
from starspec.gateway.schema import ChatCompletionRequest, CompletionRequest
from starspec.gateway.served_model import GenerationDefaults, load_served_model, read_generation_defaults
from starspec.gateway.translate import Translator
from starspec.models.loading.tokenizer import eos_token_ids
from starspec.wire.messages import RequestSpec

EOS = 257


@pytest.fixture
def codec(tokenizer: Any) -> Any:
    made = PromptCodec(tokenizer, (EOS,))
    yield made
    made.close()


@pytest.fixture
def translator(codec: PromptCodec) -> Translator:
    return Translator(codec, GenerationDefaults())


async def spec_of(translator: Translator, **body: Any) -> RequestSpec:
    (spec,) = (await translator.completion(CompletionRequest(prompt="hi", **body), 64)).specs
    return spec


async def chat_spec_of(translator: Translator, **body: Any) -> RequestSpec:
    body.setdefault("messages", [{"role": "user", "content": "hi"}])
    (spec,) = (await translator.chat(ChatCompletionRequest.model_validate(body), 64)).specs
    return spec


async def test_each_sampling_parameter_reaches_the_sampling_spec(translator: Translator) -> None:
    given = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.05,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": -0.3,
        "seed": 42,
        "min_tokens": 2,
    }
    sampling = (await spec_of(translator, **given)).sampling
    assert {name: getattr(sampling, name) for name in given} == given


async def test_each_limit_reaches_the_spec(translator: Translator) -> None:
    spec = await spec_of(
        translator,
        max_tokens=5,
        stop=["a", "b"],
        include_stop_str_in_output=True,
        skip_special_tokens=False,
        logprobs=3,
        logit_bias={"65": -100, "66": 1.5},
        stop_token_ids=[10],
        bad_words=["ab", "c"],
    )
    assert (spec.max_tokens, spec.stop, spec.logprobs) == (5, ("a", "b"), 3)
    assert spec.include_stop_str_in_output
    assert not spec.skip_special_tokens
    assert spec.sampling.logit_bias == {65: -100, 66: 1.5}
    assert spec.sampling.end_token_ids == (EOS, 10)
    assert spec.sampling.bad_words == ((64, 65), (66,))


async def test_ignore_eos_leaves_the_clients_own_stop_tokens(translator: Translator) -> None:
    assert (await spec_of(translator, ignore_eos=True, stop_token_ids=[10])).sampling.end_token_ids == (10,)


async def test_what_is_not_asked_for_has_the_apis_defaults(translator: Translator) -> None:
    spec, chat = await spec_of(translator), await chat_spec_of(translator)
    assert (spec.sampling.temperature, spec.sampling.top_p, spec.sampling.top_k) == (1.0, 1.0, 0)
    assert (spec.max_tokens, chat.max_tokens) == (16, None)


async def test_max_completion_tokens_comes_before_max_tokens(translator: Translator) -> None:
    assert (await chat_spec_of(translator, max_completion_tokens=3, max_tokens=9)).max_tokens == 3
    assert (await chat_spec_of(translator, max_tokens=9)).max_tokens == 9


async def test_any_integer_is_a_seed(translator: Translator) -> None:
    for seed in (-1, 2**63, 10**40):
        assert 0 <= (await spec_of(translator, seed=seed)).sampling.seed < 2**63
    assert (await spec_of(translator, seed=-1)).sampling == (await spec_of(translator, seed=-1)).sampling


async def test_without_a_seed_every_answer_has_its_own(translator: Translator) -> None:
    generation_request = await translator.completion(CompletionRequest(prompt=["a", "b"], n=8), 64)
    assert len({spec.sampling.seed for spec in generation_request.specs}) == 16


async def test_the_models_defaults_fill_in_what_a_request_leaves_out(codec: PromptCodec) -> None:
    defaults = GenerationDefaults(temperature=0.6, top_k=20, top_p=0.8, repetition_penalty=1.05)
    translator = Translator(codec, defaults)
    sampling = (await spec_of(translator, top_k=0)).sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.repetition_penalty) == (0.6, 0.8, 0, 1.05)


async def test_the_chat_template_frames_the_messages(translator: Translator, tokenizer: Any) -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    framed = await chat_spec_of(translator, messages=messages)
    assert tokenizer.decode(framed.prompt_token_ids) == "<s>user\na\nb</s><s>assistant\n"
    with_mood = await chat_spec_of(translator, messages=messages, chat_template_kwargs={"mood": "calm"})
    assert tokenizer.decode(with_mood.prompt_token_ids).endswith("<s>assistant\ncalm")


async def test_a_final_message_can_be_continued(translator: Translator, tokenizer: Any) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "well"}]
    spec = await chat_spec_of(translator, messages=messages, continue_final_message=True)
    assert tokenizer.decode(spec.prompt_token_ids) == "<s>user\na</s><s>assistant\nwell"


async def test_a_model_without_a_template_says_so(tokenizer: Any) -> None:
    bare = copy(tokenizer)
    bare.chat_template = None
    codec = PromptCodec(bare, (EOS,))
    with pytest.raises(RequestError, match="no chat template") as refused:
        await chat_spec_of(Translator(codec, GenerationDefaults()))
    assert refused.value.param == "messages"
    codec.close()


def test_generation_config_gives_defaults_and_end_tokens(model_folder: Path, tokenizer: Any) -> None:
    assert read_generation_defaults(model_folder) == GenerationDefaults(temperature=0.6, top_k=20)
    assert eos_token_ids(model_folder, tokenizer) == (EOS,)


async def test_every_end_token_that_any_file_names_ends_an_answer(model_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model_folder, folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "eos_token_id": 10}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [11, 12]}))
    served = load_served_model(GatewayConfig(model=str(folder)))
    try:
        spec = await spec_of(Translator(served.codec, served.defaults))
        assert spec.sampling.end_token_ids == (10, 11, 12, EOS)
    finally:
        served.codec.close()


@pytest.mark.parametrize(
    "content",
    [
        "[1]",
        "{",
        "[" * 20000,
        '{"temperature": "hot"}',
        '{"top_k": true}',
        '{"temperature": NaN}',
        '{"temperature": 1e400}',
        '{"top_k": 1.5}',
        '{"top_p": 2}',
    ],
)
def test_a_broken_generation_config_is_a_sentence_about_the_file(tmp_path: Path, content: str) -> None:
    (tmp_path / "generation_config.json").write_text(content)
    with pytest.raises(ModelError, match=r"generation_config\.json"):
        read_generation_defaults(tmp_path)


def test_a_model_without_generation_config_has_no_defaults(tmp_path: Path) -> None:
    assert str(read_generation_defaults(tmp_path)) == "none"
