"""Whom a target goes on waiting for, by what it was answered."""

from __future__ import annotations

import pytest

from starspec.ids import Epoch, Tag
from starspec.policy.patience import FIRST_PAUSE, MAX_MISSES, TagWait
from starspec.wire.messages import Proposal

EMPTY = Proposal(Tag(1), Epoch(1), 5, [])
FOUND_NOTHING = Proposal(Tag(1), Epoch(1), 5, [], service_s=1e-6)
DRAFTED_AHEAD = Proposal(Tag(1), Epoch(1), 5, [7])
NO_ROOM = Proposal(Tag(1), Epoch(1), 5, [], retry_after_s=1.0)


def answered(proposal: Proposal, num_times: int, *, is_awaited: bool = True) -> TagWait:
    waiting = TagWait()
    for _ in range(num_times):
        waiting.begin_waiting(0.0, is_open=False, is_draft_wanted=is_awaited)
        waiting.note_answer(0.0, is_hopeless=proposal.is_hopeless)
        assert not waiting.is_awaited
    return waiting


def test_a_tag_that_waits_for_empty_proposals_again_and_again_waits_no_longer() -> None:
    assert not answered(EMPTY, MAX_MISSES - 1).patience.is_pausing
    waiting = answered(EMPTY, MAX_MISSES)
    for _ in range(FIRST_PAUSE):
        assert waiting.patience.is_pausing
        waiting.patience.note_paused_step(0.0)
    assert not waiting.patience.is_pausing


def test_an_empty_proposal_that_nobody_waits_for_costs_nothing() -> None:
    assert not answered(EMPTY, 10, is_awaited=False).patience.is_pausing


@pytest.mark.parametrize("proposal", [FOUND_NOTHING, DRAFTED_AHEAD, NO_ROOM])
def test_a_hub_that_drafts_or_looks_or_says_when_to_ask_again_is_worth_a_wait(proposal: Proposal) -> None:
    waiting = answered(proposal, 10)
    assert not waiting.patience.is_pausing
    assert waiting.patience.max_steps(8) == 8
