"""When a request that is not seen any more is forgotten."""

import numpy as np
import pytest

from starspec.integrations.vllm.rows import KnownRequest, RowBook
from starspec.policy.forgetting import FORGET_AFTER_S, LONGEST_STEP_S

TOKENS = np.arange(100, dtype=np.int32)[None, :]


def step(book: RowBook, length: int, now: float) -> None:
    """One row, which holds one more token than in the step before."""
    (seen,) = book.see([[length - 1]], np.array([length], np.int32), TOKENS, now)
    assert seen is not None


def test_one_that_ends_is_forgotten_soon() -> None:
    book = RowBook()
    for index in range(3):
        step(book, 10 + index, now=0.05 * index)
    assert not book.forget(0.1 + FORGET_AFTER_S)
    assert len(book.forget(0.11 + FORGET_AFTER_S)) == 1


@pytest.mark.parametrize("step_s", [0.9, 3.0])
def test_steps_that_take_seconds_end_nobody(step_s: float) -> None:
    book = RowBook()
    for index in range(3):
        step(book, 10 + index, now=step_s * index)
    last_s = 2 * step_s
    assert not book.forget(last_s + 1.9 * step_s)
    assert len(book.forget(last_s + 2.1 * step_s)) == 1


def test_one_slow_step_keeps_nobody_for_longer() -> None:
    """A neighbour's long prompt was prefilled in it."""
    book, now = RowBook(), 0.0
    for index, step_s in enumerate([0.05] * 4 + [6.0] + [0.05] * 4):
        now += step_s
        step(book, 10 + index, now=now)
    assert len(book.forget(now + 1.1 * FORGET_AFTER_S)) == 1


def test_the_time_without_requests_is_no_step() -> None:
    book = RowBook()
    step(book, 10, now=0.0)
    book.forget(2.0)
    step(book, 11, now=60.0)  # the first of another request
    step(book, 12, now=60.1)
    assert len(book.forget(61.2)) == 1


def test_of_two_requests_of_which_one_begins_with_the_other_each_is_found_again() -> None:
    book = RowBook()
    one_each = [[1], [1]]
    both = np.vstack([TOKENS, TOKENS])
    short, long = book.see(one_each, np.array([20, 60]), both, now=0.0)
    assert short is not None
    assert long is not None
    found = book.see(one_each, np.array([61, 21]), both, now=0.05)  # they have changed rows
    assert [(each.request, each.num_new, each.is_first) for each in found if each is not None] == [
        (long.request, 1, False),
        (short.request, 1, False),
    ]


def test_rows_are_found_however_they_are_shuffled_and_whoever_else_is_remembered() -> None:
    rng = np.random.default_rng(7)
    common = rng.integers(0, 9, 40)  # of all prompts, as a system prompt is
    rows = np.stack([np.concatenate([common, rng.integers(0, 9, 60)]) for _ in range(64)]).astype(np.int32)
    book = RowBook()
    lengths = rng.integers(45, 80, 64)
    before = book.see([[1]] * 64, lengths, rows, now=0.0)
    order = rng.permutation(64)[:40]  # the others have ended, and are remembered
    after = book.see([[1]] * 40, lengths[order] + 1, rows[order], now=0.05)
    for index, seen in zip(order, after, strict=True):
        assert seen is not None
        assert (seen.request, seen.num_new, seen.is_first) == (before[index].request, 1, False)  # type: ignore[union-attr]


@pytest.mark.parametrize("place", [0, 1275])  # one of those spread evenly; between two of them, of the last ones
def test_a_text_that_differs_far_back_or_near_its_end_is_another_request(place: int) -> None:
    row = np.arange(1281, dtype=np.int32)
    request = KnownRequest(row[:1280], prompt_len=1)
    assert request.begins(row)
    row[place] += 1
    assert not request.begins(row)


def test_two_requests_of_the_same_tokens_that_move_are_still_two() -> None:
    book = RowBook()
    before = book.see([[1]] * 2, np.array([20, 20]), np.vstack([TOKENS, TOKENS]), now=0.0)
    other = TOKENS[:, ::-1]
    after = book.see([[1]] * 4, np.array([30, 30, 21, 21]), np.vstack([other, other, TOKENS, TOKENS]), now=0.05)
    found = [(each.request, each.num_new, each.is_first) for each in after[2:] if each is not None]
    assert found == [(each.request, 1, False) for each in before if each is not None]


@pytest.mark.parametrize("step_s", [1.5, 4.0, 9.0])
def test_a_server_whose_every_step_is_long_is_dropped_once(step_s: float) -> None:
    """How long a step takes is learnt from the first, though what was in it was dropped meanwhile."""
    book, now, row = RowBook(), 100.0, np.arange(50, dtype=np.int32)
    num_dropped = 0
    for length in range(10, 20):
        book.see([[int(row[length - 1])]], np.array([length], np.int32), row[None], now)
        for _ in range(round(step_s / 0.1)):
            now += 0.1
            num_dropped += len(book.forget(now))
    assert num_dropped == 1
    assert not book._dropped


def test_a_pause_between_two_requests_is_no_step() -> None:
    book, row = RowBook(), np.arange(50, dtype=np.int32)
    book.see([[9]], np.array([10], np.int32), row[None], 100.0)
    assert book.forget(110.0)
    book.see([[29]], np.array([30], np.int32), row[None], 200.0)
    assert book.forget(201.5)


def test_a_row_without_tokens_goes_on_from_nothing() -> None:
    book, row = RowBook(), np.arange(50, dtype=np.int32)
    book.see([[9]], np.array([10], np.int32), row[None], 100.0)
    assert book.forget(102.0)
    assert book.see([[]], np.array([0], np.int32), row[None], 103.0) == [None]


def test_one_that_was_dropped_in_a_long_step_is_back_and_has_not_ended() -> None:
    book = RowBook()
    for index in range(4):
        step(book, 10 + index, now=0.05 * index)
    assert len(book.forget(3.0, lambda _: 7)) == 1
    assert not book.ended
    (seen,) = book.see([[13]], np.array([14], np.int32), TOKENS, 3.0)
    assert seen is not None
    assert seen.request.prefilled_by == 7
    assert seen.request.prompt_len == 9
    assert not book.ended
    assert len(book.forget(9.0)) == 1
    (seen,) = book.see([[1]], np.array([51], np.int32), TOKENS, 9.0)  # another request
    assert seen is not None
    assert seen.request.prefilled_by is None
    assert book.ended == [5]
    book.see([[1]], np.array([52], np.int32), TOKENS, 9.1)
    assert not book.ended


def test_what_goes_on_after_a_long_pause_is_another_request_and_the_one_before_has_ended() -> None:
    book = RowBook()
    for index in range(4):
        step(book, 10 + index, now=0.05 * index)
    assert len(book.forget(3.0, lambda _: 7)) == 1
    (seen,) = book.see([[13]], np.array([14], np.int32), TOKENS, 3.0 + LONGEST_STEP_S)
    assert seen is not None
    assert (seen.request.prompt_len, seen.request.prefilled_by) == (13, None)
    assert book.ended == [4]
