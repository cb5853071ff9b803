import pytest

from starspec.cache.memory import memory_of
from starspec.cache.rows import RowPool
from starspec.errors import NoFreeRow, OurBug


def test_every_row_is_leased_once_and_then_none():
    pool = RowPool(3)
    assert {pool.lease() for _ in range(3)} == {0, 1, 2}
    assert pool.num_free == 0
    with pytest.raises(NoFreeRow):
        pool.lease()


def test_the_row_given_back_last_is_leased_first():
    pool = RowPool(3)
    first, second = pool.lease(), pool.lease()
    pool.free(first)
    pool.free(second)
    assert pool.lease() == second
    assert pool.leased == {second}


def test_a_row_may_be_asked_for_and_the_one_that_is_free_for_longest_is_known():
    pool = RowPool(3)
    for row in (0, 1, 2):
        assert pool.lease(row) == row
    for row in (1, 0, 2):
        pool.free(row)
    assert pool.longest_free == 1
    assert pool.lease(0) == 0
    assert pool.lease(1) == 1
    assert pool.longest_free == 2
    pool.check_integrity()


def test_a_row_that_is_leased_is_not_leased_again():
    pool = RowPool(2)
    row = pool.lease()
    with pytest.raises(OurBug):
        pool.lease(row)
    pool.lease()
    with pytest.raises(NoFreeRow):
        _ = pool.longest_free
    pool.check_integrity()


def test_a_row_that_nobody_holds_cannot_be_freed():
    pool = RowPool(2)
    row = pool.lease()
    pool.free(row)
    with pytest.raises(OurBug):
        pool.free(row)
    pool.check_integrity()


def test_a_lost_row_breaks_the_invariant():
    pool = RowPool(2)
    pool._free.pop()
    with pytest.raises(OurBug):
        pool.check_integrity()


def test_a_pool_without_rows_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        RowPool(0)


def test_what_a_cache_takes_is_told_in_its_rows_and_mib():
    assert memory_of(12, 3 * 2**30) == "12 cache rows, at most 3,072 MiB"
