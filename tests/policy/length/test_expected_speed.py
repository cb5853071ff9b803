"""How many tokens a sequence is worth drafting, by its acceptance and by what steps and drafts cost."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starspec.policy.length.expected_speed import Candidates, ChosenLengths, fastest_lengths
from starspec.policy.length.round_cost import NO_WAIT, RoundCost
from starspec.policy.length.step_cost import StepCost


def cost(**seconds_by_size: float) -> StepCost:
    measured = StepCost()
    for size, seconds in seconds_by_size.items():
        measured.add(int(size.removeprefix("of_")), seconds)
    return measured


FLAT = cost(of_1=0.1, of_100=0.1)
BY_TOKEN = cost(of_1=0.1, of_100=10.0)
MIN_GAIN = 1.1  # in these tests


def paying_lengths(
    rates: list[float], most: list[int], step_cost: StepCost, round_cost: RoundCost, reaches: list[float] | None = None
) -> list[int]:
    return fastest_lengths(Candidates(rates, most, reaches), step_cost, round_cost, MIN_GAIN).lengths


def test_what_is_likely_enough_is_drafted_before_a_step_was_timed() -> None:
    dear = RoundCost(9.0, 0.0, 0.0, deepest=8)
    assert paying_lengths([0.9, 0.6, 0.01, 1.0], [4, 4, 4, 0], StepCost(), dear) == [4, 2, 0, 0]


def test_one_row_whose_drafts_are_sure_does_not_make_all_wait_for_long_ones() -> None:
    by_step = RoundCost(0.0, 0.02, 0.0, deepest=8)
    assert paying_lengths([1.0, 1.0, *[0.3] * 30], [4] * 32, FLAT, by_step) == [1] * 32


def test_where_the_hub_takes_longer_for_more_tokens_the_sure_row_alone_gets_a_long_draft() -> None:
    by_token = RoundCost(0.0, 0.0, 0.005, deepest=8)
    assert paying_lengths([0.97, *[0.1] * 7], [4] * 8, FLAT, by_token) == [4, *[0] * 7]


def test_once_a_round_is_waited_for_its_fixed_part_makes_no_draft_shorter() -> None:
    assert paying_lengths([0.6], [4], FLAT, RoundCost(0.05, 0.0, 0.0, deepest=8)) == [4]
    assert paying_lengths([0.6], [4], FLAT, RoundCost(0.2, 0.0, 0.0, deepest=8)) == [0]


def test_where_more_tokens_cost_nothing_all_that_may_be_drafted_is() -> None:
    assert paying_lengths([0.9, 0.1, 1.0], [4, 2, 0], FLAT, NO_WAIT) == [4, 2, 0]


def test_where_each_token_costs_a_step_nothing_is_drafted() -> None:
    assert paying_lengths([0.9, 0.9], [4, 4], BY_TOKEN, NO_WAIT) == [0, 0]


def test_what_is_not_reached_is_worth_nothing_and_costs_nothing() -> None:
    """Four draft tokens, all of which would be accepted, where a step over six takes as long as two."""
    steep = cost(of_1=0.1, of_2=0.11, of_6=0.2)
    by_step = RoundCost(0.0, 0.05, 0.0, deepest=8)
    assert paying_lengths([1.0], [4], steep, by_step) == [4]
    assert paying_lengths([1.0], [4], steep, by_step, [0.0]) == [1]
    dear = RoundCost(0.1, 0.0, 0.0, deepest=8)
    assert paying_lengths([1.0], [4], FLAT, dear) == [4]
    assert paying_lengths([1.0], [4], FLAT, dear, [0.05]) == [0], "2.05 tokens in twice the time"


def test_drafts_that_go_on_only_where_they_are_right_are_asked_to_be_long() -> None:
    """Half of the drafts end after their first token. Of the others, nearly all is accepted."""
    by_step = RoundCost(0.0, 0.055, 0.0, deepest=8)
    alone = Candidates([0.7], [4], [0.5])
    assert fastest_lengths(alone, FLAT, by_step).lengths == [1]
    assert fastest_lengths(replace(alone, gains=[0.49]), FLAT, by_step).lengths == [4]


def test_no_rows_no_lengths() -> None:
    assert fastest_lengths(Candidates([], []), FLAT, NO_WAIT) == ChosenLengths([], None)


def test_before_a_step_was_timed_no_speed_is_expected() -> None:
    assert fastest_lengths(Candidates([0.9], [4]), StepCost(), NO_WAIT).tokens_per_s is None
    assert fastest_lengths(Candidates([0.9], [0]), StepCost(), NO_WAIT).tokens_per_s is None


def test_rows_with_no_room_get_none() -> None:
    assert paying_lengths([0.9, 0.9], [0, 0], FLAT, RoundCost(0.1, 0.0, 0.0, deepest=8)) == [0, 0]


def test_of_two_rows_the_one_that_accepts_gets_what_pays() -> None:
    """Up to six tokens a step costs the same, beyond each costs as much as a plain step."""
    roofline = cost(of_1=0.1, of_6=0.1, of_7=0.3, of_20=3.0)
    assert paying_lengths([0.95, 0.2], [8, 8], roofline, NO_WAIT) == [4, 0]


def test_a_wait_that_costs_more_than_drafts_save_is_not_begun() -> None:
    assert paying_lengths([0.5], [4], FLAT, RoundCost(0.0, 0.2, 0.0, deepest=8)) == [0]
    assert paying_lengths([0.5], [4], FLAT, RoundCost(0.0, 0.0005, 0.0, deepest=8)) == [4]


def test_what_promises_hardly_more_than_decoding_without_drafts_is_left() -> None:
    """1.8 tokens in 1.7 or 1.6 of the time."""
    assert paying_lengths([0.8], [1], FLAT, RoundCost(0.07, 0.0, 0.0, deepest=8)) == [0]
    assert paying_lengths([0.8], [1], FLAT, RoundCost(0.06, 0.0, 0.0, deepest=8)) == [1]


def test_drafts_longer_than_any_that_was_waited_for_are_tried_while_nothing_tells_what_they_cost() -> None:
    assert paying_lengths([0.9], [4], FLAT, RoundCost(0.0, 0.05, 0.0, deepest=2, num_paid=2)) == [4]
    assert paying_lengths([0.9], [4], FLAT, RoundCost(0.0, 0.2, 0.0, deepest=2, num_paid=2)) == [0]
    assert paying_lengths([0.9], [4], FLAT, RoundCost(0.0, 0.05, 0.0, deepest=2)) == [3]


def test_a_wait_is_shared_by_the_rows_that_draft() -> None:
    wait = RoundCost(0.0, 0.05, 0.0, deepest=8)
    assert paying_lengths([0.5], [1], FLAT, wait) == [0]
    step = cost(of_1=0.1, of_8=0.1)
    assert paying_lengths([0.7] * 4, [1] * 4, step, wait) == [1] * 4


def test_fixed_drafts_are_kept_whatever_they_cost_and_others_are_weighed_beside_them() -> None:
    by_step = RoundCost(0.0, 0.2, 0.0, deepest=8)
    alone = fastest_lengths(Candidates([0.9, 0.5], [4, 4]), FLAT, by_step)
    assert alone.lengths == [0, 0]
    beside = fastest_lengths(Candidates([0.9, 0.5], [4, 4], are_fixed=[False, True]), FLAT, by_step)
    assert beside.lengths == [4, 4], "the round waits for four draft steps in any case"
    fixed = fastest_lengths(Candidates([0.9, 0.5], [0, 4], are_fixed=[False, True]), FLAT, by_step)
    assert fixed.lengths == [0, 4]
    assert fixed.tokens_per_s == pytest.approx((2 + 0.5 + 0.25 + 0.125 + 0.0625) / (0.1 + 4 * 0.2))
    assert fastest_lengths(Candidates([0.0], [3], are_fixed=[True]), StepCost(), NO_WAIT).lengths == [3]


@pytest.mark.parametrize(("rate", "accepted"), [(0.8, 1.952), (0.5, 0.875), (0.0, 0.0), (1.0, 3.0)])
def test_equations_2_and_3_of_starsd_by_hand(rate: float, accepted: float) -> None:
    """0.8 + 0.64 + 0.512 = 0.8 (1 - 0.512) / 0.2 draft tokens of three; one more token is the target's own."""
    alone = fastest_lengths(Candidates([rate], [3], are_fixed=[True]), FLAT, NO_WAIT)
    assert alone.tokens_per_s == pytest.approx((1 + accepted) / 0.1)


