"""What every KV cache keeps: which sequence holds which row, and how many positions of each row are committed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor

from starspec.cache.rows import RowPool
from starspec.errors import CacheRangeError, OurBug


class KVCache(ABC):
    """A key-value cache with one row a sequence. Subclasses decide where keys and values lie.

    Between rounds a sequence of L tokens has length L - 1: the next forward computes the keys and values of its last
    token, as token 0 of the segment.

    Args:
        num_rows: B, sequences at once.
        max_len: S, positions of a row: tokens of the longest sequence plus the drafts behind it.
    """

    def __init__(self, num_rows: int, max_len: int) -> None:
        self.lengths = [0] * num_rows  # committed positions of each row
        self.max_len = max_len
        self.rows = RowPool(num_rows)

    @property
    def num_rows(self) -> int:
        return self.rows.num_rows

    @property
    def num_free_rows(self) -> int:
        return self.rows.num_free

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """Bytes when every position of every row has been used."""

    def lease(self, row: int | None = None) -> int:
        """Take a free row, which is empty then: the given one, or any.

        Raises: NoFreeRow if every row is leased; OurBug if the given one is.
        """
        row = self.rows.lease(row)
        self.lengths[row] = 0
        return row

    def free(self, row: int) -> None:
        """Give a row back and forget its content.

        Raises: OurBug if the row is not leased.
        """
        self.rows.free(row)
        self.lengths[row] = 0

    def check_fits(self, row: int, num_new: int) -> None:
        """Raises: CacheRangeError unless `row` is leased and `num_new` more positions fit behind its length."""
        if not self.rows.is_leased(row):
            raise CacheRangeError(f"row {row} is not leased")
        if not 0 <= num_new <= self.max_len - self.lengths[row]:
            length = self.lengths[row]
            raise CacheRangeError(f"{num_new} tokens behind {length} do not fit into a row of {self.max_len} slots")

    def append(self, row: int, num_tokens: int) -> None:
        """Commit the first `num_tokens` tokens of the segment that was just forwarded.

        They are a chain, or a tree's first branch.

        Raises: CacheRangeError if the row does not have these slots.
        Effects: lengths[row].
        """
        self.check_fits(row, num_tokens)
        self.lengths[row] += num_tokens

    @abstractmethod
    def commit(self, row: int, path: Sequence[int]) -> None:
        """Commit the tokens on one path of the segment that was just forwarded, ancestors first.

        Args:
            row: a leased row.
            path: indices into the segment, strictly increasing.
        Raises: CacheRangeError if the path is not increasing, or if an index is outside the row.
        Effects: the slots behind the length, and lengths[row].
        """

    def truncate(self, row: int, length: int) -> None:
        """Forget every position of `row` from `length` on. Idempotent; moves no memory.

        Raises: CacheRangeError if the row is not leased, or unless 0 <= length <= lengths[row]: a rollback never grows
            a row.
        Effects: lengths[row].
        """
        self.check_fits(row, 0)
        if not 0 <= length <= self.lengths[row]:
            raise CacheRangeError(f"cannot truncate row {row} of length {self.lengths[row]} to {length}")
        self.lengths[row] = length

    def check_integrity(self) -> None:
        """Raises: OurBug if a row is lost or held twice, a length is out of range, or a free row has a length."""
        self.rows.check_integrity()
        for row, length in enumerate(self.lengths):
            limit = self.max_len if self.rows.is_leased(row) else 0
            if not 0 <= length <= limit:
                raise OurBug(f"row {row} has length {length}, which is outside 0..{limit}")


@runtime_checkable
class LocalRows(Protocol):
    """A cache whose keys and values are in this process and can be copied."""

    def behind(self, row: int, num_tokens: int) -> Tensor:
        """A view of the keys and values that a forward of `num_tokens` tokens writes: [L, 2, H, num_tokens, D].

        Raises: CacheRangeError if the row does not have these slots.
        Effects: may move the row to where it has room. Any later move invalidates the view.
        """
        ...


def check_increasing(path: Sequence[int]) -> None:
    """Raises: CacheRangeError unless the indices are strictly increasing and none is negative."""
    if any(index <= previous for previous, index in zip((-1, *path), path, strict=False)):
        raise CacheRangeError(f"path {tuple(path)} is not strictly increasing")
