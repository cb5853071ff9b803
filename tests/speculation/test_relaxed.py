"""DSD's equations 7 and 8 by hand and against the slow reference, and what a relaxed walk accepts."""

from __future__ import annotations

from collections.abc import Sequence
from math import log

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from starspec.sampling.draw import next_token
from starspec.sampling.spec import SamplingSpec
from starspec.speculation import reference
from starspec.speculation.acceptance import COUPLED, NUM_STATED, REJECTION, RULES, KeyThresholds, Relaxation
from starspec.speculation.propose_rejection import draw_children
from starspec.speculation.relaxed import evidence, soften
from starspec.speculation.signals import top_tokens
from starspec.speculation.tree import ROOT, DraftTree, TopTokens
from starspec.speculation.verify import VerifyResult, verify_tree, verify_trees

NO_KEYS = KeyThresholds(lambda_1=1e9, lambda_2=1.0, lambda_3=0.0)
GREEDY = SamplingSpec(temperature=0.0)


def logits_of(*probs: float) -> torch.Tensor:
    return torch.tensor(probs, dtype=torch.float64).log() + 3.0  # a constant changes no distribution


def stated(**probs: float) -> TopTokens:
    """`stated(_1=0.6)`: token 1 with that probability."""
    return TopTokens(tuple(int(name[1:]) for name in probs), tuple(log(each) for each in probs.values()))


def probs_of(row: torch.Tensor | None) -> list[float]:
    assert row is not None
    return row.softmax(0).tolist()


# ---------------------------------------------------------------- equation 7


def test_the_evidence_by_hand() -> None:
    target, draft = logits_of(0.5, 0.3) - 3.0, logits_of(0.125, 0.4) - 3.0
    found = evidence(target, draft)
    assert found.ratios.tolist() == pytest.approx([3.0, log(0.4) / log(0.3)])  # ln 8 / ln 2
    assert found.differences.tolist() == pytest.approx([0.375, 0.1])
    assert found.norm_match == pytest.approx(0.125 + 0.3)


@pytest.mark.parametrize(
    ("thresholds", "are_key"),
    [
        (KeyThresholds(lambda_1=3.1, lambda_2=0.4, lambda_3=0.4), [False, False]),
        (KeyThresholds(lambda_1=2.9, lambda_2=0.4, lambda_3=0.4), [True, False]),
        (KeyThresholds(lambda_1=3.1, lambda_2=0.3, lambda_3=0.4), [True, False]),
        (KeyThresholds(lambda_1=3.1, lambda_2=0.05, lambda_3=0.4), [True, True]),
        (KeyThresholds(lambda_1=3.1, lambda_2=0.4, lambda_3=0.45), [True, True]),  # the whole position
    ],
)
def test_each_of_the_three_tests_makes_a_token_key(thresholds: KeyThresholds, are_key: list[bool]) -> None:
    found = evidence(logits_of(0.5, 0.3) - 3.0, logits_of(0.125, 0.4) - 3.0)
    assert found.is_key(thresholds).tolist() == are_key


def test_a_token_of_which_the_target_is_certain_is_key_only_if_the_draft_is_not_sure() -> None:
    certain, thresholds = torch.zeros(1, dtype=torch.float64), KeyThresholds(lambda_1=3.0, lambda_2=1.0, lambda_3=0.0)
    for prob, is_key in ((1.0, False), (0.99, False), (0.8, False), (0.7, True)):  # -ln 0.74 is 3 * MIN_NATS
        assert evidence(certain, torch.tensor([log(prob)])).is_key(thresholds).tolist() == [is_key]


def test_a_token_that_both_exclude_is_no_disagreement_and_one_that_the_draft_excludes_is() -> None:
    never = torch.tensor([-torch.inf, -1.0])
    found = evidence(never, torch.full((2,), -torch.inf))
    assert found.ratios.tolist() == [1.0, torch.inf]


@pytest.mark.parametrize(
    "wrong", [{"lambda_1": 0.0}, {"lambda_2": 1.5}, {"lambda_3": -0.1}, {"lambda_1": float("nan")}]
)
def test_thresholds_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        KeyThresholds(**wrong)


