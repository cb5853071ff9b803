"""The offline API over a model with weights, two layers of random ones, and a vocabulary of bytes."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from starspec import LLM, SamplingParams
from starspec.config import ModelConfig, SpeculativeConfig, TargetConfig
from starspec.engine.engine import TargetEngine
from starspec.engine.remote_drafts import RemoteDrafts
from starspec.errors import RequestError
from starspec.ids import RequestId
from starspec.local_star import NO_DEADLINE_S, LocalHub
from starspec.models.loading.load import load_runner
from starspec.policy.length.snapshot import OFF, Choice, RoundSnapshot
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.budget import DraftBudget
from starspec.stats import TargetStats
from starspec.windows.local import LocalVerifier
from starspec.wire.messages import RequestSpec

EOS = 256
PROMPT = [40, 3, 77, 40, 200, 5]


@pytest.fixture(scope="module")
def folder(byte_model: Path) -> Path:
    return byte_model


def llm_of(folder: Path, draft: str = "none", **options: Any) -> LLM:
    always = {"num_speculative_tokens": 4, "length": {"policy": "fixed"}}
    drafts = {"itself": {"model": str(folder), **always}, "ngram": {"method": "ngram", **always}}
    speculative = drafts.get(draft)
    return LLM(str(folder), speculative_config=speculative, dtype="float32", max_model_len=128, **options)


@pytest.mark.parametrize("draft", ["none", "itself"])
@pytest.mark.parametrize("text", ["Go: 日", "Go: 🚀", "Go: 한", "👨‍👩‍👧"])
def test_the_character_that_the_prompt_begins_is_in_the_text(folder: Path, draft: str, text: str) -> None:
    llm = llm_of(folder, draft)
    *prompt, last = llm.tokenizer.encode(text)
    forced = SamplingParams(temperature=0.0, max_tokens=1, n=2, logit_bias={last: 100.0})
    (result,) = llm.generate([prompt], forced)
    assert [each.text for each in result.outputs] == [text[-1]] * 2
    stop = SamplingParams(temperature=0.0, max_tokens=8, logit_bias={last: 100.0}, stop=[text[-1]])
    (stopped,) = llm.generate([prompt], stop)
    assert (stopped.outputs[0].text, stopped.outputs[0].stop_reason) == ("", text[-1])
    assert "".join(piece.text for piece in llm.stream(prompt, stop)) == ""


def test_the_stop_string_that_is_complete_first_wins(folder: Path) -> None:
    llm = llm_of(folder, "itself")
    plain = SamplingParams(
        temperature=0.0, max_tokens=24, logit_bias={EOS: -100.0, **dict.fromkeys(range(94, 256), -100.0)}
    )
    ((answer,),) = [result.outputs for result in llm.generate([PROMPT], plain)]
    text = answer.text  # one character a token
    first, second = text[4:7], text[5:9]  # the second begins within the first, and is complete later
    assert (text.find(first), text.find(second)) == (4, 5)
    for stops in ([first, second], [second, first]):
        params = SamplingParams(temperature=0.0, max_tokens=24, logit_bias=plain.logit_bias, stop=stops)
        (result,) = llm.generate([PROMPT], params)
        assert (result.outputs[0].text, result.outputs[0].stop_reason) == (text[:4], first)
        assert result.outputs[0].token_ids == answer.token_ids[:7]
    longer = SamplingParams(temperature=0.0, max_tokens=24, logit_bias=plain.logit_bias, stop=[text[3:9], text[5:7]])
    (result,) = llm.generate([PROMPT], longer)
    assert (result.outputs[0].text, result.outputs[0].stop_reason) == (text[:5], text[5:7])


@torch.no_grad()
def plain_loop(model: LlamaForCausalLM, params: SamplingParams) -> list[int]:
    """Greedy decoding with penalties, in the order of vLLM, over the logits of transformers."""
    output: list[int] = []
    while len(output) < (params.max_tokens or 0) and (not output or output[-1] != EOS):
        logits = model(torch.tensor([PROMPT + output])).logits[0, -1].double()
        if len(output) < params.min_tokens:
            logits[EOS] = -torch.inf
        for token_id, bias in (params.logit_bias or {}).items():
            logits[token_id] += bias
        for token_id in set(PROMPT + output):
            value = logits[token_id]
            logits[token_id] = value / params.repetition_penalty if value > 0 else value * params.repetition_penalty
        for token_id, num in Counter(output).items():
            logits[token_id] -= params.frequency_penalty * num + params.presence_penalty
        output.append(int(logits.argmax()))
    return output


@pytest.mark.parametrize("draft", ["none", "itself", "ngram"])
@pytest.mark.parametrize(
    "options",
    [
        {"repetition_penalty": 1.3},
        {"presence_penalty": 1.5},
        {"frequency_penalty": 1.1, "min_tokens": 3},
        {"repetition_penalty": 0.8, "frequency_penalty": -0.5},
        {"min_tokens": 9, "logit_bias": {EOS: 3.0}},
        {"min_tokens": 9, "logit_bias": {EOS: 3.0}, "repetition_penalty": 1.2, "presence_penalty": 0.4},
    ],
)
def test_penalties_and_min_tokens_are_those_of_a_plain_loop_over_transformers(
    folder: Path, draft: str, options: dict[str, float]
) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=40, **options)  # type: ignore[arg-type]
    wanted = plain_loop(LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval(), params)
    (result,) = llm_of(folder, draft).generate([PROMPT], params)
    assert result.outputs[0].token_ids == wanted
    assert len(wanted) >= params.min_tokens


class NowAndThen:
    """Four draft tokens where a multiple of three remains, none elsewhere."""

    def choose(self, snapshot: RoundSnapshot) -> list[Choice]:
        return [
            Choice.of(each.fitting(DraftBudget.chain(4))) if each.max_remaining_tokens % 3 == 0 else OFF
            for each in snapshot.sequences
        ]


def test_rounds_without_drafts_cost_no_acceptance_afterwards(folder: Path) -> None:
    """The draft is the target itself, so each of its tokens is right: unless it lost count of the others.

    No time passes for the drafts: a length that took long to choose would serve for more rounds (`client/pace.py`).
    """
    config, stats = ModelConfig(model=str(folder), dtype="float32", max_model_len=128), TargetStats()
    (plain,) = llm_of(folder).generate([PROMPT], SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True))
    runner, tokenizer = load_runner(config), llm_of(folder).tokenizer
    hub = LocalHub(config, runner.info, SpeculativeConfig(model=str(folder)), tokenizer)
    drafts = RemoteDrafts(hub.connect(), NowAndThen(), stats, clock=lambda: 0.0, deadline_s=NO_DEADLINE_S)
    drafts.poll()
    engine = TargetEngine(LocalVerifier(runner), tokenizer, drafts, TargetConfig(), stats)
    engine.submit(RequestId("r"), RequestSpec(PROMPT, SamplingSpec(temperature=0.0), max_tokens=60))
    token_ids: list[int] = []
    while engine.has_work:
        token_ids += [token_id for output in engine.step().values() for token_id in output.token_ids]
    drafts.shutdown()
    assert token_ids == plain.outputs[0].token_ids
    assert stats.acceptance.num_drafts == 60 / 6  # rounds of five tokens and of one take turns
    assert stats.acceptance.num_accepted_tokens == stats.acceptance.num_draft_tokens


FORM = {"regex": "[a-c]{12}|[d-f]{12}"}


@pytest.mark.parametrize("draft", ["none", "itself", "ngram"])
def test_several_answers_of_one_form_each_end_where_it_ends(folder: Path, draft: str) -> None:
    params = SamplingParams(temperature=1.0, seed=1, max_tokens=40, n=4, structured_outputs=FORM, ignore_eos=True)
    (result,) = llm_of(folder, draft).generate([PROMPT], params)
    texts = [each.text for each in result.outputs]
    assert all(re.fullmatch(FORM["regex"], text) for text in texts)
    assert len(set(texts)) == 4
    assert [(each.finish_reason, each.stop_reason, len(each.token_ids)) for each in result.outputs] == [
        ("stop", None, 12)
    ] * 4


def test_a_stop_string_and_a_limit_end_an_answer_before_its_form_does(folder: Path) -> None:
    llm = llm_of(folder, "itself")
    params = SamplingParams(temperature=0.0, max_tokens=40, structured_outputs=FORM)
    (whole,) = llm.generate([PROMPT], params)
    text = whole.outputs[0].text
    (stopped,) = llm.generate([PROMPT], dataclasses.replace(params, stop=[text[3:6]]))
    assert (stopped.outputs[0].text, stopped.outputs[0].stop_reason) == (text[: text.find(text[3:6])], text[3:6])
    (cut,) = llm.generate([PROMPT], dataclasses.replace(params, max_tokens=5))
    assert (cut.outputs[0].text, cut.outputs[0].finish_reason) == (text[:5], "length")


def test_log_probabilities_are_the_models_own_without_the_grammar(folder: Path) -> None:
    free = SamplingParams(temperature=0.0, max_tokens=1, logprobs=3)
    plain, held = llm_of(folder).generate([PROMPT] * 2, [free, dataclasses.replace(free, structured_outputs=FORM)])
    assert plain.outputs[0].logprobs is not None
    assert held.outputs[0].logprobs is not None
    (of_plain,), (of_held,) = plain.outputs[0].logprobs, held.outputs[0].logprobs
    assert of_held.top == of_plain.top
    assert of_held.logprob < of_plain.logprob


def test_a_form_that_is_wrong_costs_no_other_prompt_its_answer(folder: Path) -> None:
    llm = llm_of(folder)
    wrong = SamplingParams(structured_outputs={"regex": "(a"})
    with pytest.raises(RequestError, match="unclosed group"):
        llm.generate([PROMPT, PROMPT], [SamplingParams(), wrong])
    assert not llm.engine.has_work
    assert llm.stats.num_finished == 0


@pytest.mark.parametrize("draft", ["none", "itself", "ngram"])
@pytest.mark.parametrize("is_fused", [True, False])
def test_prompt_logprobs_are_those_of_transformers(folder: Path, draft: str, is_fused: bool) -> None:
    llm = llm_of(folder, draft, prefill_chunk=20, fused=is_fused)
    prompts = [[(7 * each) % 251 for each in range(length)] for length in (1, 2, 18, 21, 75)]
    plain = SamplingParams(temperature=0.0, max_tokens=4, logprobs=2)
    asked = SamplingParams(temperature=0.0, max_tokens=4, logprobs=2, prompt_logprobs=3)
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    answers = llm.generate(prompts, plain)
    for prompt, result, answer in zip(prompts, llm.generate(prompts, asked), answers, strict=True):
        with torch.no_grad():
            rows = model(torch.tensor([prompt])).logits[0, :-1].double().log_softmax(-1)
        first, *scored = result.prompt_logprobs or []
        assert first is None
        assert [each.token_id for each in scored if each] == prompt[1:]
        for row, token_id, found in zip(rows, prompt[1:], scored, strict=True):
            assert found is not None
            assert found.logprob == pytest.approx(float(row[token_id]), abs=1e-5)
            assert found.rank == 1 + int((row > row[token_id]).sum())
            values, token_ids = row.topk(3)
            assert [each for each, _ in found.top] == token_ids.tolist()
            assert [each for _, each in found.top] == pytest.approx(values.tolist(), abs=1e-5)
        assert result.outputs[0].token_ids == answer.outputs[0].token_ids
        assert result.outputs[0].logprobs == answer.outputs[0].logprobs  # to the last bit
        assert answer.prompt_logprobs is None


def test_only_short_chunks_are_scored(folder: Path) -> None:
    llm = llm_of(folder, prefill_chunk=2049)
    with pytest.raises(RequestError, match="--prefill-chunk up to 2048"):
        llm.generate([PROMPT], SamplingParams(prompt_logprobs=0))
