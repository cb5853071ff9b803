"""Level 3 of docs/lossless.md, for rejection sampling in the whole star: answers are distributed as the target's own.

Thousands of requests, each with a seed of its own, through a real hub, the coded wire and the engine. Chi-square of
the first token, the first two, and all of them. The last token of an answer has no draft, trees are cut to fewer nodes
than are drawn, and in a batch there are fewer draft rows than tags, so that trees are lost and drawn again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace

import pytest
from scipy import stats
from table_star import distribution_of_answers, make_plain, make_star

from starspec.config import BatchingConfig, SampleMethod
from starspec.engine.engine import TargetEngine
from starspec.harness.decode import Job, decode
from starspec.hub import children
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.budget import DraftBudget
from starspec.speculation.propose_rejection import DrawnChildren

FALSE_ALARM = 1e-4  # over the whole file (Bonferroni); seeds are fixed, so these tests pass always or never
NUM_ANSWERS = 1000  # of each test; of 600, a rule without a residual would be seen
NUM_LATE_ANSWERS = 2000  # few of them keep something of a late proposal
NUM_TOKENS = 3
PROMPT = (1, 2)
BUDGETS = {
    "chain": DraftBudget.chain(2),
    "tree": DraftBudget(num_draft_tokens=3, num_steps=2, top_k=2),  # of 6 nodes that are drawn
    "deep tree": DraftBudget(num_draft_tokens=9, num_steps=3, top_k=3),
    "doubting tree": DraftBudget(num_draft_tokens=9, num_steps=3, top_k=3, p_min=0.5),
}
SAMPLINGS = {
    "free": SamplingSpec(temperature=1.0),
    "warped": SamplingSpec(
        temperature=0.8, top_k=3, top_p=0.95, repetition_penalty=1.3, frequency_penalty=0.4, end_token_ids=(3,)
    ),
}
CASES = [("chain", "free", 1), ("tree", "warped", 1), ("tree", "free", 4), ("chain", "warped", 4)]
CASES += [("chain", "free", 8), ("tree", "warped", 8), ("deep tree", "free", 8), ("doubting tree", "free", 8)]
ROLLBACK_CASES = [("chain", "free"), ("tree", "warped")]
LATE_CASES = [("long chain", "coupled"), ("long chain", "rejection"), ("wide tree", "rejection")]
LATE_BUDGETS = {
    "long chain": DraftBudget.chain(4),
    "wide tree": DraftBudget(num_draft_tokens=16, num_steps=4, top_k=3),
}
FALSE_ALARM_EACH = FALSE_ALARM / (len(CASES) + len(ROLLBACK_CASES) + len(LATE_CASES))
Answer = tuple[int, ...]


def answers_of(
    engine: TargetEngine,
    sampling: SamplingSpec,
    batch_size: int = 4,
    num: int = NUM_ANSWERS,
    num_tokens: int = NUM_TOKENS,
) -> list[Answer]:
    jobs = [Job("", PROMPT, replace(sampling, seed=seed), num_tokens) for seed in range(num)]
    return [tuple(answer.token_ids) for answer in decode(engine, jobs, batch_size=batch_size)]


def p_value(answers: list[Answer], sampling: SamplingSpec, num_tokens: int = NUM_TOKENS) -> float:
    """Chi-square of the answers' beginnings of every length; corrected for how many lengths there are."""
    expected = distribution_of_answers(PROMPT, sampling, num_tokens)
    assert set(answers) <= expected.keys()
    p_values = []
    for length in range(1, num_tokens + 1):
        found, chances = Counter(answer[:length] for answer in answers), defaultdict[Answer, float](float)
        for answer, chance in expected.items():
            chances[answer[:length]] += chance
        cells = [(found[begin], chance * len(answers)) for begin, chance in chances.items()]
        rare = [cell for cell in cells if cell[1] < 5]  # one cell together
        cells = [cell for cell in cells if cell[1] >= 5] + ([tuple(map(sum, zip(*rare, strict=True)))] if rare else [])
        p_values.append(float(stats.chisquare(*zip(*cells, strict=True)).pvalue))
    return min(p_values) * num_tokens


