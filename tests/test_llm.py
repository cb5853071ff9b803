"""The offline API, over synthetic models: real engine, real hub, no weights."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from starspec import LLM, ConfigError, RequestError, SamplingParams
from starspec.errors import StarspecError
from starspec.ids import RequestId, RequestKey
from starspec.observe.progress import ProgressBar
from starspec.sampling import draw
from starspec.sampling.spec import SamplingSpec
from starspec.speculation import verify
from starspec.wire.messages import EngineOutput

TARGET = "synthetic:role=target,step_ms=0"
DRAFT = "synthetic:role=draft,step_ms=0,alpha=0.8"
GREEDY = SamplingParams(temperature=0.0, max_tokens=24)
FIXED = {"length": {"policy": "fixed"}}  # each round drafts, whether or not it pays
SPECULATIVE = {
    "plain": None,
    "ngram": {"method": "ngram", "num_speculative_tokens": 4, **FIXED},
    "draft": {"model": DRAFT, "num_speculative_tokens": 4, **FIXED},
    "long draft": {"model": DRAFT, "num_speculative_tokens": 16, **FIXED},
    "default lengths": {"model": DRAFT},
}


def llm_of(name: str, **options: object) -> LLM:
    return LLM(TARGET, speculative_config=SPECULATIVE[name], max_model_len=256, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["ngram", "draft", "long draft", "default lengths"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_draft_changes_no_token(name: str, temperature: float) -> None:
    params = SamplingParams(temperature=temperature, seed=5, max_tokens=24)
    prompts = [[1, 2, 3], [4], [5, 6, 7, 8, 9] * 8]
    plain = llm_of("plain").generate(prompts, params)
    drafted = llm_of(name, max_num_seqs=2).generate(prompts, params)
    assert [each.outputs[0].token_ids for each in drafted] == [each.outputs[0].token_ids for each in plain]
    assert [each.outputs[0].text for each in drafted] == [each.outputs[0].text for each in plain]


@pytest.mark.parametrize("name", ["plain", "ngram", "draft"])
def test_a_prompt_whose_law_fails_costs_no_other_its_answer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def next_token(row: torch.Tensor, sampling: SamplingSpec, position: int, *more: Any) -> int:
        if sampling.seed == 13 and position > 9:
            raise ValueError("no such law")
        return draw.next_token(row, sampling, position, *more)

    llm, prompts = llm_of(name), [[1, 2, 3], [4], [5, 6, 7, 8]]
    params = [SamplingParams(temperature=0.8, seed=seed, max_tokens=24) for seed in (1, 13, 3)]
    whole = [each.outputs[0] for each in llm.generate(prompts, params)]
    monkeypatch.setattr(verify, "next_token", next_token)
    answers = [each.outputs[0] for each in llm.generate(prompts, params)]
    assert [each.finish_reason for each in answers] == ["length", "error", "length"]
    assert (answers[0].token_ids, answers[2].token_ids) == (whole[0].token_ids, whole[2].token_ids)
    assert answers[1].token_ids == whole[1].token_ids[: len(answers[1].token_ids)] != whole[1].token_ids
    assert answers[1].stop_reason == "internal error"


def test_a_good_draft_saves_forwards() -> None:
    (result,) = llm_of("draft").generate([[1, 2, 3]], GREEDY)
    assert result.metrics.acceptance.block_efficiency > 2.0
    assert result.metrics.acceptance.num_emitted_tokens == 24
    assert sum(result.metrics.acceptance_histogram) == result.metrics.acceptance.num_drafts


def test_one_prompt_of_text_or_ids_is_one_result() -> None:
    llm = llm_of("plain")
    ids = llm.tokenizer.encode("hello")
    (of_text,), (of_ids,) = llm.generate("hello", GREEDY), llm.generate(ids, GREEDY)
    assert of_text.prompt == "hello"
    assert of_ids.prompt is None
    assert of_text.outputs[0].token_ids == of_ids.outputs[0].token_ids


def test_prompts_may_be_dictionaries_as_vllm_has_them() -> None:
    llm = llm_of("plain")
    ids = llm.tokenizer.encode("hello")
    (bare,) = llm.generate("hello", GREEDY)
    of_text, of_ids = llm.generate([{"prompt": "hello"}, {"prompt_token_ids": ids, "prompt": "other"}], GREEDY)
    (alone,) = llm.generate({"prompt": "hello"}, GREEDY)
    assert (of_text.prompt, of_ids.prompt) == ("hello", None)
    for each in (of_text, of_ids, alone):
        assert each.outputs[0].token_ids == bare.outputs[0].token_ids
    assert "".join(piece.text for piece in llm.stream({"prompt": "hello"}, GREEDY)) == bare.outputs[0].text


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ({"promt": "hello"}, "a prompt has no key 'promt'; did you mean 'prompt'"),
        ({}, "a prompt must be text or a list of token ids"),
        ({"prompt": None}, "a prompt must be text or a list of token ids"),
        ({"prompt_token_ids": 7}, "prompt_token_ids must be a list of token ids"),
        ({"prompt_token_ids": "hello", "prompt": "hello"}, "prompt_token_ids must be a list of token ids"),
        ({"prompt_token_ids": b"hello"}, "prompt_token_ids must be a list of token ids"),
        (b"hello", "a prompt must be text or a list of token ids"),
        ([["a"]], "a prompt must be text or a list of token ids"),
        ([None], "a prompt must be text or a list of token ids"),
        ([True], "a prompt must be text or a list of token ids"),
    ],
)
def test_what_is_no_prompt_is_refused_in_a_sentence(prompt: Any, said: str) -> None:
    with pytest.raises(RequestError, match=re.escape(said)):
        llm_of("plain").generate(prompt, GREEDY)


def test_answers_of_one_prompt_have_seeds_of_their_own() -> None:
    (result,) = llm_of("draft").generate([[1, 2]], SamplingParams(n=3, seed=1, temperature=100.0, max_tokens=12))
    assert len({tuple(each.token_ids) for each in result.outputs}) == 3
    single = llm_of("plain").generate([[1, 2]], SamplingParams(seed=2, temperature=100.0, max_tokens=12))
    assert single[0].outputs[0].token_ids == result.outputs[1].token_ids


def test_more_prompts_than_the_waiting_line_holds_are_all_answered() -> None:
    results = llm_of("draft", max_num_seqs=4).generate([[each % 50 + 1] for each in range(300)], GREEDY)
    assert all(each.outputs[0].finish_reason == "length" for each in results)


def test_streamed_pieces_join_to_the_answer_and_closing_frees_the_row() -> None:
    llm = llm_of("draft")
    (whole,) = llm.generate([[3, 4]], GREEDY)
    pieces = list(llm.stream([3, 4], GREEDY))
    assert "".join(each.text for each in pieces) == whole.outputs[0].text
    assert pieces[-1].finish_reason == "length"
    stream = llm.stream([3, 4], GREEDY)
    next(stream)
    stream.close()
    assert not llm.engine.has_work
    llm.engine.check_integrity()


def test_a_stream_that_is_collected_within_a_step_is_aborted_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    llm, is_within, aborted = llm_of("draft", max_num_seqs=4), False, list[tuple[str, bool]]()
    step, abort = llm.engine.step, llm.engine.abort

    def stepping() -> dict[RequestKey, EngineOutput]:
        nonlocal is_within
        is_within = True
        gc.collect()
        outputs = step()
        is_within = False
        return outputs

    def aborting(request_id: RequestId) -> None:
        aborted.append((request_id, is_within))
        abort(request_id)

    stream = llm.stream([3, 4], GREEDY)
    next(stream)
    gc.disable()
    try:
        circle: list[object] = [stream]
        circle.append(circle)
        del stream, circle
        monkeypatch.setattr(llm.engine, "step", stepping)
        monkeypatch.setattr(llm.engine, "abort", aborting)
        llm.generate([[5]], GREEDY)
    finally:
        gc.enable()
    assert aborted == [("llm-1", False), ("llm-2", False)]
    assert not llm.engine.has_work
    llm.engine.check_integrity()


def test_a_stream_that_is_dropped_waits_for_no_other_thread() -> None:
    llm = llm_of("plain")
    stream = llm.stream([3, 4], GREEDY)
    next(stream)
    with ThreadPoolExecutor(1) as threads, llm._turn():  # as if a step went on for long
        threads.submit(stream.close).result(20)
        assert llm.engine.has_work
    assert not llm.engine.has_work


def test_streams_read_in_turns_and_answers_between_them_lose_nothing() -> None:
    llm = llm_of("draft", max_num_seqs=4)
    prompts = [[3, 4], [5], [6, 7]]
    longer = SamplingParams(temperature=0.0, max_tokens=40)
    wholes = [each.outputs[0] for each in llm.generate(prompts, [GREEDY, longer, GREEDY])]
    one, other = llm.stream(prompts[0], GREEDY), llm.stream(prompts[1], longer)
    pieces = [[next(one)], [next(other)]]
    (between,) = llm.generate([prompts[2]], GREEDY)
    pieces[0] += one
    pieces[1] += other
    assert [[token for each in row for token in each.token_ids] for row in pieces] == [
        wholes[0].token_ids,
        wholes[1].token_ids,
    ]
    assert between.outputs[0].token_ids == wholes[2].token_ids
    assert not llm.engine.has_work


def test_ctrl_c_in_one_thread_leaves_no_other_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = LLM("synthetic:step_ms=0", use_tqdm=False)
    stream = llm.stream("one", SamplingParams(temperature=0.0, max_tokens=8))
    next(stream)
    step = llm.engine.step

    def interrupted() -> object:
        step()  # whose outputs nobody gets
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(llm.engine, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            llm.generate("two", SamplingParams(temperature=0.0, max_tokens=8))
    with ThreadPoolExecutor(1) as threads, pytest.raises(StarspecError, match="this answer is lost: Ctrl-C"):
        threads.submit(list, stream).result(60)
    (answer,) = llm.generate("three", SamplingParams(temperature=0.0, max_tokens=8))
    assert len(answer.outputs[0].token_ids) == 8


@pytest.mark.parametrize("name", ["plain", "ngram", "draft"])
def test_threads_that_ask_at_once_get_the_answers_that_each_would_get_alone(name: str) -> None:
    llm, prompts = llm_of(name, max_num_seqs=2), [[number, 2, 3] for number in range(8)]
    alone = [llm.generate(each, GREEDY)[0].outputs[0].token_ids for each in prompts]
    with ThreadPoolExecutor(len(prompts)) as threads:
        together = list(threads.map(lambda each: llm.generate(each, GREEDY)[0].outputs[0].token_ids, prompts))
        streamed = list(threads.map(lambda each: [t for p in llm.stream(each, GREEDY) for t in p.token_ids], prompts))
    assert together == streamed == alone


def test_a_seed_of_numpy_is_a_seed() -> None:
    seeds = (np.int64(2**62), 2**62)
    answers = [llm_of("plain").generate([[1, 2]], SamplingParams(seed=seed, n=2, max_tokens=8)) for seed in seeds]
    assert [each.token_ids for each in answers[0][0].outputs] == [each.token_ids for each in answers[1][0].outputs]


def test_logprobs_are_the_targets_own_whatever_was_drafted() -> None:
    params = SamplingParams(temperature=0.0, max_tokens=10, logprobs=2)
    plain, drafted = (llm_of(name).generate([[9]], params)[0].outputs[0] for name in ("plain", "draft"))
    assert plain.logprobs == drafted.logprobs
    assert [each.token_id for each in plain.logprobs or []] == plain.token_ids


def test_bad_options_are_refused_in_a_sentence() -> None:
    with pytest.raises(ConfigError, match=r"dtpye.*did you mean 'dtype'"):
        LLM(TARGET, dtpye="float32")
    with pytest.raises(ConfigError, match="num_spec_tokens"):
        LLM(TARGET, speculative_config={"num_spec_tokens": 3})
    with pytest.raises(ConfigError, match="give the draft's model"):
        LLM(TARGET, speculative_config={"method": "draft_model"})
    with pytest.raises(RequestError, match="empty"):
        llm_of("plain").generate([[]], GREEDY)
    with pytest.raises(RequestError, match="prompts must be text, token ids or a list of either, not int"):
        llm_of("plain").generate(5)
    with pytest.raises(ConfigError, match="2 prompts but 1"):
        llm_of("plain").generate([[1], [2]], [GREEDY])
    for params in ({"max_tokens": 3}, [{"max_tokens": 3}], iter([GREEDY])):
        with pytest.raises(ConfigError, match="sampling_params must be a SamplingParams, or a list"):
            llm_of("plain").generate([[1]], params)
    with pytest.raises(ConfigError, match="sampling_params must be a SamplingParams"):
        next(llm_of("plain").stream([1], {"max_tokens": 3}))
    with pytest.raises(RequestError, match="messages must be a list of"):
        llm_of("plain").chat({"role": "user", "content": "hi"})
    with pytest.raises(RequestError, match="messages must be a list of"):
        llm_of("plain").chat([5])  # type: ignore[list-item]
    for config in ("ngram", ["ngram"]):
        with pytest.raises(ConfigError, match="speculative_config must be a mapping or a SpeculativeConfig, not"):
            LLM(TARGET, speculative_config=config)
    with pytest.raises(ConfigError, match="unknown key '1'"):
        LLM(TARGET, speculative_config={1: 2})
    with pytest.raises(ConfigError, match="use_tqdm must be true or false, not 'no'"):
        LLM(TARGET, use_tqdm="no")
    with pytest.raises(ConfigError, match="use_tqdm must be true or false, not 'no'"):
        llm_of("plain").generate("a", GREEDY, use_tqdm="no")
    with pytest.raises(ConfigError, match="add_special_tokens must be true or false, not 'no'"):
        llm_of("plain").generate("a", GREEDY, add_special_tokens="no")
    with pytest.raises(ConfigError, match="add_special_tokens must be true or false, not None"):
        next(llm_of("plain").stream("a", GREEDY, add_special_tokens=None))


def test_what_vllm_says_by_default_is_taken_and_anything_else_is_refused_by_name() -> None:
    ngram = {"method": "ngram", "draft_tensor_parallel_size": 1}
    options = {"tensor_parallel_size": 1, "trust_remote_code": False}
    with LLM(TARGET, speculative_config=ngram, max_model_len=256, **options) as llm:
        assert len(llm.generate([1], GREEDY)[0].outputs[0].token_ids) == 24
    with LLM(TARGET, speculative_config=ngram | {"draft_tensor_parallel_size": None}):
        pass
    refused = [
        ({"tensor_parallel_size": 2}, "LLM: tensor_parallel_size: each model runs on one device; leave it out"),
        ({"trust_remote_code": True}, "LLM: trust_remote_code: starspec never runs code of a checkpoint; leave it out"),
        (
            {"dtype": "auto"},
            "LLM: dtype 'auto': starspec does not take it from the checkpoint; leave it out for",
        ),
        (
            {"speculative_config": ngram | {"draft_tensor_parallel_size": 2}},
            "speculative config: draft_tensor_parallel_size: each model runs on one device; leave it out",
        ),
    ]
    for given, said in refused:
        with pytest.raises(ConfigError, match=f"^{said}"):
            LLM(TARGET, **given)


@pytest.mark.parametrize("name", ["plain", "ngram", "draft"])
def test_a_closed_llm_says_so_whatever_it_is_asked(name: str) -> None:
    llm = llm_of(name)
    begun = llm.stream([1], GREEDY)
    next(begun)
    llm.close()
    llm.close()
    asked: list[Callable[[], object]] = [
        lambda: llm.generate([[1]], GREEDY),
        lambda: llm.generate([], GREEDY),
        lambda: llm.chat([]),
        lambda: next(llm.stream([1], GREEDY)),
        lambda: next(begun),
    ]
    for ask in asked:
        with pytest.raises(StarspecError, match=r"^this LLM is closed$"):
            ask()


def test_numbers_of_numpy_are_numbers() -> None:
    plain = {
        "temperature": 0.75,
        "top_p": 0.5,
        "top_k": 9,
        "logit_bias": {5: 0.5},
        "stop_token_ids": [3],
        "max_tokens": 8,
    }
    numpy = {
        "temperature": np.float32(0.75),
        "top_p": np.float32(0.5),
        "top_k": np.int64(9),
        "logit_bias": {np.int64(5): np.float32(0.5)},
        "stop_token_ids": np.array([3]).tolist(),
        "max_tokens": np.int32(8),
    }
    answers = [llm_of("plain").generate([[1, 2]], SamplingParams(seed=1, **each))[0] for each in (plain, numpy)]
    assert answers[0].outputs[0].token_ids == answers[1].outputs[0].token_ids


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"temperature": "x"}, "temperature"),
        ({"top_k": 1.5}, "top_k"),
        ({"top_k": -5}, "top_k"),
        ({"max_tokens": 2.5}, "max_tokens"),
        ({"seed": "a"}, "seed"),
        ({"n": True}, "n"),
        ({"stop": [3]}, "stop"),
        ({"stop": 5}, "stop"),
        ({"stop": {"a": 1}}, "stop"),
        ({"ignore_eos": "no"}, "ignore_eos"),
        ({"temperature": 10**400}, "temperature"),
        ({"top_p": 10**400}, "top_p"),
        ({"logit_bias": {5: 10**400}}, "logit_bias"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["a\ud800"]}, "stop"),
        ({"logit_bias": {"a": 1.0}}, "logit_bias"),
        ({"logit_bias": {5: "1"}}, "logit_bias"),
        ({"logit_bias": {5: None}}, "logit_bias"),
        ({"logit_bias": [5]}, "logit_bias"),
        ({"bad_words": "zebra"}, "bad_words"),
        ({"bad_words": ["a", 5]}, "bad_words"),
        ({"bad_words": ["a" * 10_001]}, "bad_words"),
        ({"bad_words": ["a"] * 1025}, "bad_words"),
        ({"bad_words": ["a" * 6554] * 10}, "bad_words"),
        ({"stop_token_ids": 5}, "stop_token_ids"),
        ({"stop_token_ids": ["5"]}, "stop_token_ids"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"stop_token_ids": [True]}, "stop_token_ids"),
        ({"logit_bias": {True: 1.0}}, "logit_bias"),
        ({"stop_token_ids": [1] * 1025}, "stop_token_ids"),
        ({"logit_bias": dict.fromkeys(range(1025), 1.0)}, "logit_bias"),
    ],
)
def test_a_parameter_of_the_wrong_kind_is_named(wrong: dict, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**wrong)
    assert caught.value.param == param


def test_one_stop_string_is_one_and_absent_lists_are_empty() -> None:
    params = SamplingParams(stop="zebra", stop_token_ids=None, logit_bias={"5": 1.0})
    assert params.stop_strings == ("zebra",)
    assert params.sampling_spec(()).logit_bias == {5: 1.0}
    assert params.sampling_spec((7,)).end_token_ids == (7,)
    assert SamplingParams(stop=None, logit_bias=None).stop_strings == ()


def test_bad_words_are_in_no_answer() -> None:
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    with llm_of("ngram") as llm:
        (usual,) = llm.generate([[1, 2]], params)
        word = usual.outputs[0].text.split()[2]
        (other,) = llm.generate([[1, 2]], replace(params, bad_words=[word]))
        assert word not in other.outputs[0].text.split()
        assert llm.generate([[1, 2]], replace(params, bad_words=None))[0].outputs[0].text == usual.outputs[0].text


def test_a_bad_word_of_too_many_tokens_is_refused() -> None:
    with llm_of("plain") as llm, pytest.raises(RequestError, match="bad_words must each have 1 to 64 tokens") as raised:
        llm.generate([[1, 2]], SamplingParams(bad_words=["a " * 65]))
    assert raised.value.param == "bad_words"


def test_half_of_a_surrogate_pair_is_named_in_prompts_and_messages() -> None:
    with llm_of("plain") as llm:
        with pytest.raises(RequestError, match="the prompt is not valid Unicode text"):
            llm.generate("a\ud800")
        with pytest.raises(RequestError, match="messages are not valid Unicode text") as raised:
            llm.chat([{"role": "user", "content": "a\ud800"}])
        assert raised.value.param == "messages"


def test_a_template_gets_the_text_of_messages_as_over_http() -> None:
    """Some templates print whatever they get, and a list of parts would be a part of the prompt."""
    with llm_of("plain") as llm:
        llm.tokenizer.chat_template = "{% for each in messages %}{{ each['content'] | string }}{% endfor %}"
        parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
        calling = {"role": "assistant", "content": None}
        asked = [[{"role": "user", "content": each}, calling] for each in ("a\nb", parts)]
        text, same = llm.chat(asked, SamplingParams(max_tokens=1))
        assert text.prompt_token_ids == same.prompt_token_ids


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"role": "usr", "content": "a"}, "messages[1].role must be one of system, developer, user, assistant, tool"),
        ({"role": "user"}, "messages[1].content must be text, or a list of"),
        ({"role": "user", "content": None}, "messages[1].content must be text"),
        ({"role": "user", "content": []}, "messages[1].content must be text"),
        ({"role": "user", "content": ["a"]}, "messages[1].content must be text"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "messages[1].content must be text"),
        ({"role": "user", "content": 7}, "messages[1].content must be text"),
    ],
)
def test_a_message_that_is_none_is_refused_as_over_http(wrong: dict, said: str) -> None:
    with llm_of("plain") as llm, pytest.raises(RequestError, match=re.escape(said)):
        llm.chat([{"role": "system", "content": "b"}, wrong])


def test_a_stop_token_that_is_none_is_refused_as_over_http() -> None:
    with llm_of("plain") as llm:
        size = len(llm.tokenizer)
        params = SamplingParams(max_tokens=2, stop_token_ids=[size - 1, size])
        said = f"stop_token_ids: token id {size} is outside the vocabulary of {size}"
        with pytest.raises(RequestError, match=said) as raised:
            llm.generate([[1]], params)
        assert raised.value.param == "stop_token_ids"
        with pytest.raises(RequestError, match=said):
            next(llm.stream([1], params))
        llm.generate([[1]], SamplingParams(max_tokens=2, stop_token_ids=[size - 1]))


def test_more_tokens_than_the_context_holds_are_refused_as_over_http() -> None:
    with llm_of("plain") as llm:
        (whole,) = llm.generate([[1]], SamplingParams(temperature=0.0, max_tokens=255, ignore_eos=True))
        assert len(whole.outputs[0].token_ids) == 255
        params = SamplingParams(max_tokens=256)
        said = (
            r"max_tokens: this model's maximum context length is 256 tokens.*\(1 in the prompt, 256 in the completion"
        )
        with pytest.raises(RequestError, match=said) as raised:
            llm.generate([[1]], params)
        assert raised.value.param == "max_tokens"
        with pytest.raises(RequestError, match=said):
            next(llm.stream([1], params))
        assert not llm.engine.has_work


def test_the_default_of_max_tokens_is_cut_to_what_fits() -> None:
    with llm_of("plain") as llm:
        (result,) = llm.generate([[1] * 250], SamplingParams(ignore_eos=True))
    assert len(result.outputs[0].token_ids) == 6


class BosTokenizer:
    """A tokenizer that puts a BOS token in front, around another one."""

    bos_token, bos_token_id = "<eos>", 0

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __len__(self) -> int:
        return len(self._tokenizer)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [0] * add_special_tokens + self._tokenizer.encode(text, add_special_tokens=False)


def test_a_text_that_begins_with_bos_is_warned_of_and_can_be_left_alone() -> None:
    with llm_of("plain") as llm:
        llm.tokenizer = BosTokenizer(llm.tokenizer)
        with pytest.warns(UserWarning, match="begins with <eos>, and the tokenizer put another in front"):
            [twice] = llm.generate(["<eos> babe"], SamplingParams(max_tokens=1, ignore_eos=True))
        [once] = llm.generate(["<eos> babe"], SamplingParams(max_tokens=1, ignore_eos=True), add_special_tokens=False)
        [plain] = llm.generate(["babe"], SamplingParams(max_tokens=1, ignore_eos=True))
        assert twice.prompt_token_ids == [0, *once.prompt_token_ids]
        assert plain.prompt_token_ids == once.prompt_token_ids


def test_progress_is_shown_unless_it_is_turned_off(monkeypatch, capsys) -> None:
    monkeypatch.setitem(ProgressBar.__init__.__kwdefaults__, "first_line_s", 0.0)
    monkeypatch.setattr("starspec.observe.progress.LINE_INTERVAL_S", 0.0)
    with llm_of("draft") as llm:
        llm.generate([[1], [2]], GREEDY)
        assert "generating: answers, 50%" in capsys.readouterr().err
        llm.generate([[1], [2]], GREEDY, use_tqdm=False)
        assert capsys.readouterr().err == ""
    with llm_of("draft", use_tqdm=False) as llm:
        llm.generate([[1], [2]], GREEDY)
        assert capsys.readouterr().err == ""


def test_a_pair_of_which_one_is_not_named_is_refused_before_anything_is_loaded() -> None:
    with pytest.raises(ConfigError, match="the name of a model is empty"):
        LLM("")
    with pytest.raises(ConfigError, match="the name of a model is empty"):
        LLM("synthetic:", speculative_config={"model": ""})


def test_the_tokenizer_has_vllms_name_too() -> None:
    with LLM(TARGET) as llm:
        assert llm.get_tokenizer() is llm.tokenizer


def test_what_vllm_sets_here_and_starspec_elsewhere_is_refused_with_the_place() -> None:
    with pytest.raises(ConfigError, match="memory is bounded by max_num_seqs and max_model_len here"):
        LLM(TARGET, gpu_memory_utilization=0.9)
    with pytest.raises(ConfigError, match="LLM: seed: draws belong to a request here: give the seed to SamplingParams"):
        LLM(TARGET, seed=1)
