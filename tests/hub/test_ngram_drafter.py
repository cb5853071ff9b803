"""Prompt lookup behind the hub: no model, no cache, the same life of sequences."""

from __future__ import annotations

import tracemalloc

import pytest
from hub_toys import END, ToyTag
from hypothesis import given, settings
from hypothesis import strategies as st

from starspec.config import HubConfig
from starspec.hub.hub import DraftHub
from starspec.hub.ngram import NgramDrafter
from starspec.ids import LinkId, TargetId
from starspec.speculation.ngram import NgramIndex
from starspec.wire.messages import Close, Open, Proposal, Verdict

A, B = LinkId("a"), LinkId("b")


class NgramStar:
    """A hub with prompt lookup and one target."""

    def __init__(self, num_rows: int = 4) -> None:
        config = HubConfig(max_tags=16, max_draft_tokens=8, prefill_chunk=16)
        self.hub = DraftHub(NgramDrafter(2, 3, num_rows), lambda: 0.0, config)
        self.hub.join(A, TargetId("a"), 32)

    def ask(self, message: Open | Verdict) -> list[int]:
        """The proposal that answers a message."""
        self.hub.handle(A, message, 0.0)
        replies = []
        while self.hub.has_work:
            replies += self.hub.step(0.0)
            self.hub.check_integrity()
        ((_, proposal),) = replies
        assert isinstance(proposal, Proposal)
        return proposal.token_ids


def test_a_text_that_repeats_itself_is_continued() -> None:
    assert NgramStar().ask(ToyTag(1, [1, 2, 3, 4, 5, 1, 2]).open(3)) == [3, 4, 5]


def test_a_text_without_repetition_is_answered_with_an_empty_proposal() -> None:
    assert NgramStar().ask(ToyTag(1, [1, 2, 3]).open(3)) == []


def test_tokens_that_the_target_commits_are_looked_up_too() -> None:
    star, tag = NgramStar(), ToyTag(1, [1, 2, 3])
    star.ask(tag.open(3))
    assert star.ask(tag.verdict([9, 1, 2], 3)) == [3, 9, 1]


def test_a_later_occurrence_is_a_better_guess_than_what_was_proposed_before() -> None:
    star, tag = NgramStar(), ToyTag(1, [1, 2, 3, 1, 2, 8, 5, 1, 2, 3])
    assert star.ask(tag.open(3)) == [1, 2, 8]
    assert star.ask(tag.verdict([1, 2], 2)) == NgramIndex(2, 3, tag.token_ids).propose(2) != [8]


def test_nothing_is_copied_beyond_an_end_token() -> None:
    assert NgramStar().ask(ToyTag(1, [1, 2, 3, END, 5, 1, 2]).open(4)) == [3, END]


def test_token_ids_of_any_vocabulary_and_sequences_of_any_length_will_do() -> None:
    prompt = [2**30, 2**30 + 1, 7] * 4000
    assert NgramStar().ask(ToyTag(1, prompt).open(2)) == [2**30, 2**30 + 1]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 3), st.lists(st.integers(0, 3), min_size=1, max_size=5)), max_size=20))
@pytest.mark.parametrize("num_rows", [1, 4])
def test_each_proposal_is_what_a_fresh_lookup_gives(num_rows: int, rounds: list[tuple[int, list[int]]]) -> None:
    star, tags = NgramStar(num_rows), {index: ToyTag(index, [index]) for index in (1, 2, 3)}
    for index, token_ids in rounds:
        tag = tags[index]
        proposed = star.ask(tag.verdict(token_ids, 4) if tag.session.is_held else tag.open(4))
        assert proposed == NgramIndex(2, 3, tag.token_ids).propose(4)


def test_closing_frees_the_index() -> None:
    star, tag = NgramStar(num_rows=1), ToyTag(1, [1, 2])
    star.ask(tag.open(1))
    star.hub.handle(A, Close(tag.session.tag, tag.session.next_epoch), 0.0)
    star.hub.check_integrity()
    assert star.hub.status(0.0).stats.num_tags == 0


def test_a_long_text_of_one_target_is_indexed_piece_by_piece_and_keeps_no_other_waiting() -> None:
    star, text = NgramStar(), [5, 6, 7] * 200
    star.hub.join(B, TargetId("b"), 32)
    star.hub.handle(B, ToyTag(1, text).open(4), 0.0)
    star.hub.handle(A, ToyTag(1, [1, 2, 3, 1, 2]).open(1), 0.0)
    assert [name for name, _ in star.hub.step(0.0)] == [A]
    star.hub.check_integrity()
    num_steps, replies = 1, []
    while not replies:
        replies, num_steps = star.hub.step(0.0), num_steps + 1
        star.hub.check_integrity()
    assert num_steps >= len(text) / 16  # of the config
    ((name, proposal),) = replies
    assert isinstance(proposal, Proposal)
    assert (name, proposal.token_ids) == (B, [5, 6, 7, 5])


def test_tokens_that_are_committed_while_a_text_is_indexed_are_indexed_behind_it() -> None:
    star, tag = NgramStar(), ToyTag(1, [5, 6, 7] * 30)
    star.hub.handle(A, tag.open(2), 0.0)
    assert not star.hub.step(0.0)
    assert star.ask(tag.verdict([5, 9, 5, 9], 2)) == [5, 9]


def test_the_indexes_of_all_tokens_that_a_hub_holds_have_bounded_memory() -> None:
    num_tokens = 20_000  # each is another one: repeated n-grams take less
    tracemalloc.start()
    index = NgramIndex(2, 4, range(num_tokens))
    num_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(index) == num_tokens
    assert num_bytes / num_tokens * NgramDrafter.max_held_tokens <= 1.5 * 2**30
