"""What a draft would give a plain vLLM server: its answers read with the draft, its steps timed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from plain_vllm import PlainVllm, served

from starspec.config import ModelConfig, SpeculativeConfig
from starspec.doctor.examine import Examination, examine
from starspec.doctor.vllm import examine_vllm, verify_seconds
from starspec.errors import ConfigError
from starspec.harness.datasets import own_prompts

TARGET = "synthetic:vocab=128,step_ms=1,alpha=0.8"
DRAFT = SpeculativeConfig(model=f"{TARGET},role=draft")
PROMPTS = own_prompts()[:3]
MAX_TOKENS, MAX_DRAFT_TOKENS = 20, 5


@pytest.fixture
def vllm() -> PlainVllm:
    return PlainVllm(TARGET)


@pytest.fixture
def url(vllm: PlainVllm) -> Iterator[str]:
    with served(vllm) as url:
        yield url


def look(url: str, draft: SpeculativeConfig = DRAFT) -> Examination:
    model = ModelConfig(model=draft.model or "", num_threads=1)
    return examine_vllm(
        url, model, draft, PROMPTS, max_tokens=MAX_TOKENS, max_draft_tokens=MAX_DRAFT_TOKENS, link_s=0.001
    )


@pytest.mark.usefixtures("modelled_time")
def test_a_draft_is_right_for_a_server_as_often_as_for_the_model_itself(url: str, vllm: PlainVllm) -> None:
    found = look(url)
    target = ModelConfig(model=TARGET, num_rows=1, max_model_len=256)
    expected = examine(
        target, DRAFT, PROMPTS, max_tokens=MAX_TOKENS, max_draft_tokens=MAX_DRAFT_TOKENS, link_s=0.0
    ).prospects[0]
    greedy, warm = found.prospects
    assert (greedy.sampling, warm.sampling) == ("greedy", "T=0.7")
    assert greedy.first_choice_rate == expected.first_choice_rate
    assert greedy.num_positions == len(PROMPTS) * MAX_TOKENS
    told = [(each.num_draft_tokens, each.tokens_per_round) for each in greedy.forecasts]
    assert told == [(each.num_draft_tokens, each.tokens_per_round) for each in expected.forecasts]
    assert found.times is not None
    assert found.times.link_s == 0.001
    assert found.times.max_draft_tokens == MAX_DRAFT_TOKENS
    assert all("seed" not in body for body in vllm.asked)
    assert {body["temperature"] for body in vllm.asked} == {0.0, 0.7}


def test_steps_over_so_many_tokens_are_those_of_so_many_requests_and_in_between_on_a_line() -> None:
    class Stepping:
        def __init__(self) -> None:
            self.asked: list[int] = []

        def step_seconds(self, prompts: object, *, at_once: int, num_tokens: int) -> float:
            self.asked.append(at_once)
            return {2: 3.0, 4: 4.0, 7: 10.0}[at_once]

    server = Stepping()
    assert verify_seconds(server, [[1]], 1.0, 7) == [1.0, 3.0, 3.5, 4.0, 6.0, 8.0, 10.0]
    assert server.asked == [2, 4, 7]


def test_a_draft_that_reads_other_tokens_is_fatal(url: str, vllm: PlainVllm) -> None:
    vllm.tokenizer = SimpleNamespace(encode=lambda text, *, add_special_tokens: [len(text), add_special_tokens])
    found = look(url)
    assert not found.is_usable
    assert found.times is None
    assert "make different tokens of prompt" in found.checks[-1].sentence


def test_a_draft_that_has_fewer_tokens_is_fatal(url: str) -> None:
    found = look(url, SpeculativeConfig(model="synthetic:vocab=64,step_ms=0,role=draft"))
    assert not found.is_usable
    assert found.times is None
    assert "and the draft has 64" in found.checks[-1].sentence


def test_a_server_that_drafts_already_cannot_be_forecast(url: str, vllm: PlainVllm) -> None:
    vllm.metrics = "vllm:spec_decode_num_drafts_total 9"
    with pytest.raises(ConfigError, match="drafts already, so its plain steps cannot be timed"):
        look(url)


def test_what_the_server_refuses_is_passed_on(url: str, vllm: PlainVllm) -> None:
    vllm.refusal = "prompt is longer than 512"
    with pytest.raises(ConfigError, match="refuses: prompt is longer than 512"):
        look(url)


def test_a_head_is_no_draft_for_vllm(url: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="vLLM gives no hidden states"):
        look(url, SpeculativeConfig(method="eagle3", model=str(tmp_path)))
