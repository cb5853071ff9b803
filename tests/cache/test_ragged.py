import psutil
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from starspec.cache import ragged
from starspec.cache.ragged import KEY_BLOCK, RaggedCache
from starspec.errors import CacheRangeError, ConfigError, NoFreeRow, OurBug

LAYERS, ROWS, MAX_LEN, HEADS, DIM = 2, 3, 12, 2, 4


def make_cache(num_rows=ROWS):
    return RaggedCache(LAYERS, num_rows, MAX_LEN, HEADS, DIM)


def forward(cache, row, tokens):
    """What a runner does, with content that names the token, the layer and the head."""
    for layer in range(LAYERS):
        content = torch.tensor(tokens, dtype=torch.float32)[None, :, None].expand(HEADS, -1, DIM)
        mark = layer * 10 + torch.arange(HEADS)[:, None, None] / 10
        cache.write(layer, row, content + mark, -content - mark)


def committed(cache, row, num_behind=0):
    """The tokens whose keys and values lie in the row, and behind it, read back from every layer and head."""
    length = cache.lengths[row] + num_behind
    readings = {
        tuple((sign * stored[row, head, :length] - layer * 10 - head / 10).round().flatten().tolist())
        for layer in range(LAYERS)
        for head in range(HEADS)
        for sign, stored in ((1, cache.keys[layer]), (-1, cache.values[layer]))
    }
    assert len(readings) == 1, "layers, heads, keys or values disagree"
    return [int(token) for token in readings.pop()[::DIM]]


class CacheMachine(RuleBasedStateMachine):
    """Any order of operations leaves every row with the tokens that a plain list would hold."""

    def __init__(self):
        super().__init__()
        self.cache = make_cache()
        self.model = {}  # row -> committed tokens
        self.left = {}  # free row -> the tokens that it held last
        self.next_token = 100

    def new_tokens(self, count):
        self.next_token += count
        return list(range(self.next_token - count, self.next_token))

    def some_row(self, data):
        return data.draw(st.sampled_from(sorted(self.model)))

    def forwarded(self, data):
        row = self.some_row(data)
        tokens = self.new_tokens(data.draw(st.integers(0, MAX_LEN - len(self.model[row]))))
        forward(self.cache, row, tokens)
        return row, tokens

    @precondition(lambda self: len(self.model) < ROWS)
    @rule(data=st.data())
    def lease(self, data):
        free = sorted(set(range(ROWS)) - set(self.model))
        row = self.cache.lease(data.draw(st.sampled_from([None, *free])))
        assert row not in self.model
        self.model[row] = []
        if data.draw(st.booleans()):
            self.take_from(data, row, row, self.left.get(row, []))
        self.left.pop(row, None)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def take_over(self, data):
        row = self.some_row(data)
        contents = {source: held for source, held in (self.model | self.left).items() if source != row}
        alike = [source for source, held in contents.items() if held[: len(self.model[row])] == self.model[row]]
        if alike:
            source = data.draw(st.sampled_from(sorted(alike)))
            self.take_from(data, row, source, contents[source])

    def take_from(self, data, row, source, held):
        length = data.draw(st.integers(len(self.model[row]), max(len(held), len(self.model[row]))))
        self.cache.take_over(row, source, length)
        self.model[row] = held[:length] if length else []

    @precondition(lambda self: len(self.model) == ROWS)
    @rule()
    def lease_one_too_many(self):
        with pytest.raises(NoFreeRow):
            self.cache.lease()

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def free(self, data):
        row = self.some_row(data)
        self.cache.free(row)
        self.left[row] = self.model.pop(row)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def append(self, data):
        row, tokens = self.forwarded(data)
        kept = data.draw(st.integers(0, len(tokens)))
        self.cache.append(row, kept)
        self.model[row] += tokens[:kept]

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def commit(self, data):
        row, tokens = self.forwarded(data)
        path = [index for index in range(len(tokens)) if data.draw(st.booleans())]
        kept = data.draw(st.permutations([index for index in range(len(tokens)) if index not in path]))
        self.cache.commit(row, path, kept)
        self.model[row] += [tokens[index] for index in path]
        behind = [tokens[index] for index in kept]
        assert committed(self.cache, row, len(behind)) == self.model[row] + behind

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def truncate(self, data):
        row = self.some_row(data)
        length = data.draw(st.integers(0, len(self.model[row])))
        self.cache.truncate(row, length)
        self.cache.truncate(row, length)
        del self.model[row][length:]

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def overflow(self, data):
        row = self.some_row(data)
        with pytest.raises(CacheRangeError):
            self.cache.append(row, MAX_LEN - len(self.model[row]) + 1)

    @invariant()
    def rows_hold_what_was_committed(self):
        self.cache.check_integrity()
        for row, tokens in self.model.items():
            assert committed(self.cache, row) == tokens


CacheMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
test_any_order_of_operations_keeps_the_committed_tokens = CacheMachine.TestCase


def test_all_three_ways_to_write_put_the_same_into_the_same_slots():
    caches = [make_cache() for _ in range(3)]
    for cache in caches:
        row = [cache.lease(), cache.lease()][1]
        cache.append(row, 3)
    content = torch.randn(4, 2, HEADS, DIM)  # [T, 2, H, D]
    keys, values = content.permute(1, 2, 0, 3)
    caches[0].write(1, row, keys, values)
    caches[1].places(row, 3, 7)[1].copy_(content)
    caches[2].scatter(1, torch.full((4,), row), torch.arange(3, 7), content)
    for cache in caches:
        assert torch.equal(cache.keys[1][row, :, 3:7], keys)
        assert torch.equal(cache.values[1][row, :, 3:7], values)
        assert torch.equal(cache.keys[1], caches[0].keys[1])
        assert not cache.keys[0].any()


def test_a_window_shows_a_row_as_often_as_asked_without_copying():
    cache = make_cache()
    row = [cache.lease(), cache.lease()][1]
    forward(cache, row, [1, 2, 3])
    keys, values = (of_layer[1] for of_layer in cache.windows(row, num_slots=5, num_copies=3))
    assert keys.shape == (3, HEADS, 5, DIM)
    for copy in range(3):
        assert torch.equal(keys[copy], cache.keys[1][row, :, :5])
        assert torch.equal(values[copy], cache.values[1][row, :, :5])
    cache.keys[1][row, 0, 4] = 9.0
    assert (keys[:, 0, 4] == 9.0).all()


def test_a_chain_prefix_moves_nothing():
    cache = make_cache()
    row = cache.lease()
    forward(cache, row, [1, 2, 3])
    before = cache.keys[0].clone()
    cache.commit(row, [0, 1])
    assert torch.equal(cache.keys[0], before)
    assert committed(cache, row) == [1, 2]


def test_other_rows_are_never_touched_by_a_commit():
    cache = make_cache()
    one, other = cache.lease(), cache.lease()
    for row in (one, other):
        forward(cache, row, [row, 50, 51, 52])
        cache.append(row, 1)
    forward(cache, one, [7, 8, 9])
    before = cache.values[1][other].clone()
    cache.commit(one, [1, 2])
    assert torch.equal(cache.values[1][other], before)
    assert committed(cache, one) == [one, 8, 9]


def test_kept_tokens_must_fit_the_row():
    cache = make_cache()
    row = cache.lease()
    with pytest.raises(CacheRangeError):
        cache.commit(row, [0], [MAX_LEN])


@pytest.mark.parametrize("path", [[1, 1], [2, 0], [-1], [0, MAX_LEN]])
def test_a_path_that_leaves_the_segment_or_goes_back_is_refused(path):
    cache = make_cache()
    row = cache.lease()
    with pytest.raises(CacheRangeError):
        cache.commit(row, path)
    assert cache.lengths[row] == 0


@pytest.mark.parametrize("length", [-1, 3])
def test_a_rollback_never_grows_a_row(length):
    cache = make_cache()
    row = cache.lease()
    cache.append(row, 2)
    with pytest.raises(CacheRangeError):
        cache.truncate(row, length)


def test_a_row_takes_over_no_more_than_its_source_holds_and_never_fewer_than_it_holds_itself():
    cache = make_cache()
    row, source = cache.lease(), cache.lease()
    cache.append(source, 3)
    cache.append(row, 2)
    for length in (1, 4, MAX_LEN + 1):
        with pytest.raises(CacheRangeError):
            cache.take_over(row, source, length)
    with pytest.raises(CacheRangeError):
        cache.take_over(2, source, 1)
    assert cache.lengths == [2, 3, 0]


