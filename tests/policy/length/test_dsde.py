"""DSDE's equations by hand, and what its policy does at the edges that the paper leaves open."""

from __future__ import annotations

from dataclasses import replace
from math import exp, inf, log
from typing import Any

import pytest

from starspec.policy.length.divergence import (
    CALIBRATION_ROUNDS,
    DECAY,
    MAX_KLD,
    Calibration,
    DivergenceHistory,
    weighted_variance,
)
from starspec.policy.length.dsde import MIN_LENGTH, Dsde, length_cap, predicted_length
from starspec.policy.length.snapshot import RoundSnapshot, SequenceSnapshot
from starspec.speculation.budget import DraftBudget

MOST = DraftBudget.chain(10)


def history(num_accepted: int = 6, kld: float = 0.1, later: list[list[float]] | None = None) -> DivergenceHistory:
    """Calibrated by rounds that all look alike, then those of `later`."""
    made = DivergenceHistory()
    for _ in range(CALIBRATION_ROUNDS):
        made.add_round([kld, kld], num_accepted)
    for klds in later or []:
        made.add_round(klds, 1)
    return made


def chosen(*histories: DivergenceHistory, is_capped: bool = True, **fields: Any) -> list[int]:
    sequences = [SequenceSnapshot(divergence=each, **{"max_remaining_tokens": 100, **fields}) for each in histories]
    policy = Dsde(MOST, is_capped=is_capped)
    return [each.budget.num_draft_tokens for each in policy.choose(RoundSnapshot(sequences=sequences, num_sequences=1))]


def test_equation_1_raises_the_most_accepted_length_by_mean_over_largest_divergence() -> None:
    assert Calibration(6, 0.5, 2.0).max_length == pytest.approx(7.5)
    assert Calibration(6, 0.0, 0.0).max_length == 6.0  # epsilon: no division by zero
    assert Calibration(0, 0.5, 2.0).max_length == 0.0


def test_equation_3_is_e_to_twice_the_mean_of_the_last_round_less_one() -> None:
    assert history(later=[[9.0], [0.1, 0.3]]).scale_factor == pytest.approx(exp(0.4) - 1.0)
    assert history(kld=0.0).scale_factor == 0.0


def test_equations_5_to_7_weigh_newer_values_more() -> None:
    # by hand: weights 1, 0.85, 0.7225 of 3, 1, 1: mean 1 + 2 / 2.5725; variance 4 * (w - w^2) with w = 1 / 2.5725
    share = 1.0 / (1.0 + DECAY + DECAY**2)
    assert weighted_variance([3.0, 1.0, 1.0]) == pytest.approx(4.0 * (share - share**2))
    assert weighted_variance([]) == weighted_variance([2.0]) == weighted_variance([2.0, 2.0]) == 0.0


# By hand: one position of 1.0 among zeros has the share p of the weights, and the variance p - p^2.
# 10 weights: (1 - 0.85^10) / 0.15 = 5.35417. 30 weights: (1 - 0.85^30) / 0.15 = 6.61579.
# Newest position, weight 1:          p = 0.186770 and 0.151154, variances 0.151887 and 0.128306, WVIR 1.18378.
# Tenth position, 0.85^9 = 0.231617:  p = 0.043259 and 0.035010, variances 0.041388 and 0.033784, WVIR 1.22507.
NEWEST, TENTH = 1.18378, 1.22507


def varied(last: list[float], num_accepted: int = 10) -> DivergenceHistory:
    """A position that the long window forgets, four rounds of five zeros, and ten positions, in order."""
    made = DivergenceHistory()
    for klds in [[0.0] * 5] * 4:
        made.add_round(klds, num_accepted)
    made.add_round([9.0], 0)
    for klds in ([0.0] * 8, [0.0] * 12, last):
        made.add_round(klds, 0)
    return made


def test_the_first_four_rounds_with_signals_calibrate() -> None:
    rounds = [([0.1, 0.3], 3), ([0.2], 5), ([0.0, 0.4], 2), ([0.8], 4)]
    made = DivergenceHistory()
    for klds, num_accepted in rounds:
        assert made.calibration is None
        made.add_round(klds, num_accepted)
    made.add_round([9.0], 9)
    assert made.calibration is not None
    assert made.calibration == pytest.approx((5, 1.8 / 6, 0.8))
    assert made.calibration.max_length == pytest.approx(5 * (1 + 0.3 / 0.8), rel=1e-5)


