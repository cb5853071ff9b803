"""What a hub is told of one sequence, and what of its last proposal may still be verified."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from starspec.client.tag import HubTag
from starspec.ids import Tag
from starspec.policy.patience import FIRST_PREFILL_WAIT_S, MAX_CATCH_UPS, MAX_UNSENT
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.budget import NO_DRAFT, DraftBudget
from starspec.wire import codec
from starspec.wire.messages import Close, Open, Proposal, Verdict
from starspec.wire.session import Role, TagSession

TWO = DraftBudget.chain(2)


@dataclass
class Tokens:
    """As TokenSource."""

    ids: list[int] = field(default_factory=lambda: [1, 2, 3])
    prompt_len: int = 3

    def __len__(self) -> int:
        return len(self.ids)

    def token_ids(self, start: int = 0) -> list[int]:
        return self.ids[start:]


def new_tag(vocab_size: int | None = None) -> tuple[HubTag, Tokens]:
    tokens = Tokens()
    return HubTag(TagSession(Role.TARGET, Tag(1)), tokens, SamplingSpec(), vocab_size=vocab_size), tokens


def answer(tag: HubTag, token_ids: list[int]) -> None:
    proposal = Proposal(tag.session.tag, tag.session.epoch, tag.session.prefix_len, token_ids)
    assert tag.session.take_if_sound(proposal)
    tag.note_proposal(proposal, 0.0)


def test_the_first_message_tells_all_tokens_and_the_next_ones_those_that_are_new() -> None:
    tag, tokens = new_tag()
    opened = tag.ask(TWO, 0.0)
    assert isinstance(opened, Open)
    assert (opened.token_ids, opened.prompt_len, tag.is_opening) == ([1, 2, 3], 3, True)
    answer(tag, [4, 5])
    tokens.ids += [4, 5, 6]
    verdict = tag.ask(TWO, 0.0)
    assert isinstance(verdict, Verdict)
    assert (verdict.base_len, verdict.token_ids) == (3, [4, 5, 6])
    tag.mark_absent()
    assert isinstance(tag.ask(TWO, 0.0), Open)


def test_the_rest_of_a_late_proposal_is_drafted_if_it_begins_with_what_was_committed() -> None:
    tag, tokens = new_tag()
    tag.ask(TWO, 0.0)
    answer(tag, [4, 5])
    tokens.ids.append(4)
    assert tag.draft().token_ids == (5,)
    tokens.ids.append(6)
    assert tag.draft().token_ids == ()


def test_only_a_tag_that_the_hub_was_told_of_is_closed_and_a_lost_hub_may_hold_it_still() -> None:
    tag, _ = new_tag()
    assert tag.close() is None
    tag.ask(NO_DRAFT, 0.0)
    tag.forget_hub()
    assert isinstance(tag.close(), Close)


@pytest.mark.parametrize("is_foreign", [False, True], ids=["too long", "foreign token"])
def test_a_tag_that_cannot_be_told_sends_nothing_and_is_never_awaited(
    is_foreign: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_foreign:
        monkeypatch.setattr(codec, "MAX_FRAME_BYTES", 10)
    tag, _ = new_tag(vocab_size=3 if is_foreign else None)
    assert tag.ask(TWO, 0.0) is None
    assert tag.reopening.is_forbidden
    assert not tag.is_awaited
    assert tag.session.epoch == 0


def test_a_hub_that_is_far_behind_catches_up_a_few_times_in_a_row_and_is_waited_for_then() -> None:
    tag, tokens = new_tag()
    tag.ask(TWO, 0.0)
    answer(tag, [4, 5])
    for _ in range(MAX_CATCH_UPS):
        tokens.ids += [7] * (MAX_UNSENT + 1)
        assert tag.should_catch_up
        tag.ask(DraftBudget.chain(1), 0.0, is_catch_up=True)
        assert tag.is_unanswered
        assert not tag.is_awaited
        answer(tag, [9])
    tokens.ids += [7] * (MAX_UNSENT + 1)
    assert not tag.should_catch_up


def test_a_malformed_answer_that_is_owed_counts_as_a_miss_and_one_that_is_not_changes_nothing() -> None:
    tag, _ = new_tag()
    tag.ask(NO_DRAFT, 0.0)
    assert not tag.refuse(0.0)
    assert not tag.patience.has_missed
    tag.mark_absent()
    tag.ask(TWO, 0.0)
    assert tag.refuse(0.0)
    assert tag.patience.has_missed
    assert not tag.session.is_held


def test_what_a_lost_hub_did_says_nothing_of_the_next_one() -> None:
    tag, _ = new_tag()
    tag.ask(TWO, 0.0)
    tag.refuse(0.0)
    tag.ask(TWO, 0.0)
    answer(tag, [4, 5])
    tag.forget_hub()
    assert not tag.patience.has_missed
    assert tag.proposal is None
    tag.ask(TWO, 0.0)
    assert not tag.prefill_wait.is_overdue(FIRST_PREFILL_WAIT_S)


def test_a_hub_that_was_told_tokens_that_are_not_the_targets_is_told_all_tokens_again() -> None:
    tag, tokens = new_tag()
    tag.ask(TWO, 0.0)
    answer(tag, [4, 5])
    tokens.ids += [4, 5]
    tag.ask(TWO, 0.0)  # presumed
    answer(tag, [6, 7])
    tokens.ids[3:] = [4, 9]
    tag.retract(num_true=4)
    assert not tag.draft().token_ids
    assert tag.num_unsent >= 1
    opened = tag.ask(TWO, 0.0)
    assert isinstance(opened, Open)
    assert opened.token_ids == [1, 2, 3, 4, 9]
    assert (tag.is_awaited, tag.is_opening) == (True, False)  # as after a verdict: a hub that is late has missed
    answer(tag, [8, 8])
    tokens.ids += [8]
    assert isinstance(tag.ask(TWO, 0.0), Verdict)


def test_a_hub_that_was_told_true_tokens_only_is_told_the_next_ones() -> None:
    tag, tokens = new_tag()
    tag.ask(TWO, 0.0)
    answer(tag, [4, 5])
    tokens.ids += [4, 9]
    tag.retract(num_true=4)
    verdict = tag.ask(TWO, 0.0)
    assert isinstance(verdict, Verdict)
    assert verdict.token_ids == [4, 9]
