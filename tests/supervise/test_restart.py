"""Restarts: soon at first, bounded, forgiving after a quiet minute."""

from hypothesis import given
from hypothesis import strategies as st

from starspec.supervise.supervisor import MAX_DEATHS, MAX_DELAY_S, WINDOW_S, restart_delay_s


def test_delays_double() -> None:
    deaths_s = [float(second) for second in range(MAX_DEATHS)]
    delays_s = [restart_delay_s(deaths_s[:number]) for number in range(1, MAX_DEATHS + 1)]
    assert delays_s == [0.25, 0.5, 1.0, 2.0, 4.0]


def test_too_many_deaths_within_the_window_end_it() -> None:
    assert restart_delay_s([0.0] * (MAX_DEATHS + 1)) is None


@given(st.lists(st.floats(0, 1000), max_size=50), st.floats(2000, 3000))
def test_old_deaths_are_forgiven(old: list[float], now: float) -> None:
    assert restart_delay_s([*sorted(old), now]) == restart_delay_s([now])


@given(st.lists(st.floats(0, WINDOW_S / 2), min_size=1, max_size=20).map(sorted))
def test_a_delay_never_exceeds_its_bound(deaths_s: list[float]) -> None:
    delay_s = restart_delay_s(deaths_s)
    assert delay_s is None or 0 < delay_s <= MAX_DELAY_S
