"""Names of prefixes and the rows that hold them, against a comparison of all rows token by token."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starspec.cache.prefixes import PREFIX_BLOCK, PrefixIndex, PrefixName, PrefixNames
from starspec.errors import OurBug

NUM_ROWS = 4


def tokens_of(story: str) -> list[int]:
    """A block of equal tokens for each letter."""
    return [ord(letter) for letter in story for _ in range(PREFIX_BLOCK)]


def names_of(story: str, salt: bytes = b"") -> list[PrefixName]:
    return list(PrefixNames(salt).of(tokens_of(story)))


def test_names_are_equal_where_all_tokens_before_are_and_nowhere_else() -> None:
    one, other = names_of("abcd"), names_of("abxd")
    assert one[:2] == other[:2]
    assert len({*one, *other}) == 6, "the last block is the same, what comes before is not"


def test_a_block_that_is_not_whole_has_no_name() -> None:
    assert [len(PrefixNames(b"").of([7] * length)) for length in (1, PREFIX_BLOCK - 1, PREFIX_BLOCK)] == [0, 0, 1]
    assert len(PrefixNames(b"").of([7] * (2 * PREFIX_BLOCK + 1))) == 2


@given(st.lists(st.integers(0, 40), max_size=6))
def test_a_sequence_that_grows_has_the_names_of_one_that_came_at_once(steps: list[int]) -> None:
    token_ids = random.Random(1).choices(range(2**31), k=sum(steps))
    growing = PrefixNames(b"s")
    for stop in [sum(steps[: index + 1]) for index in range(len(steps))]:
        assert list(growing.of(token_ids[:stop])) == list(PrefixNames(b"s").of(token_ids[:stop]))


def test_those_with_another_salt_have_other_names_and_those_with_none_have_none() -> None:
    salts = (b"", b"a", b"b")
    assert len({name for salt in salts for name in names_of("abc", salt)}) == 9
    assert PrefixNames(None).of(tokens_of("abc")) == []


stories = st.text("ab", max_size=5)


@given(st.lists(st.tuples(st.integers(0, NUM_ROWS - 1), stories, stories), max_size=12))
def test_the_longest_prefix_is_found_as_by_comparing_with_every_row(steps: list[tuple[int, str, str]]) -> None:
    index, held = PrefixIndex(NUM_ROWS), [""] * NUM_ROWS
    for row, story, asked in steps:
        index.hold(row, names_of(story))
        held[row] = story
        index.check_integrity()
        assert [list(index.names(each)) for each in range(NUM_ROWS)] == [names_of(each) for each in held]
        shared = [num for num in range(len(asked) + 1) if any(each.startswith(asked[:num]) for each in held)]
        names = names_of(asked)
        assert index.num_held(names, len(names)) == max(shared)
        assert index.num_held(names, len(names) // 2) == min(max(shared), len(names) // 2)
        for num in shared[1:]:
            rows = {number for number, each in enumerate(held) if each.startswith(asked[:num])}
            assert set(index.rows(names[num - 1])) == rows


def test_a_look_does_not_grow_with_the_number_of_rows() -> None:
    class Counting(dict[PrefixName, dict[int, None]]):
        looks = 0

        def __contains__(self, name: object) -> bool:
            self.looks += 1
            return super().__contains__(name)

    index = PrefixIndex(1000)
    names = PrefixNames(b"").of(list(range(250 * PREFIX_BLOCK)))
    for row in range(1000):
        index.hold(row, names[: row % 250])
    index._rows = counting = Counting(index._rows)
    assert index.num_held(names, 250) == 249
    assert counting.looks <= 8


def test_a_row_that_is_known_in_one_direction_only_breaks_the_invariant() -> None:
    index = PrefixIndex(2)
    index.hold(1, names_of("ab"))
    index._names[1].pop()
    with pytest.raises(OurBug, match="1 entries by row, 2 by name"):
        index.check_integrity()