# ---------------------------------------------------------------- equation 8


def test_softening_by_hand() -> None:
    row = logits_of(0.5, 0.3, 0.2)
    # sqrt(0.5 * 0.2) : sqrt(0.3 * 0.6) : sqrt(0.2 * 0.2) = 0.3162 : 0.4243 : 0.2, of 0.9405
    softened = soften(row, stated(_0=0.2, _1=0.6, _2=0.2), Relaxation(0.5, NO_KEYS))
    assert probs_of(softened) == pytest.approx([0.3362, 0.4511, 0.2127], abs=1e-4)
    # only tokens 0 and 1 are stated: they share 0.8 as 0.3162 : 0.4243
    softened = soften(row, stated(_1=0.6, _0=0.2), Relaxation(0.5, NO_KEYS))
    assert probs_of(softened) == pytest.approx([0.3416, 0.4584, 0.2], abs=1e-4)
    assert soften(row, stated(_1=0.6, _0=0.2), Relaxation(0.5, NO_KEYS))[2] == row[2]


def test_a_key_token_keeps_its_probability_and_the_others_share_theirs() -> None:
    row, top = logits_of(0.6, 0.2, 0.1, 0.1), stated(_0=0.2, _1=0.2, _2=0.4)
    softened = soften(row, top, Relaxation(1.0, KeyThresholds(lambda_1=9.0, lambda_2=0.35, lambda_3=0.0)))
    assert probs_of(softened) == pytest.approx([0.6, 0.1, 0.2, 0.1])  # |0.6 - 0.2| > 0.35; 0.3 is shared as 1 : 2


def test_nothing_is_softened_if_all_are_key_or_nothing_can_be_compared() -> None:
    row, relaxation = logits_of(0.5, 0.3, 0.2), Relaxation(0.5, NO_KEYS)
    assert soften(row, stated(_0=0.2, _1=0.6), Relaxation(0.5, KeyThresholds(lambda_3=0.9))) is None
    assert soften(row, stated(_0=0.2), relaxation) is None  # one token has nobody to share with
    assert soften(row, TopTokens((), ()), relaxation) is None
    for strange in (torch.nan, torch.inf):
        assert soften(torch.tensor([0.0, strange, 1.0]), stated(_0=0.2, _1=0.6), relaxation) is None
    assert soften(torch.full((3,), -torch.inf), stated(_0=0.2, _1=0.6), relaxation) is None


@pytest.mark.parametrize("tau", [0.3, 1.0])
def test_what_one_of_them_excludes_stays_as_it_is(tau: float) -> None:
    row = torch.tensor([0.0, -torch.inf, 1.0, 0.5])
    top = TopTokens((0, 1, 2, 3), (log(0.1), log(0.5), log(0.4), -torch.inf))
    softened = soften(row, top, Relaxation(tau, NO_KEYS))
    assert softened is not None
    assert softened[1] == -torch.inf
    assert softened[3] == 0.5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_models_logits_are_not_changed(dtype: torch.dtype) -> None:
    row = logits_of(0.5, 0.3, 0.2).to(dtype)
    before = row.clone()
    assert soften(row, stated(_0=0.2, _1=0.6), Relaxation(0.5, NO_KEYS)) is not None
    assert torch.equal(row, before)


rows = st.lists(st.floats(-8, 8), min_size=6, max_size=6)
any_thresholds = st.builds(
    KeyThresholds, lambda_1=st.floats(0.5, 9), lambda_2=st.floats(0.05, 1), lambda_3=st.floats(0, 0.8)
)


