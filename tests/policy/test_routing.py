"""Which of a gateway's targets gets a request."""

from __future__ import annotations

import pytest

from starspec.errors import CapacityError, OurBug, PeerLost, RequestError, StarspecError
from starspec.policy.routing import MAX_TARGETS, QUIET_S, TargetSnapshot, may_move, pick

IDLE = TargetSnapshot(max_model_len=100, silence_s=0.0, load=0, last_assigned=0)


def test_the_least_loaded_target_is_picked() -> None:
    assert pick([IDLE._replace(load=5), IDLE._replace(load=1), IDLE._replace(load=3)], 10) == 1


def test_of_equals_the_one_longest_without_a_request_is_picked() -> None:
    assert pick([IDLE._replace(last_assigned=each) for each in (3, 1, 2)], 10) == 1


def test_a_target_in_a_long_step_comes_after_the_others_but_before_none() -> None:
    quiet, busy = IDLE._replace(silence_s=QUIET_S + 0.1), IDLE._replace(load=7)
    assert pick([quiet, busy], 10) == 1
    assert pick([quiet._replace(silence_s=QUIET_S), busy], 10) == 0
    assert pick([quiet], 10) == 0


def test_a_target_that_takes_nothing_or_has_too_short_a_context_is_not_picked() -> None:
    small, gone = IDLE._replace(max_model_len=50), IDLE._replace(max_model_len=0)
    assert pick([small, gone, IDLE._replace(load=9)], 50) == 2
    assert pick([small, gone], 49) == 0
    assert pick([small, gone], 50) is None
    assert pick([gone], 0) is None
    assert pick([], 1) is None


@pytest.mark.parametrize("error", [PeerLost("gone"), CapacityError("full")])
def test_an_answer_that_failed_by_its_target_goes_to_others_but_not_to_all(error: StarspecError) -> None:
    moves = [may_move(error, num_targets, is_seen=False) for num_targets in range(1, MAX_TARGETS + 2)]
    assert moves == [True] * (MAX_TARGETS - 1) + [False, False]


def test_an_answer_of_which_its_client_has_seen_something_stays_lost() -> None:
    assert not may_move(PeerLost("gone"), 1, is_seen=True)


@pytest.mark.parametrize("error", [RequestError("too long"), OurBug("failed")])
def test_a_request_that_would_fail_anywhere_goes_nowhere(error: StarspecError) -> None:
    assert not may_move(error, 1, is_seen=False)