def test_equation_4_is_the_variance_of_ten_positions_by_that_of_thirty() -> None:
    assert varied([*[0.0] * 9, 1.0]).variance_ratio == pytest.approx(NEWEST, abs=1e-5)
    assert varied([1.0, *[0.0] * 9]).variance_ratio == pytest.approx(TENTH, abs=1e-5)
    assert varied([*[0.0] * 9, 0.5]).variance_ratio == pytest.approx(NEWEST, abs=1e-5)  # whatever the unit is
    assert varied([1.0, *[0.0] * 10]).variance_ratio == 0.0  # the eleventh is no part of the short window
    assert varied([0.0] * 10).variance_ratio == 1.0  # nothing varies in the long window


def test_equations_2_and_8_multiply_the_scale_factor_by_the_variance_ratio() -> None:
    # SL_max = 10: calibration saw zeros. Mean KLD 0.05: SF = e^0.1 - 1 = 0.105171, penalty 0.124499
    assert predicted_length(varied([*[0.0] * 9, 0.5])) == pytest.approx(2 + (1 - 0.124499) * 8, abs=1e-4)
    # mean 0.2: SF = e^0.4 - 1 = 0.491825, penalties 0.582213 and 0.602520; 5.34 and 5.18 tokens
    assert predicted_length(varied([*[0.0] * 9, 2.0])) == pytest.approx(2 + (1 - 0.582213) * 8, abs=1e-4)
    assert predicted_length(varied([2.0, *[0.0] * 9])) == pytest.approx(2 + (1 - 0.602520) * 8, abs=1e-4)
    # mean 0.3: SF = e^0.6 - 1 = 0.822119, which leaves 3.4 tokens; with TENTH the penalty is 1.007
    assert predicted_length(varied([3.0, *[0.0] * 9])) == MIN_LENGTH


def test_a_sequence_that_became_stable_gets_its_longest_drafts_whatever_its_divergence_is() -> None:
    calm = DivergenceHistory()
    for _ in range(4):
        calm.add_round([0.0, 0.4], 6)
    calm.add_round([0.2] * 10, 6)
    # SL_max = 6 (1 + 0.2 / 0.4) = 9; SF = e^0.4 - 1 = 0.49, but WVIR = 0, as the last ten positions do not vary
    assert predicted_length(calm) == pytest.approx(9.0, abs=1e-4)
    assert chosen(calm) == [9]


def test_equations_2_and_8_go_from_the_longest_length_down_to_two() -> None:
    # SL_max = 6 (1 + 1) = 12; nothing varies, so WVIR = 1 and the penalty is SF
    assert predicted_length(history(kld=0.0)) == 6.0
    calm = history(kld=0.05)
    assert predicted_length(calm) == pytest.approx((1 - (exp(0.1) - 1)) * (12 - 2) + 2, rel=1e-3)
    assert predicted_length(history(kld=0.5 * log(2.0))) == pytest.approx(MIN_LENGTH)  # SF = 1
    assert predicted_length(history(kld=3.0)) == MIN_LENGTH


def test_equation_11_caps_by_the_mean() -> None:
    assert length_cap([8.0, 2.0, 2.0]) == 4.0
    long, short = history(num_accepted=10, kld=0.0), history(num_accepted=2, kld=0.0)
    assert chosen(long, short, short, is_capped=False) == [10, 2, 2]
    assert chosen(long, short, short) == [5, 2, 2]  # (10 + 2 + 2) / 3 = 4.67
    choices = Dsde(MOST).choose(
        RoundSnapshot(
            sequences=[SequenceSnapshot(max_remaining_tokens=99, divergence=each) for each in (long, short)],
            num_sequences=2,
        )
    )
    assert [each.reason for each in choices] == ["cap", "doubt"]
    assert chosen(long) == [10]  # a batch of one is its own cap


def test_sequences_that_calibrate_ask_for_half_the_limit_and_do_not_move_the_cap() -> None:
    new = DivergenceHistory()
    assert chosen(new) == [5]
    assert chosen(history(num_accepted=10, kld=0.0), new) == [10, 5]
    for _ in range(CALIBRATION_ROUNDS - 1):
        new.add_round([0.0], 9)
        new.add_round([], 9)  # a round without signals is no round of the calibration
    assert chosen(new) == [5]
    new.add_round([0.0], 1)
    assert chosen(new) == [9]