@given(target=rows, draft=rows, num=st.integers(1, 6), tau=st.floats(0.01, 1), thresholds=any_thresholds)
def test_it_is_the_references_distribution(
    target: list[float], draft: list[float], num: int, tau: float, thresholds: KeyThresholds
) -> None:
    row = torch.tensor(target, dtype=torch.float64)
    (top,) = top_tokens(torch.tensor([draft]), num)
    told = dict(zip(top.token_ids, torch.tensor(top.logprobs, dtype=torch.float64).exp().tolist(), strict=True))
    own = row.softmax(0).tolist()
    near = [abs(abs(own[each] - prob) - thresholds.lambda_2) for each, prob in told.items()]
    near.append(abs(sum(min(own[each], prob) for each, prob in told.items()) - thresholds.lambda_3))
    near += [abs(max(0.1, -log(q)) / max(0.1, -log(own[each])) - thresholds.lambda_1) for each, q in told.items()]
    assume(min(near) > 1e-9)  # rounding decides there
    softened = soften(row, top, Relaxation(tau, thresholds))
    found = own if softened is None else probs_of(softened)
    assert found == pytest.approx(reference.soften(own, told, tau, thresholds), abs=1e-9)


@given(target=rows, draft=rows, num=st.integers(2, 6), taus=st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)))
def test_the_sum_stays_1_other_tokens_stay_and_odds_move_monotonely(
    target: list[float], draft: list[float], num: int, taus: tuple[float, float]
) -> None:
    row = torch.tensor(target, dtype=torch.float64)
    (top,) = top_tokens(torch.tensor([draft]), num)
    less, more = (soften(row, top, Relaxation(tau, NO_KEYS)) for tau in sorted(taus))
    assert less is not None
    assert more is not None
    for softened in (less, more):
        assert float(softened.logsumexp(0)) == pytest.approx(float(row.logsumexp(0)), abs=1e-9)
        others = [each for each in range(6) if each not in top.token_ids]
        assert torch.equal(softened[others], row[others])
    stated_ids, last = list(top.token_ids), top.token_ids[-1]
    odds = [each[stated_ids] - each[last] for each in (row, less, more)]
    theirs = torch.tensor(top.logprobs, dtype=torch.float64) - top.logprobs[-1]
    between = ((odds[1] - odds[0]) * (theirs - odds[0]) >= -1e-9) & ((odds[2] - odds[1]) * (theirs - odds[0]) >= -1e-9)
    assert bool(between.all())  # from the target's odds towards the draft's, further with a larger tau


# ---------------------------------------------------------------- the walk

#   committed ── 0:"1" ── 1:"2"       The target would say "0" twice.
ROWS = torch.stack([logits_of(0.5, 0.4, 0.1), logits_of(0.5, 0.1, 0.4), logits_of(0.2, 0.2, 0.6)])
TOPS = {ROOT: stated(_1=0.6, _0=0.3, _2=0.1), 0: stated(_2=0.6, _0=0.3)}
CHAIN = DraftTree((1, 2), (ROOT, 0), tops=TOPS)
HALF = Relaxation(0.5, NO_KEYS)


def test_near_equals_are_accepted_and_counted() -> None:
    assert verify_tree(CHAIN, ROWS, GREEDY, 3) == VerifyResult((), (0,))
    assert verify_tree(CHAIN, ROWS, GREEDY, 3, None, HALF) == VerifyResult((0, 1), (1, 2, 2), relaxed=(0, 1))


def test_a_key_token_is_verified_strictly() -> None:
    strict = Relaxation(0.5, KeyThresholds(lambda_1=9.0, lambda_2=0.19, lambda_3=0.0))  # |0.5 - 0.3| and |0.4 - 0.6|
    assert verify_tree(CHAIN, ROWS, GREEDY, 3, None, strict) == VerifyResult((), (0,))


def test_a_key_token_is_not_accepted_because_others_lost_their_probability() -> None:
    """Tokens 0 and 2 share 0.4 and 0.25 evenly, and key token 1 would be the likeliest with its 0.35."""
    row, top = logits_of(0.4, 0.35, 0.25), stated(_0=0.2, _1=0.6, _2=0.2)
    relaxation = Relaxation(1.0, KeyThresholds(lambda_1=9.0, lambda_2=0.24, lambda_3=0.0))
    assert probs_of(soften(row, top, relaxation)) == pytest.approx([0.325, 0.35, 0.325])
    key = DraftTree((1,), (ROOT,), tops={ROOT: top})
    assert verify_tree(key, torch.stack([row, row]), GREEDY, 3, None, relaxation) == VerifyResult((), (0,))


