"""What is known of a sequence's drafts follows what came of them."""

from __future__ import annotations

import pytest

from starspec.policy.length.acceptance import IDLE_ROUNDS, Acceptance


def test_how_far_a_draft_goes_is_told_apart_from_how_often_it_is_right() -> None:
    acceptance = Acceptance(first_reach=0.5)
    assert acceptance.reach == 0.5
    for _ in range(200):
        acceptance.add(num_drafted=3, num_accepted=3, num_requested=4)
    assert acceptance.rate == pytest.approx(1.0, abs=1e-6)
    assert acceptance.reach == pytest.approx(2 / 3)
    for _ in range(200):
        acceptance.add(num_drafted=4, num_accepted=1, num_requested=4)
    assert acceptance.rate == pytest.approx(0.5)
    assert acceptance.reach == pytest.approx(1.0, abs=1e-6)


def test_the_rate_is_what_was_accepted_of_what_was_tried() -> None:
    """Behind a refused token nothing was tried."""
    acceptance = Acceptance()
    for _ in range(200):
        acceptance.add(num_drafted=5, num_accepted=2)
    assert acceptance.rate == pytest.approx(2 / 3)
    for _ in range(200):
        acceptance.add(num_drafted=2, num_accepted=2)
    assert acceptance.rate == pytest.approx(1.0, abs=1e-6)


def test_a_draft_that_goes_on_is_right_more_often() -> None:
    """A hub that ends each wrong draft at once: what it goes on with is accepted, unlike the first token."""
    acceptance = Acceptance()
    for _ in range(200):
        acceptance.add(num_drafted=1, num_accepted=0, num_requested=4)
        acceptance.add(num_drafted=4, num_accepted=4, num_requested=4)
    assert acceptance.rate * acceptance.reach < 0.65
    assert acceptance.gain > 0.85
    for _ in range(200):
        acceptance.add(num_drafted=2, num_accepted=2, num_requested=4)
    assert acceptance.gain == pytest.approx(0.5), "a draft that ended brought nothing more"


def test_a_draft_that_is_never_right_brings_nothing_further() -> None:
    acceptance = Acceptance(usual=Acceptance())
    for _ in range(200):
        acceptance.add(num_drafted=4, num_accepted=0, num_requested=4)
    assert acceptance.gain == pytest.approx(acceptance.rate, abs=0.01)


def test_a_sequence_begins_with_what_goes_on_in_others() -> None:
    usual = Acceptance()
    for _ in range(200):
        usual.add(num_drafted=1, num_accepted=0, num_requested=4)
        usual.add(num_drafted=4, num_accepted=4, num_requested=4)
    sequence = Acceptance(usual=usual)
    assert sequence.gain == pytest.approx(usual.gain, abs=1e-6)
    assert sequence.gain > 1.3 * sequence.rate * sequence.reach


def test_drafts_that_end_early_leave_longer_ones_worth_asking_for() -> None:
    """Else nothing would show that the hub became sure."""
    acceptance = Acceptance(usual=Acceptance())
    for _ in range(200):
        acceptance.add(num_drafted=1, num_accepted=1, num_requested=4)
    assert acceptance.gain == pytest.approx(acceptance.rate * acceptance.reach)


def test_a_step_without_a_draft_changes_no_rate() -> None:
    acceptance = Acceptance()
    before = acceptance.rate
    acceptance.add(num_drafted=0, num_accepted=0)
    assert acceptance.rate == before


def test_what_was_verified_lately_counts_more() -> None:
    acceptance = Acceptance()
    for _ in range(50):
        acceptance.add(num_drafted=1, num_accepted=0)
    for _ in range(7):
        acceptance.add(num_drafted=1, num_accepted=1)
    assert acceptance.rate == pytest.approx(0.5, abs=0.05)


def test_it_begins_with_what_is_thought_of_it() -> None:
    assert Acceptance(0.25).rate == 0.25


def test_who_had_no_draft_for_long_is_idle() -> None:
    acceptance = Acceptance()
    for _ in range(IDLE_ROUNDS):
        assert not acceptance.is_idle
        acceptance.add(0, 0)
    assert acceptance.is_idle
    acceptance.add(2, 0)
    assert not acceptance.is_idle
