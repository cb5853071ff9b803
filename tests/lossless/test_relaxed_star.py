"""Relaxed verification in the whole star: what it may change, what it must not, and what it counts."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace

import pytest
import torch
from scipy import stats
from table_star import DRAFT, TARGET, distribution_of_answers, make_plain, make_star, row_after

from starspec.config import BatchingConfig, SampleMethod
from starspec.harness.decode import Job, JobResult, decode
from starspec.hub import children
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.acceptance import KeyThresholds, Relaxation
from starspec.speculation.budget import DraftBudget
from starspec.speculation.relaxed import soften
from starspec.speculation.signals import top_tokens
from starspec.speculation.tree import TopTokens

THRESHOLDS = KeyThresholds(lambda_1=4.0, lambda_2=0.5, lambda_3=0.3)  # these two tables differ much
BUDGETS = {
    "chain": DraftBudget.chain(2),
    "tree": DraftBudget(num_draft_tokens=6, num_steps=3, top_k=2),
}
SAMPLINGS = {
    "greedy": SamplingSpec(temperature=0.0),
    "greedy with a penalty": SamplingSpec(temperature=0.0, frequency_penalty=0.4),
    "free": SamplingSpec(temperature=1.0),
    "warped": SamplingSpec(temperature=0.8, top_k=3, top_p=0.95, repetition_penalty=1.3, end_token_ids=(3,)),
}
METHODS: tuple[SampleMethod, ...] = ("coupled", "rejection")
by_star = pytest.mark.parametrize(("shape", "method"), [(shape, method) for shape in BUDGETS for method in METHODS])
by_sampling = pytest.mark.parametrize("sampling", SAMPLINGS)
NUM = 16


def jobs_of(sampling: str, tau: float, num: int = NUM, num_tokens: int = 6) -> list[Job]:
    """Requests with prompts and seeds of their own."""
    return [
        Job("", (seed % 4, seed // 4 % 4, 1), replace(SAMPLINGS[sampling], seed=seed), num_tokens, relaxed_tau=tau)
        for seed in range(num)
    ]


def answers_of(jobs: list[Job], shape: str, method: SampleMethod, batch_size: int = 4) -> list[JobResult]:
    engine = make_star(BUDGETS[shape], batch_size, method, thresholds=THRESHOLDS).engine
    return decode(engine, jobs, batch_size=batch_size)


def tokens(answers: list[JobResult]) -> list[list[int]]:
    return [answer.token_ids for answer in answers]


def num_relaxed(answers: list[JobResult]) -> int:
    return sum(answer.stats.acceptance.num_relaxed_tokens for answer in answers)


@by_star
@by_sampling
def test_with_tau_0_answers_are_those_of_the_strict_rule(shape: str, method: SampleMethod, sampling: str) -> None:
    strict = [replace(job, relaxed_tau=0.0) for job in jobs_of(sampling, 0.5)]
    expected = decode(make_star(BUDGETS[shape], 4, method).engine, strict, batch_size=4)
    found = answers_of(jobs_of(sampling, 0.0), shape, method)
    assert [(each.token_ids, each.stats.acceptance, each.stats.is_lossless) for each in found] == [
        (each.token_ids, each.stats.acceptance, True) for each in expected
    ]


@pytest.mark.parametrize("shape", BUDGETS)
@by_sampling
def test_an_answer_changes_only_with_a_token_that_is_counted(shape: str, sampling: str) -> None:
    """Coupled: up to the first token that only relaxation accepts, an answer is that of plain decoding."""
    relaxed, plain = jobs_of(sampling, 0.6), decode(make_plain(1), jobs_of(sampling, 0.0), batch_size=1)
    found = answers_of(relaxed, shape, "coupled")
    num_changed = 0
    for answer, own in zip(found, plain, strict=True):
        assert not answer.stats.is_lossless  # what is promised, whatever happened
        num_changed += answer.token_ids != own.token_ids
        assert (answer.stats.acceptance.num_relaxed_tokens > 0) == (answer.token_ids != own.token_ids)
    assert 0 < num_changed < NUM


def test_other_requests_of_the_batch_are_untouched() -> None:
    strict, relaxed = jobs_of("free", 0.0), jobs_of("free", 0.6)
    mixed = [relaxed[index] if index % 2 else strict[index] for index in range(NUM)]
    found = answers_of(mixed, "tree", "coupled")
    assert tokens(found[::2]) == tokens(decode(make_plain(1), strict, batch_size=1))[::2]
    assert all(each.stats.is_lossless and not num_relaxed([each]) for each in found[::2])
    assert tokens(found[1::2]) == tokens(answers_of(relaxed, "tree", "coupled"))[1::2]
    assert num_relaxed(found) > 0


@pytest.mark.parametrize("method", METHODS)
def test_a_hub_that_states_nothing_gets_strict_verification(
    method: SampleMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "_stated", lambda *_: TopTokens((), ()))
    found = answers_of(jobs_of("free", 0.6), "tree", method)
    assert tokens(found) == tokens(answers_of(jobs_of("free", 0.0), "tree", method))
    assert num_relaxed(found) == 0
    assert not any(each.stats.is_lossless for each in found)


def test_rolling_back_to_the_slowest_keeps_what_is_counted_with_what_is_kept() -> None:
    rollback = BatchingConfig(method="rollback", admission="fixed")
    engine = make_star(BUDGETS["chain"], 3, "coupled", rollback, thresholds=THRESHOLDS).engine
    found = decode(engine, jobs_of("greedy", 0.6), batch_size=2)
    plain = decode(make_plain(1), jobs_of("greedy", 0.0), batch_size=1)
    assert [num_relaxed([each]) > 0 for each in found] == [
        each.token_ids != own.token_ids for each, own in zip(found, plain, strict=True)
    ]
    assert engine.stats.acceptance.num_relaxed_tokens == num_relaxed(found) > 0


FALSE_ALARM = 1e-4 / 2
NUM_ANSWERS = 1000
PROMPT = (1, 2)
TAU = 0.7


def softened_after(token_ids: list[int]) -> torch.Tensor:
    """The target's row, as relaxed verification sees it. The last of three tokens has no draft."""
    row = row_after(TARGET, token_ids)
    if len(token_ids) == len(PROMPT) + 2:
        return row
    softened = soften(row, top_tokens(row_after(DRAFT, token_ids)[None], 16)[0], Relaxation(TAU, THRESHOLDS))
    return row if softened is None else softened


