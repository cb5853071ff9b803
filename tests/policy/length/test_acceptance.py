"""What is known of a sequence's drafts follows what came of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starspec.policy.length.acceptance import IDLE_ROUNDS, NUM_PRIOR, Acceptance


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


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=40), st.floats(0.0, 1.0))
def test_the_error_is_that_of_a_share_of_the_tokens_that_were_tested(
    drafts: list[tuple[int, int]], first_rate: float
) -> None:
    usual, num_tested = Acceptance(first_rate, fade=1.0), NUM_PRIOR
    for number, (num_drafted, num_accepted) in enumerate(drafts):
        usual.add(num_drafted, min(num_drafted, num_accepted))
        num_tested += min(num_drafted, num_accepted + 1)
        if number == 0 and 0.0 < first_rate < 1.0:
            assert 0.0 < usual.error < 0.5
    assert usual.error**2 * (1.0 + num_tested) == pytest.approx(usual.rate * (1.0 - usual.rate), abs=1e-9)
    own = Acceptance(usual=usual)
    own.add(4, 0)
    assert own.error == usual.error, "how much sequences differ is not in it"


@pytest.mark.parametrize("num_accepted", [0, 4])
def test_in_the_longest_run_of_failure_or_success_every_rate_stays_a_probability(num_accepted: int) -> None:
    usual = Acceptance()
    own = Acceptance(usual=usual)
    for _ in range(10_000):
        for each in (usual, own):
            each.add(4, num_accepted, 5)
    for each in (usual, own):
        for value in (each.rate, each.reach, each.gain, each.error):
            assert 0.0 <= value <= 1.0
