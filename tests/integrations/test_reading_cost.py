"""Whether a hub's reading of texts is worth it, after what it cost vLLM before."""

from __future__ import annotations

import pytest

from starspec.integrations.vllm.reading_cost import FIRST_ANSWER, MAX_SLOWED, PROBE_SHARE, UNREAD, PrefillCost

USUAL_S = 10.0  # of the step beside it


def read(cost: PrefillCost, num_told: int, slowed_s: float, num_read: int | None = None, waited_s: float = 0.0) -> None:
    """One text, told whole, until 100 s."""
    cost.note_told(num_told, waited_s)
    cost.note_step(USUAL_S + slowed_s, USUAL_S)
    cost.note_answered(num_told if num_read is None else num_read, 0)
    cost.note_end(100.0)


def after(num_told: int, slowed_s: float, num_read: int | None = None, waited_s: float = 0.0) -> PrefillCost:
    cost = PrefillCost()
    read(cost, num_told, slowed_s, num_read, waited_s)
    return cost


def test_what_was_never_read_is_tried() -> None:
    cost = PrefillCost()
    assert cost.seconds(10_000) == 0.0
    assert cost.is_worth(10_000, now_s=0.1, then_s=0.099)
    assert not cost.is_worth(10_000, now_s=0.1, then_s=0.1), "drafts that save nothing need no reading"
    assert cost.is_worth_a_probe(10_000, now=0.0)


def test_a_text_costs_by_its_tokens_what_those_before_it_did() -> None:
    cost = after(num_told=200, slowed_s=1.0)
    assert cost.seconds(100) == pytest.approx(0.5)
    for _ in range(50):
        cost.note_told(100, 0.0)
        cost.note_step(USUAL_S + 2.5, USUAL_S)
        cost.note_step(USUAL_S - 0.5, USUAL_S)  # steps vary
        cost.note_answered(100, 0)
        cost.note_end(200.0)
    assert cost.seconds(100) == pytest.approx(2.0, rel=1e-3)


def test_long_texts_tell_more_than_short_ones() -> None:
    cost = after(num_told=4000, slowed_s=8.0)
    for _ in range(5):
        read(cost, 5, slowed_s=0.0)
    assert cost.seconds(1000) == pytest.approx(2.0, rel=0.05)


def test_a_wait_costs_the_same_however_long_the_text_is() -> None:
    cost = after(num_told=20, slowed_s=0.0, waited_s=0.03)
    assert cost.seconds(4000) == pytest.approx(0.03)


def test_one_interrupted_step_says_little_even_the_first() -> None:
    assert after(num_told=100, slowed_s=5000.0).seconds(100) == pytest.approx(MAX_SLOWED * USUAL_S)


def test_a_reading_beside_which_no_step_was_compared_tells_nothing() -> None:
    cost = after(num_told=100, slowed_s=1.0)
    for _ in range(5):
        cost.note_told(100, 0.0)
        cost.note_step(3.0, None)
        cost.note_answered(100, 0)
        cost.note_end(200.0)
    assert cost.seconds(100) == pytest.approx(1.0)


def test_steps_that_could_not_be_compared_are_thought_to_lose_as_much_as_the_others() -> None:
    cost = PrefillCost()
    cost.note_told(100, 0.0)
    cost.note_step(USUAL_S + 1.0, USUAL_S)
    for _ in range(3):
        cost.note_step(USUAL_S, None)
    cost.note_answered(100, 0)
    cost.note_end(200.0)
    assert cost.seconds(100) == pytest.approx(4.0)


def test_nothing_is_won_by_reading() -> None:
    assert after(num_told=200, slowed_s=-1.0).seconds(200) == 0.0
    assert after(num_told=200, slowed_s=0.0, waited_s=-1.0).seconds(200) == 0.0


@pytest.mark.parametrize("before_s", [0.0, 1e-6])
def test_what_cost_nothing_once_may_cost_something(before_s: float) -> None:
    cost = after(num_told=100, slowed_s=before_s)
    for _ in range(3):
        read(cost, 100, slowed_s=1.0)
    assert cost.seconds(100) >= 0.7


def test_drafts_have_to_save_more_until_the_end_than_reading_costs() -> None:
    """A second that vLLM loses, 28 tokens of 128: 100 are left to be drafted for."""
    assert FIRST_ANSWER == 128
    now_s = 1.0 / 28
    cost = after(num_told=100, slowed_s=1.0)
    assert cost.is_worth(100, now_s, now_s - 0.0101)
    assert not cost.is_worth(100, now_s, now_s - 0.0099)
    assert not cost.is_worth(100, now_s=1.0 / 130, then_s=0.0), "it ends before"


def test_how_long_answers_are_is_learnt_whichever_hub_there_is() -> None:
    cost = after(num_told=100, slowed_s=1.0)
    for _ in range(100):
        cost.note_answer(38)
    cost.forget_hub()
    assert cost.seconds(100) == 0.0
    read(cost, 100, slowed_s=1.0)
    assert cost.is_worth(100, now_s=1.0 / 28, then_s=0.0) is False, "10 are left"
    assert cost.is_worth(100, now_s=1.0 / 8, then_s=1.0 / 8 - 0.034), "30 are"
    assert not cost.is_worth(100, now_s=1.0 / 8, then_s=1.0 / 8 - 0.033)


def test_what_was_told_in_vain_makes_the_rest_dearer() -> None:
    assert after(num_told=200, slowed_s=1.0, num_read=150).seconds(150) == pytest.approx(1.0)
    assert after(num_told=200, slowed_s=1.0, num_read=1).seconds(200) == pytest.approx(UNREAD * 1.0)
    assert after(num_told=200, slowed_s=1.0, num_read=0).seconds(200) == pytest.approx(UNREAD * 1.0)


def test_what_the_hub_refuses_it_does_not_read() -> None:
    cost = after(num_told=100, slowed_s=1.0)
    cost.note_told(1000, 0.0)
    cost.note_answered(0, num_refused=1000)
    assert not cost.is_going_on
    assert cost.seconds(100) == pytest.approx(1.0)
    cost.note_told(1100, 0.0)
    cost.note_step(USUAL_S + 1.0, USUAL_S)
    cost.note_answered(100, num_refused=1000)
    cost.note_end(200.0)
    assert cost.seconds(100) == pytest.approx(1.0)


def test_what_goes_on_is_known_to_cost_what_it_did_so_far() -> None:
    cost = after(num_told=100, slowed_s=0.1)
    cost.note_told(100, 0.0)
    assert cost.is_going_on
    assert cost.seconds(100) == pytest.approx(0.1)
    cost.note_step(USUAL_S + 3.0, USUAL_S)
    assert cost.seconds(100) == pytest.approx(UNREAD * 3.0)
    cost.note_end(100.0)
    assert not cost.is_going_on


def test_probes_take_a_small_share_of_the_time() -> None:
    cost = after(num_told=100, slowed_s=1.0)
    assert not cost.is_worth_a_probe(100, now=100.0 + 0.99 / PROBE_SHARE)
    assert cost.is_worth_a_probe(100, now=100.0 + 1.01 / PROBE_SHARE)
    assert cost.is_worth_a_probe(10, now=100.0 + 0.11 / PROBE_SHARE)


def test_what_nobody_waited_for_says_nothing_of_waits() -> None:
    cost = after(num_told=20, slowed_s=0.0, waited_s=0.03)
    for _ in range(20):
        cost.note_told(20, None)
        cost.note_answered(20, 0)
        cost.note_end(200.0)
    assert cost.seconds(4000) == pytest.approx(0.03)
