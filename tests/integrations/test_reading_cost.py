"""Whether a hub's reading of a text is worth it, after what it cost vLLM before."""

from __future__ import annotations

import pytest

from starspec.integrations.vllm.reading_cost import FIRST_ANSWER, PROBE_SHARE, UNREAD, ReadingCost


def after(num_told: int, lost_s: float, num_read: int | None = None) -> ReadingCost:
    """That of one text, told whole and read at 100 s."""
    cost = ReadingCost()
    cost.note_told(num_told)
    cost.note_lost(lost_s)
    cost.note_end(100.0, num_told if num_read is None else num_read)
    return cost


def test_what_was_never_read_is_tried() -> None:
    cost = ReadingCost()
    assert cost.seconds(10_000) == 0.0
    assert cost.is_worth(10_000, saved_s=0.001)
    assert not cost.is_worth(10_000, saved_s=0.0), "drafts that save nothing need no reading"
    assert cost.is_worth_a_probe(10_000, now=0.0)


def test_a_text_costs_by_its_tokens_what_those_before_it_did() -> None:
    cost = after(num_told=200, lost_s=1.0)
    assert cost.seconds(100) == pytest.approx(0.5)
    for _ in range(50):
        cost.note_told(100)
        cost.note_lost(2.0)
        cost.note_lost(-5.0)  # a step that was quick says nothing of reading
        cost.note_end(200.0, 100)
    assert cost.seconds(100) == pytest.approx(2.0, rel=1e-3)


def test_drafts_have_to_save_more_until_the_end_than_reading_costs() -> None:
    cost = after(num_told=100, lost_s=1.0)
    assert cost.is_worth(100, saved_s=1.01 / FIRST_ANSWER)
    assert not cost.is_worth(100, saved_s=0.99 / FIRST_ANSWER)
    for _ in range(50):
        cost.note_answer(10)
    assert cost.is_worth(100, saved_s=0.101)
    assert not cost.is_worth(100, saved_s=0.099)


def test_what_was_told_in_vain_makes_the_rest_dearer() -> None:
    assert after(num_told=200, lost_s=1.0, num_read=50).seconds(50) == pytest.approx(1.0)
    assert after(num_told=200, lost_s=1.0, num_read=0).seconds(200) == pytest.approx(UNREAD * 1.0)


def test_what_goes_on_is_known_to_cost_what_it_did_so_far() -> None:
    cost = after(num_told=100, lost_s=0.1)
    cost.note_told(100)
    assert cost.is_going_on
    assert cost.seconds(100) == pytest.approx(0.1)
    cost.note_lost(3.0)
    assert cost.seconds(100) == pytest.approx(3.0)
    cost.note_end(100.0, 100)
    assert not cost.is_going_on


def test_probes_take_a_small_share_of_the_time() -> None:
    cost = after(num_told=100, lost_s=1.0)
    assert not cost.is_worth_a_probe(100, now=100.0 + 0.99 / PROBE_SHARE)
    assert cost.is_worth_a_probe(100, now=100.0 + 1.01 / PROBE_SHARE)
    assert cost.is_worth_a_probe(10, now=100.0 + 0.11 / PROBE_SHARE)
