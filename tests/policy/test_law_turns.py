"""Laws that take long take no more than a target's share of the time."""

from __future__ import annotations

import pytest

from starspec.ids import LinkId
from starspec.policy.law_turns import LawfulTarget, LawTurns, law_share

SHARED_S = 0.01  # of each draft step


def shares_of_time(laws_s: list[float], weights: list[float] | None = None) -> list[float]:
    """Draft steps for all targets that need not wait, for a minute.

    Returns: what the laws of each took of it.
    """
    names = [LinkId(str(number)) for number in range(len(laws_s))]
    laws = dict(zip(names, laws_s, strict=True))
    asking = {
        name: LawfulTarget(weight, laws[name])
        for name, weight in zip(names, weights or [1.0] * len(names), strict=True)
    }
    turns, taken_s, now = {name: LawTurns() for name in names}, dict.fromkeys(names, 0.0), 0.0
    while now < 60.0:
        drawn = {name: laws[name] for name in names if not turns[name].must_wait(now)}
        step_s = SHARED_S + sum(drawn.values())
        now += step_s
        for name, law_s in drawn.items():
            turns[name].spend(law_s, law_share(name, asking, law_s, step_s, SHARED_S), now)
            taken_s[name] += law_s
    return [each / now for each in taken_s.values()]


def test_a_target_that_is_alone_never_waits() -> None:
    assert shares_of_time([0.5]) == [pytest.approx(0.5 / 0.51, rel=0.01)]


@pytest.mark.parametrize("num_targets", [2, 12])
def test_targets_with_equally_dear_laws_never_wait(num_targets: int) -> None:
    all_s = SHARED_S + num_targets * 0.02
    assert shares_of_time([0.02] * num_targets) == [pytest.approx(0.02 / all_s, rel=0.01)] * num_targets


@pytest.mark.parametrize("law_s", [0.02, 0.06, 0.3])
def test_beside_another_a_dear_law_has_half_of_the_time(law_s: float) -> None:
    assert shares_of_time([law_s, 0.0])[0] == pytest.approx(0.5, rel=0.1)


def test_beside_many_that_could_bear_it_a_dear_law_does_not_wait() -> None:
    """Eleven others have a twelfth of the hub each: a draft step may take twelve times as long as one of theirs."""
    assert shares_of_time([0.06, *[0.0] * 11])[0] == pytest.approx(6 / 7, rel=0.01)


def test_several_dear_laws_leave_another_target_its_part_of_the_time() -> None:
    assert 0.4 < sum(shares_of_time([0.1, 0.1, 0.1, 0.0])) < 0.77


def test_a_share_goes_by_weight() -> None:
    assert shares_of_time([0.06, 0.0], [1.0, 3.0])[0] == pytest.approx(1 / 4, rel=0.1)