@pytest.mark.parametrize("shape", BUDGETS)
def test_under_rejection_answers_follow_the_softened_distribution(shape: str) -> None:
    jobs = [Job("", PROMPT, SamplingSpec(seed=seed), 3, relaxed_tau=TAU) for seed in range(NUM_ANSWERS)]
    engine = make_star(BUDGETS[shape], 2, "rejection", thresholds=THRESHOLDS).engine
    found = Counter(tuple(answer.token_ids) for answer in decode(engine, jobs, batch_size=1))  # one has a row for sure
    softened = distribution_of_answers(PROMPT, SamplingSpec(), 3, softened_after)
    strict = distribution_of_answers(PROMPT, SamplingSpec(), 3)
    assert p_value(found, softened) > FALSE_ALARM
    assert p_value(found, strict) < 1e-9  # softening is no trifle here
    assert engine.stats.acceptance.num_relaxed_tokens > NUM_ANSWERS / 50


def p_value(found: Counter[tuple[int, ...]], expected: dict[tuple[int, ...], float]) -> float:
    cells = defaultdict[tuple[int, ...], list[float]](lambda: [0.0, 0.0])
    for answer, chance in expected.items():
        cell = answer if chance * NUM_ANSWERS >= 5 else ()  # rare ones together
        cells[cell][0] += found[answer]
        cells[cell][1] += chance * NUM_ANSWERS
    return float(stats.chisquare(*zip(*cells.values(), strict=True)).pvalue)
