"""EAGLE-1 and EAGLE-3 heads alike, under both rules: a tiny float32 target whose every token depends on its whole past.

The heads are mostly right about the next token and wrong about the one after, so that every round accepts and rolls
back. What rejection sampling keeps of the distribution is tested in `test_rejection_heads.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

import pytest
from predictable import write_eagle1_reader, write_reader, write_target

from starspec.config import FIXED_LENGTH, ModelConfig, SampleMethod, SpeculativeConfig
from starspec.engine.drafts import NoDrafts
from starspec.harness.decode import Job, JobResult, decode, make_engine
from starspec.harness.workbench import Workbench
from starspec.sampling.spec import SamplingSpec

NUM_TOKENS = 40
CHAIN = SpeculativeConfig(num_speculative_tokens=3, max_model_len=128, length=FIXED_LENGTH)
SHAPES = {"chain": CHAIN, "tree": replace(CHAIN, num_steps=3, eagle_topk=2, num_draft_tokens=9)}
SAMPLINGS = {
    "greedy": SamplingSpec(temperature=0.0, frequency_penalty=0.4),
    "sampled": SamplingSpec(temperature=0.7),
    "penalized": SamplingSpec(temperature=1.0, top_p=0.9, presence_penalty=0.3),
}


class Head(NamedTuple):
    method: Literal["eagle", "eagle3"]
    folder: str


WRITERS: dict[str, Callable[[Path], Path]] = {"eagle": write_eagle1_reader, "eagle3": write_reader}


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Workbench:
    folder = write_target(tmp_path_factory.mktemp("models") / "target", wavers=True)
    return Workbench(ModelConfig(model=str(folder), dtype="float32", num_rows=4, max_model_len=128, num_threads=1))


@pytest.fixture(scope="module", params=WRITERS)
def head(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Head:
    return Head(request.param, str(WRITERS[request.param](tmp_path_factory.mktemp("heads") / "head")))


def answers_of(bench: Workbench, sampling: str, shape: str, head: Head, rule: SampleMethod) -> list[JobResult]:
    """With drafts, four at once; some of the drafts are accepted, and some are not."""
    speculative = replace(SHAPES[shape], method=head.method, model=head.folder, rejection_sample_method=rule)
    engine = make_engine(bench.runner, bench.tokenizer, bench.drafts(speculative))
    answers = decode(engine, jobs_of(sampling), batch_size=4)
    engine.check_integrity()
    assert engine.stats.acceptance.num_accepted_tokens > NUM_TOKENS / 2
    assert engine.stats.acceptance.acceptance_rate < 0.9
    return answers


@pytest.fixture(scope="module")
def plain(bench: Workbench) -> dict[str, list[list[int]]]:
    """The answers of plain decoding alone, of each way of sampling."""
    engine = make_engine(bench.runner, bench.tokenizer, NoDrafts())
    return {
        sampling: [answer.token_ids for answer in decode(engine, jobs_of(sampling), batch_size=1)]
        for sampling in SAMPLINGS
    }


def jobs_of(sampling: str) -> list[Job]:
    prompts = [tuple(range(5 + seed, 8 + 3 * seed)) for seed in range(6)]  # ragged
    return [Job("", prompt, replace(SAMPLINGS[sampling], seed=seed), NUM_TOKENS) for seed, prompt in enumerate(prompts)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_coupled_drafts_of_a_head_change_no_token(
    bench: Workbench, plain: dict[str, list[list[int]]], head: Head, sampling: str, shape: str
) -> None:
    answers = answers_of(bench, sampling, shape, head, "coupled")
    assert [answer.token_ids for answer in answers] == plain[sampling]


@pytest.mark.parametrize("shape", SHAPES)
def test_rejection_changes_no_greedy_token_with_a_head(
    bench: Workbench, plain: dict[str, list[list[int]]], head: Head, shape: str
) -> None:
    answers = answers_of(bench, "greedy", shape, head, "rejection")
    assert [answer.token_ids for answer in answers] == plain["greedy"]


@pytest.mark.parametrize("shape", SHAPES)
def test_rejection_ends_every_sampled_answer_with_a_head(bench: Workbench, head: Head, shape: str) -> None:
    answers = answers_of(bench, "penalized", shape, head, "rejection")
    assert [(len(answer.token_ids), answer.finish_reason) for answer in answers] == [(NUM_TOKENS, "length")] * 6