@pytest.mark.parametrize(("shape", "sampling", "batch_size"), CASES)
def test_answers_are_distributed_as_the_targets_own(shape: str, sampling: str, batch_size: int) -> None:
    engine = make_star(BUDGETS[shape], batch_size, "rejection").engine
    answers = answers_of(engine, SAMPLINGS[sampling], batch_size)
    assert p_value(answers, SAMPLINGS[sampling]) > FALSE_ALARM_EACH
    assert engine.stats.acceptance.num_accepted_tokens > NUM_ANSWERS / 2  # drafts were really at work
    assert engine.stats.acceptance.acceptance_rate < 0.9  # and often wrong


@pytest.mark.parametrize(("shape", "sampling"), ROLLBACK_CASES)
def test_rolling_back_to_the_slowest_of_a_batch_keeps_the_distribution(shape: str, sampling: str) -> None:
    """What a neighbour's refusal takes back was drawn from the distribution, and is drawn again."""
    rollback = BatchingConfig(method="rollback", admission="fixed")  # together from the start, so that drafts are cut
    engine = make_star(BUDGETS[shape], 3, "rejection", rollback).engine
    answers = answers_of(engine, SAMPLINGS[sampling], 2)
    assert p_value(answers, SAMPLINGS[sampling]) > FALSE_ALARM_EACH
    assert engine.stats.acceptance.num_accepted_tokens > NUM_ANSWERS / 10  # drafts were really at work
    kept_alone = make_star(BUDGETS[shape], 3, "rejection").engine
    answers_of(kept_alone, SAMPLINGS[sampling], 2, 2 * NUM_ANSWERS // 5)
    assert engine.stats.acceptance.acceptance_rate < 0.9 * kept_alone.stats.acceptance.acceptance_rate


@pytest.mark.parametrize(("shape", "method"), LATE_CASES)
def test_what_is_left_of_late_proposals_keeps_the_distribution(shape: str, method: SampleMethod) -> None:
    """Whether a proposal is of use still depends on what the target has drawn meanwhile, without it."""
    engine = make_star(LATE_BUDGETS[shape], 2, method, is_late=True).engine
    answers = answers_of(engine, SAMPLINGS["free"], 2, NUM_LATE_ANSWERS, num_tokens=6)
    assert p_value(answers, SAMPLINGS["free"], 6) > FALSE_ALARM_EACH
    assert engine.stats.num_late_rounds > NUM_LATE_ANSWERS / 4
    assert engine.stats.acceptance.num_accepted_tokens > NUM_LATE_ANSWERS / 20  # what was left was really at work
    assert engine.stats.acceptance.acceptance_rate < 0.9  # and often wrong
    if method == "coupled":
        assert answers[:300] == answers_of(make_plain(2), SAMPLINGS["free"], 2, 300, 6)


@pytest.mark.parametrize("shape", BUDGETS)
def test_without_temperature_and_without_speculation_it_is_plain_decoding(shape: str) -> None:
    greedy = SamplingSpec(temperature=0.0, frequency_penalty=0.4)
    for sampling, num_draft_tokens in ((greedy, None), (SAMPLINGS["warped"], 0)):
        jobs = [Job("", (seed % 4, 1), replace(sampling, seed=seed), 12, num_draft_tokens) for seed in range(60)]
        expected = [answer.token_ids for answer in decode(make_plain(1), jobs, batch_size=1)]
        engine = make_star(BUDGETS[shape], 4, "rejection").engine
        assert [answer.token_ids for answer in decode(engine, jobs, batch_size=4)] == expected


def test_a_hub_that_lies_about_its_distribution_is_believed_here_and_nowhere_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lie(*args: object, **options: object) -> DrawnChildren:
        draft, confidences = draw_children(*args, **options)  # type: ignore[arg-type]
        return DrawnChildren(replace(draft, probs=(1 / len(draft.probs),) * len(draft.probs)), confidences)

    draw_children = children.draw_children
    monkeypatch.setattr(children, "draw_children", lie)
    assert (
        p_value(answers_of(make_star(BUDGETS["tree"], 4, "rejection").engine, SAMPLINGS["free"]), SAMPLINGS["free"])
        < 1e-12
    )
    coupled = make_star(BUDGETS["tree"], 4, "coupled").engine
    assert answers_of(coupled, SAMPLINGS["free"], num=200) == answers_of(make_plain(4), SAMPLINGS["free"], num=200)
