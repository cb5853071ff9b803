"""How many tokens a row is worth drafting, after what it accepted and what steps and drafts cost."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starspec.integrations.vllm.draft_length import PROBE_EVERY, PROBE_TOKENS, Acceptance, paying_lengths
from starspec.integrations.vllm.measured_cost import MeasuredCost


def cost(**seconds_by_size: float) -> MeasuredCost:
    measured = MeasuredCost()
    for size, seconds in seconds_by_size.items():
        measured.note(int(size.removeprefix("of_")), seconds)
    return measured


NO_WAIT = MeasuredCost()
FLAT = cost(of_1=0.1, of_100=0.1)
BY_TOKEN = cost(of_1=0.1, of_100=10.0)


def test_everything_is_drafted_before_a_step_was_timed() -> None:
    assert paying_lengths([0.9, 0.01], [4, 3], MeasuredCost(), cost(of_4=9.0)) == [4, 3]


def test_where_more_tokens_cost_nothing_all_that_may_be_drafted_is() -> None:
    assert paying_lengths([0.9, 0.1, 1.0], [4, 2, 0], FLAT, NO_WAIT) == [4, 2, 0]


def test_where_each_token_costs_a_step_nothing_is_drafted() -> None:
    assert paying_lengths([0.9, 0.9], [4, 4], BY_TOKEN, NO_WAIT) == [0, 0]


def test_no_rows_no_lengths() -> None:
    assert paying_lengths([], [], FLAT, NO_WAIT) == []


def test_rows_with_no_room_get_none() -> None:
    assert paying_lengths([0.9, 0.9], [0, 0], FLAT, cost(of_1=0.1)) == [0, 0]


def test_of_two_rows_the_one_that_accepts_gets_what_pays() -> None:
    """Up to six tokens a step costs the same, beyond each costs as much as a plain step."""
    roofline = cost(of_1=0.1, of_6=0.1, of_7=0.3, of_20=3.0)
    assert paying_lengths([0.95, 0.2], [8, 8], roofline, NO_WAIT) == [4, 0]


def test_a_wait_that_costs_more_than_drafts_save_is_not_begun() -> None:
    assert paying_lengths([0.5], [4], FLAT, cost(of_1=0.2, of_4=0.3)) == [0]
    assert paying_lengths([0.5], [4], FLAT, cost(of_1=0.001, of_4=0.002)) == [4]


def test_a_wait_is_shared_by_the_rows_that_draft() -> None:
    wait = cost(of_1=0.06, of_4=0.06)
    assert paying_lengths([0.5], [1], FLAT, wait) == [0]
    step = cost(of_1=0.1, of_8=0.1)
    assert paying_lengths([0.7] * 4, [1] * 4, step, wait) == [1] * 4


@given(
    st.lists(st.tuples(st.floats(0.0, 1.0), st.integers(0, 3)), min_size=1, max_size=3),
    st.lists(st.floats(0.01, 1.0), min_size=12, max_size=12),
    st.lists(st.floats(0.001, 1.0), min_size=3, max_size=3),
)
def test_no_other_choice_expects_more_tokens_a_second(
    rows: list[tuple[float, int]], step_s: list[float], round_s: list[float]
) -> None:
    """Against all choices there are; what steps and rounds cost never falls with their size."""
    rates, most = [rate for rate, _ in rows], [limit for _, limit in rows]
    step_s, round_s = sorted(step_s), sorted(round_s)
    step_cost = cost(**{f"of_{size}": seconds for size, seconds in enumerate(step_s, 1)})
    round_cost = cost(**{f"of_{depth}": seconds for depth, seconds in enumerate(round_s, 1)})

    def speed(lengths: tuple[int, ...]) -> float:
        tokens = sum(rate**depth for rate, length in zip(rates, lengths, strict=True) for depth in range(length + 1))
        wait_s = round_s[max(lengths) - 1] if max(lengths) else 0.0
        return tokens / (step_s[len(rates) + sum(lengths) - 1] + wait_s)

    chosen = tuple(paying_lengths(rates, most, step_cost, round_cost))
    assert all(length <= limit for length, limit in zip(chosen, most, strict=True))
    likeliest = [
        lengths for lengths in product(*(range(each + 1) for each in most)) if _is_greedy(rates, most, lengths)
    ]
    assert speed(chosen) == pytest.approx(max(map(speed, likeliest)))


def _is_greedy(rates: list[float], most: list[int], lengths: tuple[int, ...]) -> bool:
    """Whether no draft token that is left out is likelier than one that is taken."""
    rows = list(zip(rates, most, lengths, strict=True))
    taken = [rate**length for rate, _, length in rows if length]
    left = [rate ** (length + 1) for rate, limit, length in rows if length < limit]
    return not taken or not left or min(taken) >= max(left)


def test_the_rate_is_what_was_accepted_of_what_was_tried() -> None:
    """Behind a refused token nothing was tried."""
    acceptance = Acceptance()
    for _ in range(200):
        acceptance.note(num_drafted=5, num_accepted=2)
    assert acceptance.rate == pytest.approx(2 / 3)
    for _ in range(200):
        acceptance.note(num_drafted=2, num_accepted=2)
    assert acceptance.rate == pytest.approx(1.0, abs=1e-6)


def test_a_step_without_a_draft_changes_no_rate() -> None:
    acceptance = Acceptance()
    before = acceptance.rate
    acceptance.note(num_drafted=0, num_accepted=0)
    assert acceptance.rate == before


def lengths_of(acceptance: Acceptance, num_drafted: list[int], most: int = 4) -> list[int]:
    """What is asked for where nothing pays, after each step that drafted so many."""
    lengths = []
    for each in num_drafted:
        acceptance.note(each, 0)
        lengths.append(acceptance.probed(0, most))
    return lengths


def test_after_many_steps_without_a_draft_one_is_tried() -> None:
    assert lengths_of(Acceptance(), [0] * PROBE_EVERY) == [0] * (PROBE_EVERY - 1) + [PROBE_TOKENS]


def test_a_probe_is_asked_for_until_there_is_one() -> None:
    acceptance = Acceptance()
    lengths_of(acceptance, [0] * PROBE_EVERY)
    assert lengths_of(acceptance, [0, 0, 2, 0]) == [PROBE_TOKENS, PROBE_TOKENS, 0, 0]


def test_where_drafts_pay_there_are_no_probes() -> None:
    acceptance = Acceptance()
    lengths_of(acceptance, [0] * PROBE_EVERY)
    assert acceptance.probed(3, most=4) == 3
    assert acceptance.probed(1, most=4) == 1


def test_a_probe_is_no_longer_than_the_row_has_room() -> None:
    assert lengths_of(Acceptance(), [0] * PROBE_EVERY, most=1)[-1] == 1
