import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from starspec.cache.features import FeatureTail, from_bytes, to_bytes

NUM_LAYERS = 3


def features_of(start: int, stop: int) -> torch.Tensor:
    """What a sequence has at these positions: each its own number."""
    return torch.arange(start, stop, dtype=torch.bfloat16)[:, None].repeat(1, NUM_LAYERS)


@given(st.integers(0, 8), st.lists(st.tuples(st.integers(0, 40), st.integers(1, 6)), max_size=20), st.data())
def test_a_tail_holds_the_last_neighbours_that_it_was_told_of(max_len, told, data) -> None:
    tail = FeatureTail(max_len)
    known: set[int] = set()  # positions that came since the last hole
    for start, num in told:
        stop = start + num
        if known and not min(known) <= start <= max(known) + 1:
            known = set()
        known |= set(range(start, stop))
        tail.add(start, features_of(start, stop))
        assert tail.stop == max(known) + 1
        assert tail.stop - tail.start >= min(max_len, len(known))
        assert tail.start >= min(known)
        known -= set(range(tail.start))
        first = data.draw(st.integers(tail.start, tail.stop - 1))
        last = data.draw(st.integers(first + 1, tail.stop))
        assert torch.equal(tail.since(first, last), features_of(first, last))


def test_what_is_known_already_is_not_kept_twice() -> None:
    tail = FeatureTail(4)
    tail.add(0, features_of(0, 1000))
    tail.add(1, features_of(1, 1001))
    assert [len(part.untyped_storage()) for part in tail._parts] == [1000 * NUM_LAYERS * 2, NUM_LAYERS * 2]


def test_memory_is_bounded_by_the_window_and_one_part() -> None:
    tail = FeatureTail(16)
    for start in range(0, 1000, 5):
        tail.add(start, features_of(start, start + 5))
        assert tail.stop - tail.start < 16 + 5


@given(st.integers(1, 5), st.integers(1, 7))
def test_features_cross_the_wire_bit_for_bit(num_positions: int, size: int) -> None:
    features = torch.randn(num_positions, size).to(torch.bfloat16)
    assert torch.equal(from_bytes(to_bytes(features), num_positions), features)


@pytest.mark.parametrize(("data", "num_positions"), [(b"", 1), (b"abc", 1), (b"abcdef", 2)])
def test_bytes_that_are_no_features_are_refused(data: bytes, num_positions: int) -> None:
    with pytest.raises(ValueError, match="are not the features"):
        from_bytes(data, num_positions)
