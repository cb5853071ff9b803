"""When a hub is asked again, after it has dropped a tag or had no room for one."""

from __future__ import annotations

from starspec.policy.reopening import ASK_AGAIN_S, MAX_RETRY_S, MIN_RETRY_S, REOPEN_S, SETTLED_S, HubRoom, Reopening


def test_a_tag_is_opened_again_at_once_only_the_first_time() -> None:
    reopening = Reopening()
    reopening.note_reopen(10.0)
    assert reopening.is_due(10.0)
    reopening.note_reopen(10.0)
    assert not reopening.is_due(10.0)
    assert reopening.is_due(10.0 + REOPEN_S)


def test_a_tag_that_was_drafted_for_long_enough_is_opened_again_at_once() -> None:
    reopening = Reopening()
    reopening.note_reopen(0.0)
    reopening.note_proposal(1.0)
    reopening.note_reopen(1.0 + SETTLED_S)
    assert reopening.is_due(1.0 + SETTLED_S)


def test_a_declined_tag_asks_again_when_the_hub_says_but_never_at_once() -> None:
    reopening = Reopening()
    reopening.note_declined(10.0, 2.0)
    assert not reopening.is_due(11.9)
    assert reopening.is_due(12.0)
    reopening.note_declined(20.0, 1e-9)
    assert not reopening.is_due(20.0)
    assert reopening.is_due(20.0 + MIN_RETRY_S)


def test_a_tag_whose_tokens_no_message_holds_is_never_opened() -> None:
    reopening = Reopening()
    assert not reopening.is_forbidden
    reopening.forbid()
    reopening.note_reopen(0.0)
    assert reopening.is_forbidden
    assert not reopening.is_due(1e9)


def test_a_full_hub_is_asked_by_one_tag_at_a_time_until_it_has_room() -> None:
    room = HubRoom()
    room.note_opening(0.0)
    assert room.may_ask(0.0), "a hub that has not declined a tag may be asked by many"
    room.note_declined(0.0, 2.0)
    assert not room.may_ask(1.9)
    assert room.may_ask(2.0)
    room.note_opening(2.0)
    assert not room.may_ask(2.0 + ASK_AGAIN_S / 2), "another tag asks already"
    assert room.may_ask(2.0 + ASK_AGAIN_S)
    room.note_room()
    assert not room.is_full
    assert room.may_ask(0.0)


def test_a_hub_that_declines_for_ever_is_asked_again_within_a_minute() -> None:
    reopening, room = Reopening(), HubRoom()
    for each in (reopening, room):
        each.note_declined(0.0, 1e9)
    assert not reopening.is_due(MAX_RETRY_S - 1.0)
    assert not room.may_ask(MAX_RETRY_S - 1.0)
    assert reopening.is_due(MAX_RETRY_S)
    assert room.may_ask(MAX_RETRY_S)