def test_what_only_relaxation_accepts_is_stated_and_not_key() -> None:
    chance, num_relaxed = torch.Generator().manual_seed(0), 0
    relaxation = Relaxation(1.0, KeyThresholds(lambda_1=2.0, lambda_2=0.2, lambda_3=0.0))
    for seed in range(200):
        row = torch.randn(6, generator=chance, dtype=torch.float64)
        (top,) = top_tokens(torch.randn(1, 6, generator=chance), 4)
        stated_by_target = row[list(top.token_ids)] - row.logsumexp(0)
        are_key = evidence(stated_by_target, torch.tensor(top.logprobs, dtype=torch.float64)).is_key(
            relaxation.thresholds
        )
        soft = {token_id for token_id, is_key in zip(top.token_ids, are_key.tolist(), strict=True) if not is_key}
        for sampling in (GREEDY, SamplingSpec(seed=seed)):
            own = next_token(row, sampling, 3)
            for guess in range(6):
                tree = DraftTree((guess,), (ROOT,), tops={ROOT: top})
                result = verify_tree(tree, torch.stack([row, row]), sampling, 3, None, relaxation)
                assert result.token_ids[0] in {own, guess}
                assert result.relaxed == ((0,) if result.token_ids[0] != own else ())
                assert not result.relaxed or guess in soft
                num_relaxed += len(result.relaxed)
    assert num_relaxed > 20


def test_a_node_after_which_nothing_is_stated_is_verified_strictly() -> None:
    first_only = DraftTree((1, 2), (ROOT, 0), tops={ROOT: TOPS[ROOT]})
    assert verify_tree(first_only, ROWS, GREEDY, 3, None, HALF) == VerifyResult((0,), (1, 0), relaxed=(0,))


def test_the_targets_own_token_comes_first_if_it_was_drafted_too() -> None:
    both = DraftTree((1, 0), (ROOT, ROOT), tops={ROOT: TOPS[ROOT]})
    assert verify_tree(both, ROWS, GREEDY, 3, None, HALF) == VerifyResult((1,), (0, 2))


def test_no_token_changes_where_none_is_gained() -> None:
    other = DraftTree((2,), (ROOT,), tops={ROOT: TOPS[ROOT]})  # softened, the target says 1, which is no child
    assert verify_tree(other, ROWS[:2], GREEDY, 3, None, HALF) == VerifyResult((), (0,))


class NotOne:
    def allowed(self, path: Sequence[int]) -> torch.Tensor:
        return torch.tensor([True, False, True])


def test_what_the_grammar_refuses_is_not_accepted_as_nearly_equal() -> None:
    assert verify_tree(CHAIN, ROWS, GREEDY, 3, None, HALF, NotOne()) == VerifyResult((), (0,))


def test_cutting_a_result_keeps_the_counts_of_what_is_left() -> None:
    result = VerifyResult((0, 1), (1, 2, 2), relaxed=(0, 1))
    assert result.cut(3) == result
    assert result.cut(2) == VerifyResult((0,), (1, 2), relaxed=(0, 1))  # both tokens are still what relaxation took
    assert result.cut(1) == VerifyResult((), (1,), relaxed=(0,))


@given(st.integers(0, 500))
def test_with_tau_1_whatever_the_draft_proposes_is_accepted_if_nothing_is_key(seed: int) -> None:
    logits = torch.randn(2, 8, generator=torch.Generator().manual_seed(seed)) * 2
    target, draft = logits
    top = top_tokens(draft[None], 8)[0]
    for sampling in (GREEDY, SamplingSpec(seed=seed), SamplingSpec(temperature=0.6, top_p=0.9, seed=seed)):
        guess = next_token(draft, sampling, 5)
        tree = DraftTree((guess,), (ROOT,), tops={ROOT: top})
        rows = torch.stack([target, target])
        assert verify_tree(tree, rows, sampling, 5, None, Relaxation(1.0, NO_KEYS)).token_ids[0] == guess
        if not sampling.is_greedy:
            drafted = draw_children(draft, sampling, 5, None, num_tokens=1, draw_seed=seed).draft
            drawn = DraftTree(drafted.candidates, (ROOT,), {ROOT: drafted}, tops={ROOT: top})
            result = verify_tree(drawn, rows, sampling, 5, None, Relaxation(1.0, NO_KEYS))
            assert result.accepted_nodes == (0,)