def test_equation_4_of_starsd_is_the_sum_over_the_sequences() -> None:
    both = fastest_lengths(Candidates([0.8, 0.5], [3, 2], are_fixed=[True, True]), FLAT, NO_WAIT)
    assert both.tokens_per_s == pytest.approx((2 + 1.952 + 0.75) / 0.1)


def test_others_of_the_round_cost_their_part_of_the_step() -> None:
    steep = cost(of_1=0.1, of_2=0.1, of_3=0.5)
    assert fastest_lengths(Candidates([0.9], [1]), steep, NO_WAIT).lengths == [1]
    crowded = fastest_lengths(Candidates([0.9], [1], num_others=1), steep, NO_WAIT)
    assert crowded == ChosenLengths([0], pytest.approx(2 / 0.1))


def test_a_tree_is_as_deep_as_its_nodes_are_worth() -> None:
    by_token = cost(of_1=0.1, of_100=1.09)
    narrow = fastest_lengths(Candidates([0.8], [6]), by_token, NO_WAIT).lengths
    wide = fastest_lengths(Candidates([0.8], [6], widths=[3, 9, 9, 9, 9, 9]), by_token, NO_WAIT).lengths
    assert narrow > wide == [1]


@given(
    st.lists(st.tuples(st.floats(0.0, 1.0), st.integers(0, 3), st.booleans()), min_size=1, max_size=3),
    st.lists(st.floats(0.01, 1.0), min_size=13, max_size=13),
    st.tuples(*[st.sampled_from([0.0, 0.001, 0.02, 0.3])] * 3),
    st.integers(0, 1),
)
def test_no_other_choice_expects_more_tokens_a_second(
    rows: list[tuple[float, int, bool]], step_s: list[float], parts: tuple[float, float, float], num_others: int
) -> None:
    """Against all choices there are; what steps cost never falls with their size. No draft ends early."""
    rates, most, are_fixed = map(list, zip(*rows, strict=True))
    num = len(rates) + num_others
    step_s = sorted(step_s)
    step_cost = cost(**{f"of_{size}": seconds for size, seconds in enumerate(step_s, 1)})
    round_cost = RoundCost(*parts, deepest=3)

    def speed(lengths: tuple[int, ...]) -> float:
        pairs = zip(rates, lengths, strict=True)
        tokens = num_others + sum(rate**depth for rate, length in pairs for depth in range(length + 1))
        wait_s = round_cost.seconds_of(lengths) if any(lengths) else 0.0
        return tokens / (step_s[num + sum(lengths) - 1] + wait_s)

    candidates = Candidates(rates, most, are_fixed=are_fixed, num_others=num_others)
    drafts = fastest_lengths(candidates, step_cost, round_cost, MIN_GAIN)
    chosen = tuple(drafts.lengths)
    assert drafts.tokens_per_s == pytest.approx(speed(chosen))
    least = tuple(limit * is_fixed for limit, is_fixed in zip(most, are_fixed, strict=True))
    best = max(speed(each) for each in product(*map(lambda low, high: range(low, high + 1), least, most)))
    if chosen != least:
        assert speed(chosen) == pytest.approx(best)
        assert best >= (MIN_GAIN - 1e-9) * speed(least)
    else:
        assert best <= (MIN_GAIN + 1e-9) * speed(chosen)