@pytest.mark.parametrize(
    ("fields", "lengths"),
    [
        ({}, [6, 2]),
        ({"num_steps_asked": 1}, [10, 1]),
        ({"num_steps_asked": 0}, [10, 0]),
        ({"max_remaining_tokens": 1}, [10, 0]),
        ({"max_draft_tokens": 0}, [10, 0]),
        ({"max_remaining_tokens": 2}, [6, 1]),
    ],
)
def test_the_cap_is_the_mean_of_lengths_that_are_used(fields: dict[str, Any], lengths: list[int]) -> None:
    long, short = (
        SequenceSnapshot(max_remaining_tokens=99, divergence=history(num_accepted=num, kld=0.0)) for num in (10, 2)
    )
    sequences = [long, replace(short, **fields)]
    choices = Dsde(MOST).choose(RoundSnapshot(sequences=sequences, num_sequences=2))
    assert [each.budget.num_steps for each in choices] == lengths


def test_a_hub_that_sends_no_signals_leaves_half_the_limit() -> None:
    silent = DivergenceHistory()
    for _ in range(50):
        silent.add_round([], 5)
    assert chosen(silent) == [5]


def test_a_draft_that_excludes_the_targets_token_gives_the_least_length_and_later_recovers() -> None:
    excluded = history(later=[[inf]])
    assert excluded.last_mean == MAX_KLD
    assert chosen(excluded) == [MIN_LENGTH]
    excluded.add_round([0.0] * 8, 4)
    assert chosen(excluded)[0] > MIN_LENGTH


def test_nothing_accepted_in_calibration_is_the_least_length() -> None:
    assert chosen(history(num_accepted=0)) == [MIN_LENGTH]
    assert chosen(history(num_accepted=1)) == [MIN_LENGTH]


@pytest.mark.parametrize(
    ("most", "calibrating", "found"), [(0, 0, 0), (1, 1, 1), (2, 1, 2), (3, 2, 3), (4, 2, 4), (8, 4, 8), (20, 10, 10)]
)
def test_no_length_is_above_the_limit(most: int, calibrating: int, found: int) -> None:
    policy = Dsde(DraftBudget.chain(most))
    calm = [SequenceSnapshot(max_remaining_tokens=99, divergence=history(num_accepted=10, kld=0.0))] * 2
    new = SequenceSnapshot(max_remaining_tokens=99)
    choices = policy.choose(RoundSnapshot(sequences=[*calm, new], num_sequences=3))
    assert [each.budget.num_steps for each in choices] == [found, found, calibrating]
    assert choices[0].reason == ("off" if not most else "cap" if most < 10 else "doubt")


def test_the_limit_of_a_tree_is_its_depth() -> None:
    (choice,) = Dsde(DraftBudget(24, 4, 3)).choose(
        RoundSnapshot(
            sequences=[SequenceSnapshot(max_remaining_tokens=99, divergence=history(num_accepted=9, kld=0.0))],
            num_sequences=1,
        )
    )
    assert choice.budget == DraftBudget(24, 4, 3)


@pytest.mark.parametrize(
    ("fields", "choice"),
    [
        ({}, (6, "doubt")),
        ({"max_remaining_tokens": 4}, (3, "cap")),
        ({"max_draft_tokens": 3}, (3, "cap")),
        ({"num_steps_asked": 3}, (3, "cap")),
    ],
    ids=str,
)
def test_a_draft_that_could_be_longer_is_cut_by_what_is_left_and_given(
    fields: dict[str, int], choice: tuple[int, str]
) -> None:
    sequence = replace(SequenceSnapshot(max_remaining_tokens=99, divergence=history(6, kld=0.0)), **fields)
    (found,) = Dsde(MOST).choose(RoundSnapshot(sequences=[sequence], num_sequences=1))
    assert (found.budget.num_steps, found.reason) == choice


def test_what_remains_and_what_a_request_asks_for_come_first() -> None:
    calm = history(num_accepted=10, kld=0.0)
    assert chosen(calm, max_remaining_tokens=1) == [0]
    assert chosen(calm, max_remaining_tokens=4) == [3]
    assert chosen(calm, num_steps_asked=3) == [3]
    assert chosen(calm, num_steps_asked=0) == [0]
    assert chosen(calm, max_draft_tokens=2) == [2]