def test_others_of_the_batch_are_untouched_and_the_relaxed_one_is_as_alone() -> None:
    samplings = [GREEDY, GREEDY, SamplingSpec(seed=1), SamplingSpec(seed=1), SamplingSpec(temperature=0.0, top_k=2)]
    relaxations = [None, HALF, None, HALF, HALF]
    logits = ROWS.to(torch.bfloat16)
    together = verify_trees([CHAIN] * 5, torch.cat([logits] * 5), samplings, [3] * 5, [None] * 5, relaxations)
    alone = [
        verify_tree(CHAIN, logits, *each) for each in zip(samplings, [3] * 5, [None] * 5, relaxations, strict=True)
    ]
    assert together == alone
    assert verify_trees([CHAIN], logits, [GREEDY], [3], [None]) == together[:1]
    assert together[0] != together[1]


# ---------------------------------------------------------------- the rejection rule

NUM_SEEDS = 6000
FALSE_ALARM = 1e-4 / 2


@pytest.mark.parametrize("num_children", [1, 2])
def test_drawn_candidates_lead_to_the_softened_distribution(num_children: int) -> None:
    """Some tokens are key. The softened distribution is a function of both models, so draws cannot bend it."""
    target, draft = logits_of(0.4, 0.3, 0.15, 0.1, 0.05), logits_of(0.1, 0.35, 0.3, 0.2, 0.05)
    (top,) = top_tokens(draft[None], 4)
    relaxation = Relaxation(0.7, KeyThresholds(lambda_1=9.0, lambda_2=0.2, lambda_3=0.3))
    softened = soften(target, top, relaxation)
    expected = probs_of(softened)
    assert expected[0] == pytest.approx(0.4)  # key
    assert expected == pytest.approx(
        reference.soften(
            target.softmax(0).tolist(),
            dict(zip(top.token_ids, torch.tensor(top.logprobs).exp().tolist(), strict=True)),
            0.7,
            relaxation.thresholds,
        )
    )
    found, rows, num_relaxed = [0] * 5, torch.stack([target] * (1 + num_children)), 0
    for seed in range(NUM_SEEDS):
        sampling = SamplingSpec(seed=seed)
        drawn = draw_children(draft, sampling, 3, None, num_tokens=num_children, draw_seed=seed).draft
        tree = DraftTree(drawn.candidates, (ROOT,) * num_children, {ROOT: drawn}, tops={ROOT: top})
        result = verify_tree(tree, rows, sampling, 3, None, relaxation)
        found[result.token_ids[0]] += 1
        num_relaxed += len(result.relaxed)
    assert float(stats.chisquare(found, [prob * NUM_SEEDS for prob in expected]).pvalue) > FALSE_ALARM
    own = target.softmax(0).tolist()
    assert float(stats.chisquare(found, [prob * NUM_SEEDS for prob in own]).pvalue) < 1e-6  # a test that can fail
    assert num_relaxed > NUM_SEEDS / 50


# ---------------------------------------------------------------- the rules


def test_what_the_rules_promise_and_need() -> None:
    assert [(each.promise, each.needs_drawn, each.num_stated) for each in RULES.values()] == [
        ("exact", False, 0),
        ("distribution", True, 0),
    ]
    for rule in (COUPLED, REJECTION):
        assert rule.is_lossless
        relaxed = rule.relaxed()
        assert (relaxed.promise, relaxed.needs_drawn, relaxed.num_stated) == ("relaxed", rule.needs_drawn, NUM_STATED)
        assert not relaxed.is_lossless


def test_a_token_that_is_stated_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="stated twice"):
        DraftTree((1,), (ROOT,), tops={ROOT: TopTokens((2, 2), (-1.0, -1.0))})