def sizes_of(reach: float, widths: list[int]) -> dict[int, float]:
    """How probable each number of nodes is, of a draft that goes on from depth to depth with this probability."""
    num_nodes = [sum(widths[: depth + 1]) for depth in range(len(widths))]
    ends = [reach**depth * (1.0 - reach * (depth + 1 < len(widths))) for depth in range(len(widths))]
    return dict(zip(num_nodes, ends, strict=True)) if widths else {0: 1.0}


@given(
    st.lists(st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.booleans()), min_size=1, max_size=3),
    st.lists(st.integers(1, 40), min_size=3, max_size=3),
    st.lists(st.floats(0.01, 1.0), min_size=6, max_size=6),
    st.integers(0, 1),
)
def test_drafts_that_may_end_make_steps_a_standard_deviation_smaller_and_larger(
    rows: list[tuple[float, float, bool]], widths: list[int], step_s: list[float], num_others: int
) -> None:
    """Against all sizes that drafts may have: each is as probable as it should be. No step is without its sequences."""
    rates, reaches, are_fixed = map(list, zip(*rows, strict=True))
    num, curve = len(rows) + num_others, cost(**{f"of_{4**n}": each for n, each in enumerate(sorted(step_s))})
    candidates = Candidates(rates, [3] * len(rows), reaches, are_fixed=are_fixed, widths=widths, num_others=num_others)
    found = fastest_lengths(candidates, curve, NO_WAIT, min_gain=0.0)
    tokens, mean, variance = float(num), float(num), 0.0
    for rate, reach, length in zip(rates, reaches, found.lengths, strict=True):
        tokens += sum(rate * (rate * reach) ** depth for depth in range(length))
        sizes = sizes_of(reach, widths[:length])
        own_mean = sum(share * size for size, share in sizes.items())
        mean, variance = mean + own_mean, variance + sum(p * (size - own_mean) ** 2 for size, p in sizes.items())
    smaller, larger = max(num, mean - variance**0.5), mean + variance**0.5
    speed = tokens / (0.5 * (curve.seconds(smaller) + curve.seconds(larger)))
    assert found.tokens_per_s == pytest.approx(speed, rel=1e-4)


def test_behind_a_knee_drafts_that_may_end_cost_more_than_their_mean() -> None:
    """Two draft tokens on average, of one that always and three that seldom come: half of the rounds are too large."""
    knee = cost(of_1=0.1, of_3=0.1, of_5=0.2)
    (alone,) = fastest_lengths(Candidates([1.0], [3], [1.0]), knee, NO_WAIT, MIN_GAIN).lengths
    ending = Candidates([1.0], [3], [0.6180339887], are_fixed=[True])
    assert alone == 2
    assert fastest_lengths(ending, knee, NO_WAIT).tokens_per_s == pytest.approx(3.0 / (0.1 + 0.025 * 0.8740), rel=1e-3)
