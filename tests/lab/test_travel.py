"""When bytes arrive: delay, jitter, bandwidth and losses, told the time."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starspec.config.lab import PACKET_BYTES, LinkShape
from starspec.lab.travel import MAX_WINDOW_BYTES, MIN_WINDOW_BYTES, Travel, Way

MBIT_BYTES = 125_000  # bytes that one megabit has


def arrivals(shape: LinkShape, sends: list[tuple[int, float]], seed: int = 0) -> list[float]:
    travel = Travel(Way(shape), Random(seed))
    return [travel.arrival_s(*each) for each in sends]


def test_a_delay_is_added_to_the_time_of_sending() -> None:
    assert arrivals(LinkShape(delay_ms=40), [(1, 0.0), (1000, 0.5), (9, 0.5)]) == [0.04, 0.54, 0.54]


def test_bandwidth_is_shared_by_the_connections_of_a_link() -> None:
    way = Way(LinkShape(delay_ms=10, mbit_s=8.0))  # a megabyte a second
    first, second = Travel(way, Random(1)), Travel(way, Random(2))
    assert first.arrival_s(1_000_000, 0.0) == pytest.approx(1.01)
    assert second.arrival_s(500_000, 0.2) == pytest.approx(1.51)  # the transmitter was busy until 1.0
    assert first.arrival_s(1_000_000, 5.0) == pytest.approx(6.01)  # it has been idle


@given(st.lists(st.tuples(st.integers(1, 100_000), st.floats(0, 0.05)), min_size=1), st.integers(0, 99))
def test_jitter_stays_in_its_bounds_and_keeps_the_order(gaps: list[tuple[int, float]], seed: int) -> None:
    sends, now = [], 0.0
    for num_bytes, gap_s in gaps:
        now += gap_s
        sends.append((num_bytes, now))
    found = arrivals(LinkShape(delay_ms=20, jitter_ms=5), sends, seed)
    assert found == sorted(found)
    assert all(0.015 <= arrival - sent <= 0.025 for arrival, (_, sent) in zip(found, sends, strict=True))


def test_the_delays_of_lone_bytes_spread_over_the_whole_jitter() -> None:
    found = arrivals(LinkShape(delay_ms=20, jitter_ms=5), [(1, float(second)) for second in range(1000)])
    delays_s = [arrival - second for second, arrival in enumerate(found)]
    assert 0.015 <= min(delays_s) < 0.0155
    assert 0.0245 < max(delays_s) <= 0.025
    assert sum(delays_s) / 1000 == pytest.approx(0.02, abs=0.0005)


def test_the_same_seed_gives_the_same_arrivals() -> None:
    shape, sends = LinkShape(delay_ms=20, jitter_ms=5, loss=0.1), [(PACKET_BYTES, each * 0.1) for each in range(50)]
    assert arrivals(shape, sends, 3) == arrivals(shape, sends, 3) != arrivals(shape, sends, 4)


def test_packets_are_lost_as_often_as_stated_and_a_large_chunk_has_many() -> None:
    way = Way(LinkShape(loss=0.01))
    travel = Travel(way, Random(0))
    for _ in range(10_000):
        travel.arrival_s(1, 0.0)
    assert 70 <= way.traffic.num_losses <= 135  # 101 expected, the repeated ones included
    way.traffic.num_losses = 0
    for _ in range(1000):
        travel.arrival_s(100 * PACKET_BYTES, 0.0)
    assert 580 <= way.traffic.num_losses <= 700  # 1 - 0.99^100 = 0.634 of them


@pytest.mark.parametrize(("stall_ms", "stall_s"), [(None, 0.28), (30.0, 0.03)])
def test_a_loss_stalls_its_connection_and_what_follows_but_no_other(stall_ms: float | None, stall_s: float) -> None:
    way = Way(LinkShape(delay_ms=40, loss=0.5, stall_ms=stall_ms))
    unlucky = Travel(way, Random(next(each for each in range(99) if _loses_once(each))))
    arrival_s = unlucky.arrival_s(1, 0.0)
    assert arrival_s == pytest.approx(0.04 + stall_s)
    way.shape = LinkShape(delay_ms=40)
    assert unlucky.arrival_s(1, 0.001) == arrival_s
    assert Travel(way, Random(0)).arrival_s(1, 0.001) == pytest.approx(0.041)


def _loses_once(seed: int) -> bool:
    """Whether the draws of a chunk, after that of the jitter, are one loss and no second."""
    random = Random(seed)
    random.uniform(-1, 1)
    return random.random() < 0.5 <= random.random()


def test_a_packet_that_is_lost_again_stalls_twice_as_long() -> None:
    found = arrivals(LinkShape(loss=0.5, stall_ms=100), [(1, each * 1e6) for each in range(200)])
    stalls = {round((arrival - each * 1e6) * 10) for each, arrival in enumerate(found)}
    assert {0, 1, 3, 7} <= stalls <= {2**each - 1 for each in range(20)}


@pytest.mark.parametrize(
    ("shape", "window"),
    [
        (LinkShape(), MAX_WINDOW_BYTES),
        (LinkShape(delay_ms=80, mbit_s=100), 2 * 80 * 100 * MBIT_BYTES // 1000),
        (LinkShape(delay_ms=1, mbit_s=1), MIN_WINDOW_BYTES),
        (LinkShape(delay_ms=60_000, mbit_s=1000), MAX_WINDOW_BYTES),
    ],
)
def test_a_connection_holds_what_bandwidth_times_round_trip_allows(shape: LinkShape, window: int) -> None:
    assert Way(shape).window_bytes == window