def test_rows_that_are_not_leased_are_refused():
    cache = make_cache()
    for call in (lambda: cache.append(0, 1), lambda: cache.commit(0, [0]), lambda: cache.truncate(0, 0)):
        with pytest.raises(CacheRangeError):
            call()
    with pytest.raises(OurBug):
        cache.free(0)


def test_a_leased_row_starts_empty():
    cache = make_cache(num_rows=1)
    row = cache.lease()
    cache.append(row, 5)
    cache.free(row)
    assert cache.lease() == row
    assert cache.lengths[row] == 0


def test_integrity_sees_lengths_that_cannot_be():
    cache = make_cache()
    cache.lengths[1] = 1
    with pytest.raises(OurBug, match="row 1"):
        cache.check_integrity()


def test_rows_are_whole_key_blocks_of_zeros():
    cache = RaggedCache(1, 1, KEY_BLOCK + 1, 1, 2, dtype=torch.bfloat16)
    assert cache.keys[0].shape == (1, 1, 2 * KEY_BLOCK, 2)
    assert not cache.keys[0].any()
    assert cache.num_bytes == 2 * 2 * KEY_BLOCK * 2 * 2


def test_what_is_not_used_of_a_row_takes_no_memory():
    cache = RaggedCache(20, 4, 4096, 3, 64, dtype=torch.bfloat16)
    process, row = psutil.Process(), cache.lease()
    before = process.memory_info().rss
    for layer in range(20):
        cache.places(row, 0, 16)[layer].fill_(1.0)
    row_bytes = cache.num_bytes // 4
    assert process.memory_info().rss - before < row_bytes // 8  # in large pages: all of it, and more


def test_a_cache_without_layers_still_counts():
    cache = RaggedCache(0, 2, 8, 1, 1)
    row = cache.lease()
    cache.commit(row, [0, 2])
    assert (cache.lengths[row], cache.num_bytes, cache.num_free_rows) == (2, 0, 1)


def test_a_budget_in_bytes_is_as_many_rows_as_fit_and_one_for_none_is_a_sentence() -> None:
    shape = (2, 5, KEY_BLOCK, 3, 4)
    row_bytes = RaggedCache(*shape).num_bytes // 5
    assert RaggedCache.within(None, *shape).num_rows == 5
    for num_rows in (1, 7):
        assert RaggedCache.within(num_rows * row_bytes, *shape).num_rows == num_rows
        assert RaggedCache.within((num_rows + 1) * row_bytes - 1, *shape).num_bytes == num_rows * row_bytes
    with pytest.raises(ConfigError, match=rf"one of {KEY_BLOCK} tokens \(with drafts\) takes {row_bytes} bytes"):
        RaggedCache.within(row_bytes - 1, *shape)


def test_a_budget_above_the_machines_memory_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = (2, 5, KEY_BLOCK, 3, 4)
    row_bytes = RaggedCache(*shape).num_bytes // 5
    monkeypatch.setattr(ragged, "machine_bytes", lambda: 3 * row_bytes)
    assert RaggedCache.within(3 * row_bytes, *shape).num_rows == 3
    with pytest.raises(ConfigError, match=f"more than this machine's memory of {3 * row_bytes} bytes; lower it"):
        RaggedCache.within(3 * row_bytes + 1, *shape)


def test_more_rows_than_the_machine_has_memory_for_are_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    num_layers, _, *sizes = shape = (2, 5, KEY_BLOCK, 3, 4)
    row_bytes = RaggedCache(*shape).num_bytes // 5
    monkeypatch.setattr(ragged, "machine_bytes", lambda: 3 * row_bytes)
    assert RaggedCache.within(None, num_layers, 3, *sizes).num_rows == 3
    with pytest.raises(ConfigError, match=f"4 sequences of {KEY_BLOCK} tokens.*{4 * row_bytes} bytes.*max_num_seqs"):
        RaggedCache.within(None, num_layers, 4, *sizes)
