"""How many targets can gain: the paper's equations where they hold, and what must hold where they do not."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_star import SyntheticStar

from starspec.bench.star import operating_point as point
from starspec.config import RunAhead
from starspec.ids import LinkId, Tag
from starspec.policy import capacity
from starspec.policy.capacity import (
    MIN_ROUNDS,
    Demand,
    DraftStepCost,
    demand_of,
    expected,
    gains,
    losers,
    num_full,
    num_max,
    predicted_rates,
    typical,
)
from starspec.policy.draft_batch import DraftStep, ScheduledSequence, TagKey
from starspec.policy.draft_step_times import ASSUMED_SHARE, DraftStepTimes

COST = DraftStepCost(point.STEP_MS / 1e3, point.PER_SEQUENCE * point.STEP_MS / 1e3)
STARSD = Demand(
    num_sequences=1.0,
    num_steps=point.DEPTH,
    return_s=point.RETURN_MS / 1e3,
    num_tokens=3.4,
    plain_tokens_per_s=1e3 / point.PLAIN_MS,
)

demands = st.builds(
    Demand,
    num_sequences=st.integers(1, 8).map(float),
    num_steps=st.floats(0.0, 16.0),
    return_s=st.floats(0.005, 0.5),
    num_tokens=st.floats(1.0, 9.0),
    plain_tokens_per_s=st.floats(1.0, 100.0),
)
costs = st.builds(DraftStepCost, st.floats(1e-4, 1e-2), st.floats(0.0, 1e-2))
widths = st.none() | st.integers(1, 8)


def test_a_demand_is_known_after_some_rounds_with_verdicts() -> None:
    assert demand_of(STARSD, MIN_ROUNDS - 1) is None
    assert demand_of(replace(STARSD, return_s=0.0), MIN_ROUNDS) is None
    assert demand_of(STARSD, MIN_ROUNDS) == STARSD


def test_a_target_that_has_not_told_its_plain_speed_takes_a_round_trip_for_a_token() -> None:
    known = demand_of(replace(STARSD, plain_tokens_per_s=0.0, num_sequences=0.0), MIN_ROUNDS)
    assert known == replace(STARSD, plain_tokens_per_s=1.0 / STARSD.return_s, num_sequences=1.0)


@pytest.mark.parametrize("num_targets", range(1, 17))
def test_one_at_a_time_is_equations_8_to_10(num_targets: int) -> None:
    (rate, *_) = predicted_rates([STARSD] * num_targets, COST, max_sequences=1)
    assert rate == pytest.approx(3.4 / point.NOMINAL.round_ms(num_targets) * 1e3)


def test_n_full_is_equation_12() -> None:
    assert num_full(point.NOMINAL.service_ms, point.RETURN_MS) == point.NOMINAL.num_full == 4


def test_n_max_at_the_papers_operating_point() -> None:
    """71 ms of plain decoding for the tokens of a round; each target takes 11.2 ms of the hub."""
    assert num_max([STARSD], COST, 1, limit=64) == 6
    assert num_max([STARSD], COST, None, limit=64) > 20, "batches make room"
    assert num_max([replace(STARSD, num_sequences=2.0)], COST, 1, limit=64) == 3
    assert num_max([STARSD], COST, None, limit=5) == 5


def test_one_that_gains_nothing_even_alone_does_not_count() -> None:
    hot = replace(STARSD, num_tokens=1.2)
    assert num_max([STARSD, hot, STARSD, STARSD], COST, 1, limit=64) == 6
    assert num_max([hot], COST, 1, limit=64) == 1


def test_one_that_is_fast_alone_makes_the_others_few() -> None:
    fast = replace(STARSD, plain_tokens_per_s=60.0)
    assert num_max([STARSD, fast], COST, 1, limit=64) == 5
    assert num_max([STARSD, STARSD, STARSD, replace(fast, plain_tokens_per_s=80.0)], COST, 1, limit=64) == 3


@given(st.lists(demands, min_size=1, max_size=6), costs, widths)
def test_n_max_is_the_largest_number_that_all_gain_by(
    found: list[Demand], cost: DraftStepCost, width: int | None
) -> None:
    number = num_max(found, cost, width, limit=12)
    found = [each for each in found if gains(each, [], cost, width, 0.0)]
    if not found:
        assert number == 1
        return
    others = [typical(found)] * 12

    def gain(count: int) -> bool:
        return not losers([*found, *others][:count], cost, width, 0.0)

    assert 1 <= number <= 12
    assert number == 1 or gain(number)
    assert number == 12 or not gain(number + 1)


def num_max_one_by_one(found: list[Demand], cost: DraftStepCost, width: int | None, limit: int) -> int:
    """`num_max` by its definition."""
    gaining = [each for each in found if gains(each, [], cost, width, 0.0)]
    served = [*gaining, *[typical(gaining)] * limit] if gaining else []
    for count in range(2, min(limit, len(served)) + 1):
        if losers(served[:count], cost, width, 0.0):
            return count - 1
    return limit if gaining else 1


def on_the_edge(found: list[Demand], cost: DraftStepCost, width: int | None, count: int) -> list[Demand]:
    """The same, with plain speeds that the first so many reach to the last bit if just they are served."""
    rates = predicted_rates(found[:count], cost, width)
    return [replace(each, plain_tokens_per_s=rate) for each, rate in zip(found, rates, strict=False)] + found[count:]


@settings(max_examples=300)
@given(st.lists(demands, min_size=1, max_size=20), costs, widths, st.integers(0, 20), st.integers(1, 40))
def test_n_max_is_what_one_by_one_finds(
    found: list[Demand], cost: DraftStepCost, width: int | None, count: int, limit: int
) -> None:
    found = on_the_edge(found, cost, width, count) if count else found
    assert num_max(found, cost, width, limit) == num_max_one_by_one(found, cost, width, limit)


@given(st.lists(demands, min_size=1, max_size=6), costs, widths)
def test_who_loses_is_slower_than_plain_by_the_margin(
    found: list[Demand], cost: DraftStepCost, width: int | None
) -> None:
    rates = predicted_rates(found, cost, width)
    pairs = list(zip(rates, found, strict=True))
    assert losers(found, cost, width, 0.05) == [each for rate, each in pairs if rate < 1.05 * each.plain_tokens_per_s]


def test_who_decodes_faster_is_supposed_to_verify_faster() -> None:
    slow, fast = (replace(STARSD, return_s=z, plain_tokens_per_s=1.1 / z) for z in (0.2, 0.022))
    assert expected([slow, fast], slow.plain_tokens_per_s).return_s == pytest.approx(0.2)
    assert expected([slow, fast], fast.plain_tokens_per_s).return_s == pytest.approx(0.022)


@given(st.lists(demands, min_size=1, max_size=6), demands, costs, widths)
def test_nobody_is_faster_for_one_target_more(
    found: list[Demand], newcomer: Demand, cost: DraftStepCost, width: int | None
) -> None:
    before = predicted_rates(found, cost, width)
    after = predicted_rates([*found, newcomer], cost, width)
    assert all(later <= earlier for earlier, later in zip(before, after, strict=False))


@given(st.lists(demands, min_size=1, max_size=30), costs, widths)
def test_the_largest_number_of_targets_is_found_with_few_looks(
    found: list[Demand], cost: DraftStepCost, width: int | None
) -> None:
    """However many are known: a hub that is full looks twice a second."""
    limit = 256
    with mock.patch.object(capacity, "losers", wraps=capacity.losers) as looks:
        largest = num_max(found, cost, width, limit)
    assert looks.call_count <= 9
    gaining = [each for each in found if gains(each, [], cost, width, 0.0)]
    if gaining and largest >= len(gaining):
        supposed = typical(gaining)
        served = [*gaining, *[supposed] * (largest - len(gaining))]
        assert largest == 1 or not losers(served, cost, width, 0.0)
        assert largest == limit or losers([*served, supposed], cost, width, 0.0)


def draft_step(num_sequences: int) -> DraftStep:
    return DraftStep(tuple(ScheduledSequence(TagKey(LinkId("s"), Tag(tag)), 1, False) for tag in range(num_sequences)))


def test_the_cost_of_a_draft_step_is_measured_where_draft_steps_differ_and_supposed_where_not() -> None:
    times = DraftStepTimes()
    assert times.cost is None
    for _ in range(5):
        times.add(draft_step(3), 0.012)
    alone_s = 0.012 / (1 + 2 * ASSUMED_SHARE)
    assert times.cost == pytest.approx((alone_s, ASSUMED_SHARE * alone_s))
    for num_sequences in (1, 2, 5, 9) * 200:
        times.add(draft_step(num_sequences), 0.004 + 0.0005 * num_sequences)
    assert times.cost == pytest.approx((0.0045, 0.0005), rel=0.02)


@given(st.lists(st.tuples(st.integers(1, 9), st.floats(1e-4, 1.0)), min_size=1, max_size=30))
def test_no_measurement_makes_a_sequence_free_of_time_or_dearer_than_a_draft_step(
    seen: list[tuple[int, float]],
) -> None:
    times = DraftStepTimes()
    for num_sequences, seconds in seen:
        times.add(draft_step(num_sequences), seconds)
    assert times.cost is not None
    assert times.cost.alone_s > 0
    assert times.cost.per_sequence_s >= 0
    assert all(times.cost.seconds(num) > 0 for num in range(1, 20))


def test_what_is_drafted_ahead_is_not_room_for_more_targets() -> None:
    """With most proposals ready when asked for, d is still their depth: with more targets none would be ready."""
    found = {}
    modes: tuple[RunAhead, ...] = ("off", "outcomes")
    for run_ahead in modes:
        star = SyntheticStar.amusd(1, run_ahead, row_cost=0.0, alpha=0.9, depth=4)
        star.decode(400)
        found[run_ahead] = star.hub.status(star.clock()).stats
    assert found["outcomes"].hit_rate > 0.5
    assert found["off"].num_full == 2  # 40 ms of drafting, 25 ms of verification
    assert found["outcomes"].num_full == 3  # proposals are handed over at a depth of 2.3
