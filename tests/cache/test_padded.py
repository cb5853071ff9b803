"""Realignment against an obvious reference: plain lists, unpadded, one sequence at a time."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from starspec.cache.padded import SPARE_COLUMNS, Movement, PaddedCache
from starspec.cache.ragged import RaggedCache
from starspec.errors import CacheRangeError, OurBug

LAYERS, ROWS, MAX_LEN, HEADS, DIM = 2, 4, 160, 2, 3


def make_cache():
    return Watched(RaggedCache(LAYERS, ROWS, MAX_LEN, HEADS, DIM))


def forward(cache, tokens_of):
    """What a padded forward does: gather the rows, write their tokens, and padding, behind the right edge."""
    rows, num_new = list(tokens_of), max(len(tokens) for tokens in tokens_of.values())
    rectangle, movement = cache.gather(rows, num_new)
    for index, tokens in enumerate(tokens_of.values()):
        padded = torch.tensor([*tokens, *[float("nan")] * (num_new - len(tokens))])
        for layer, kind, head in torch.cartesian_prod(torch.arange(LAYERS), torch.arange(2), torch.arange(HEADS)):
            new = rectangle.keys_values[layer, kind, index, head, rectangle.width : rectangle.width + num_new]
            new.copy_((padded + 0.1 * layer + 0.01 * kind + 0.001 * head)[:, None].expand(-1, DIM))
    return rectangle, movement


def committed(cache, row):
    """The tokens whose keys and values the cache holds for a row, read back from every layer and head, as they lie."""
    home = cache._homes.get(row)
    if home is None:
        return []
    content = home.content(home.rows.index(row)).clone()  # [L, 2, H, len, D]
    for layer, kind, head in torch.cartesian_prod(torch.arange(LAYERS), torch.arange(2), torch.arange(HEADS)):
        content[layer, kind, head] -= 0.1 * layer + 0.01 * kind + 0.001 * head
    read = content.round().long()
    assert (read == read[:1, :1, :1, :, :1]).all(), "layers, heads, keys or values disagree"
    return read[0, 0, 0, :, 0].tolist()


class Watched(PaddedCache):
    """Knows how much there was at most."""

    peak = made = 0

    def gather(self, rows, num_new):
        self.made = self.num_held_bytes  # nothing is let go before all is made
        return super().gather(rows, num_new)

    def _make(self, rows, num_columns, width):
        rectangle = super()._make(rows, num_columns, width)
        self.made += rectangle.num_bytes
        self.peak = max(self.peak, self.made)
        return rectangle


class PaddedMachine(RuleBasedStateMachine):
    """Any batches, any accepted paths, joins and leaves: every row holds the tokens that a plain list would hold."""

    @initialize()
    def begin(self):
        self.cache = make_cache()
        self.model = {}  # row -> committed tokens
        self.next_token = 100

    def new_tokens(self, count):
        self.next_token += count
        return list(range(self.next_token - count, self.next_token))

    @precondition(lambda self: len(self.model) < ROWS)
    @rule()
    def join(self):
        self.model[self.cache.lease()] = []

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def leave(self, data):
        row = data.draw(st.sampled_from(sorted(self.model)))
        self.cache.free(row)
        del self.model[row]

    @precondition(lambda self: self.model)
    @rule(data=st.data(), is_even=st.booleans())
    def run_a_round(self, data, is_even):
        rows = data.draw(st.lists(st.sampled_from(sorted(self.model)), min_size=1, unique=True))
        tokens_of = {row: self.new_tokens(data.draw(st.integers(1, 4))) for row in rows}
        if any(len(self.model[row]) + len(tokens) > MAX_LEN for row, tokens in tokens_of.items()):
            return
        rectangle, movement = forward(self.cache, tokens_of)
        assert rectangle.rows == rows
        assert len(set(rectangle.stops)) == 1
        if movement is Movement.REALIGNMENT:
            assert rectangle.width == max(len(self.model[row]) for row in rows)
        for row, tokens in tokens_of.items():
            path = [index for index in range(len(tokens)) if is_even or data.draw(st.booleans())]
            self.cache.commit(row, path)
            self.model[row] += [tokens[index] for index in path]

    @precondition(lambda self: self.model)
    @rule(data=st.data(), num_tokens=st.integers(1, 4))
    def be_copied_in(self, data, num_tokens):
        """As known prompts are: written behind a row without a forward."""
        row = data.draw(st.sampled_from(sorted(self.model)))
        if len(self.model[row]) + num_tokens > MAX_LEN:
            return
        tokens = self.new_tokens(num_tokens)
        behind = self.cache.behind(row, num_tokens)
        for layer, kind, head in torch.cartesian_prod(torch.arange(LAYERS), torch.arange(2), torch.arange(HEADS)):
            columns = torch.tensor(tokens) + 0.1 * layer + 0.01 * kind + 0.001 * head
            behind[layer, kind, head] = columns[:, None].expand(-1, DIM)
        self.cache.append(row, num_tokens)
        self.model[row] += tokens

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def truncate(self, data):
        row = data.draw(st.sampled_from(sorted(self.model)))
        length = data.draw(st.integers(0, len(self.model[row])))
        self.cache.truncate(row, length)
        del self.model[row][length:]

    @invariant()
    def nothing_is_lost(self):
        self.cache.check_integrity()
        assert {row: committed(self.cache, row) for row in self.model} == self.model

    @invariant()
    def never_more_is_held_than_is_told(self):
        assert self.cache.peak <= self.cache.num_bytes


PaddedMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
test_any_order_of_batches_keeps_the_committed_tokens = PaddedMachine.TestCase


def begun(cache, lengths):
    rows = [cache.lease() for _ in lengths]
    for row, length in zip(rows, lengths, strict=True):
        if length:
            forward(cache, {row: list(range(length))})
            cache.append(row, length)
    return rows


def round_of(cache, rows, accepted):
    _, movement = forward(cache, {row: [1, 2, 3, 4] for row in rows})
    for row, num in zip(rows, accepted, strict=True):
        cache.append(row, num)
    return movement


@given(st.lists(st.integers(0, 20), min_size=1, max_size=ROWS))
def test_padding_is_zero_so_that_what_is_masked_is_no_nan(lengths):
    cache = make_cache()
    rows = begun(cache, lengths)
    rectangle, _ = cache.gather(rows, 1)
    for index, start in enumerate(rectangle.starts):
        assert start == max(lengths) - lengths[index]
        assert not rectangle.keys_values[:, :, index, :, :start].any()


def test_rows_that_accept_evenly_are_never_copied_again():
    cache = make_cache()
    rows = begun(cache, [3, 7, 5])
    movements = [round_of(cache, rows, [2, 2, 2]) for _ in range(10)]
    assert movements == [Movement.REALIGNMENT] + [Movement.NOTHING] * 9


def test_rows_that_accept_unevenly_are_realigned_in_every_round():
    cache = make_cache()
    rows = begun(cache, [3, 3, 3])
    assert [round_of(cache, rows, [1, 2, 4]) for _ in range(3)] == [Movement.COPY] + [Movement.REALIGNMENT] * 2


def test_sequences_of_one_length_are_concatenated_whatever_rectangles_they_come_from():
    cache = make_cache()
    one, two, three = begun(cache, [3, 5, 7])
    round_of(cache, [one, two], [4, 2])
    assert round_of(cache, [one, two, three], [1, 1, 1]) is Movement.COPY


def test_a_full_rectangle_grows_without_realignment():
    cache = make_cache()
    rows = begun(cache, [3, 6])
    movements = {round_of(cache, rows, [4, 4]) for _ in range(SPARE_COLUMNS // 4 + 2)}
    assert movements == {Movement.REALIGNMENT, Movement.NOTHING, Movement.COPY}


def test_one_that_stays_behind_keeps_no_memory_of_those_that_left():
    cache = make_cache()
    rows = begun(cache, [40, 40, 40])
    round_of(cache, rows, [1, 1, 1])
    cache.free(rows[0])
    round_of(cache, [rows[1]], [1])
    column = LAYERS * 2 * HEADS * DIM * 4
    assert cache.num_held_bytes == column * (41 + 41 + 4 + SPARE_COLUMNS)


def test_what_others_left_half_empty_is_let_go_by_those_who_wait():
    cache = make_cache()
    rows = begun(cache, [40, 40, 40, 40])
    round_of(cache, rows, [1, 1, 1, 1])
    for row in rows[:3]:
        cache.free(row)
    forward(cache, {cache.lease(): [1]})  # another begins; the fourth waits
    column = LAYERS * 2 * HEADS * DIM * 4
    assert cache.num_held_bytes == column * (41 + 1 + SPARE_COLUMNS)
    assert committed(cache, rows[3])[:40] == list(range(40))


def test_the_most_is_held_while_those_of_a_half_empty_rectangle_are_realigned():
    cache = make_cache()
    longest = cache.max_len - 8
    rows = begun(cache, [longest] * ROWS)
    round_of(cache, rows, [1] * ROWS)
    cache.free(rows[0])
    again = cache.lease()
    forward(cache, {again: list(range(longest))})
    cache.append(again, longest)
    assert round_of(cache, rows, [1, 2, 3, 4]) is Movement.REALIGNMENT
    column = LAYERS * 2 * HEADS * DIM * 4
    assert (2 * ROWS + 1) * longest * column < cache.peak <= cache.num_bytes  # more than two rectangles


@pytest.mark.parametrize(
    ("accepted", "movement"),
    [([2, 2, 2], Movement.COPY), ([2, 1, 2], Movement.COPY), ([2, 1, 1], Movement.REALIGNMENT)],
)
def test_those_who_stay_at_one_edge_when_others_leave_are_copied_not_realigned(accepted, movement):
    cache = make_cache()
    rows = begun(cache, [3, 7, 5])
    round_of(cache, rows, accepted)
    cache.free(rows[1])
    assert round_of(cache, [rows[0], rows[2]], [1, 1]) is movement


def test_a_row_number_that_is_leased_again_is_another_sequence():
    cache = make_cache()
    rows = begun(cache, [4, 4])
    round_of(cache, rows, [1, 1])
    cache.free(rows[1])
    assert cache.lease() == rows[1]
    assert round_of(cache, rows, [1, 1]) is Movement.REALIGNMENT
    assert committed(cache, rows[1]) == [1]


def test_what_does_not_fit_is_refused():
    cache = make_cache()
    (row,) = begun(cache, [2])
    with pytest.raises(CacheRangeError, match="increasing"):
        cache.commit(row, [1, 0])
    with pytest.raises(CacheRangeError):
        cache.append(row, MAX_LEN)
    with pytest.raises(CacheRangeError):
        cache.truncate(row, 3)
    with pytest.raises(CacheRangeError, match="had no token 90"):
        cache.append(row, 91)  # into the slots of a rectangle that is not so wide
    with pytest.raises(CacheRangeError, match="has not been forwarded"):
        cache.append(cache.lease(), 1)


def test_integrity_sees_a_length_that_is_not_in_the_columns():
    cache = make_cache()
    (row,) = begun(cache, [2])
    cache.lengths[row] = 1
    with pytest.raises(OurBug, match=f"row {row}"):
        cache.check_integrity()
