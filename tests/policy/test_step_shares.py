"""Shares of draft steps: a bound for every target that asks, and none for one that is alone."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starspec.ids import LinkId, Tag
from starspec.policy.capacity import DraftStepCost
from starspec.policy.draft_batch import TagKey
from starspec.policy.step_shares import AWAY_S, EVERYTHING, AskingTags, AskingTarget, step_shares

COST = DraftStepCost(0.0095, 0.0005)  # 10 ms with one sequence, and 1 ms more with each further one


def asking(*num_sequences: int) -> dict[LinkId, AskingTarget]:
    return {LinkId(f"t{index}"): AskingTarget(num, 2.0, 1.0) for index, num in enumerate(num_sequences)}


def test_a_target_that_is_alone_has_everything() -> None:
    assert step_shares({}, COST) == step_shares(asking(500), COST) == EVERYTHING


def test_one_sequence_beside_sixty_has_draft_steps_of_twice_the_length_and_no_longer() -> None:
    shares = step_shares(asking(1, 60), COST)
    assert shares.most == {LinkId("t1"): 10}
    assert COST.seconds(22) == pytest.approx(2 * COST.seconds(2))
    assert shares.equal_s == COST.seconds(4)


def test_several_large_targets_share_what_a_small_one_leaves() -> None:
    assert step_shares(asking(1, 60, 60), COST).most == {LinkId("t1"): 10, LinkId("t2"): 10}
    assert step_shares(asking(1, 5, 60), COST).most == {LinkId("t2"): 15}


def test_sequences_that_add_more_have_fewer_places() -> None:
    targets = asking(1, 60)
    targets[LinkId("t1")] = AskingTarget(60, 6.0, 1.0)
    assert step_shares(targets, COST).most == {LinkId("t1"): 3}


def test_a_heavier_target_waits_less() -> None:
    targets = asking(1, 60)
    targets[LinkId("t0")] = AskingTarget(1, 2.0, 3.0)
    assert step_shares(targets, COST).most == {LinkId("t1"): 3}, "4/3 of a draft step alone"


def test_where_sequences_cost_nothing_nobody_is_limited() -> None:
    assert not step_shares(asking(1, 500), DraftStepCost(0.01, 0.0)).most


@given(st.integers(2, 20), st.integers(1, 20), st.floats(0.0, 1.0))
def test_equal_targets_do_not_limit_each_other_whatever_draft_steps_cost(
    num_targets: int, num_sequences: int, slope: float
) -> None:
    assert not step_shares(asking(*[num_sequences] * num_targets), DraftStepCost(0.01, 0.01 * slope)).most


TARGETS = st.builds(
    AskingTarget, st.integers(1, 300), st.floats(2.0, 16.0), st.sampled_from((0.01, 0.5, 1.0, 3.0, 100.0))
)


@given(st.lists(TARGETS, min_size=2, max_size=8), st.floats(0.0, 1.0))
def test_no_draft_step_is_longer_than_any_target_can_bear(targets: list[AskingTarget], slope: float) -> None:
    cost = DraftStepCost(0.01, 0.01 * slope)
    asked = {LinkId(f"t{index}"): target for index, target in enumerate(targets)}
    most = step_shares(asked, cost).most
    served = {target: most.get(target, each.num_sequences) for target, each in asked.items()}
    assert all(1 <= num <= asked[target].num_sequences for target, num in served.items())
    weights = sum(each.weight for each in targets)
    # a place each is the least, however little that leaves to others
    size = sum(num * asked[target].size_each for target, num in served.items() if num > 1)
    for each in targets:
        assert cost.seconds(size) <= weights / each.weight * cost.seconds(each.size) * (1 + 1e-6)
    least = min(asked, key=lambda target: asked[target].size / asked[target].weight)
    assert least not in most, "who asks for the least has it"


@given(
    st.lists(
        st.tuples(st.sampled_from("wan"), st.sampled_from("ab"), st.integers(0, 3), st.floats(0.0, 1.5)), max_size=40
    )
)
def test_who_asks_is_who_waits_or_got_a_proposal_a_short_time_ago(events: list[tuple[str, str, int, float]]) -> None:
    tags, now = AskingTags(), 0.0
    waiting: set[TagKey] = set()
    away: dict[TagKey, float] = {}
    for what, target, number, later_s in events:
        now += later_s
        key = TagKey(LinkId(target), Tag(number))
        waiting.discard(key)
        away.pop(key, None)
        match what:
            case "w":
                tags.wait(key)
                waiting.add(key)
            case "a":
                tags.go_away(key, now)
                away[key] = now
            case _:
                tags.stop(key)
        tags.forget_late(now)
        asking_now = [*waiting, *(key for key, since_s in away.items() if now - since_s <= AWAY_S)]
        assert tags.num_asking == Counter(key.link_id for key in asking_now)
        assert tags.num_waiting == Counter(key.link_id for key in waiting)
