"""What every key-value cache counts: who holds which row, and how many positions of it are committed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor

from starspec.cache.rows import RowPool
from starspec.errors import CacheRangeError, OurBug


class KVCache(ABC):
    """Rows of a cache, one a sequence. Where keys and values lie is a subclass's own business.

    A sequence of L tokens has length L - 1 between rounds: the keys and values of its last token are computed
    by the next forward, as token 0 of the segment.

    Args:
        num_rows: B, sequences held at once.
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
        """Take a free row, empty: this one, or whichever.

        Raises: NoFreeRow if every row is leased; OurBug if this one is.
        """
        row = self.rows.lease(row)
        self.lengths[row] = 0
        return row

    def free(self, row: int) -> None:
        """Give a row back; its content is forgotten.

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
            raise CacheRangeError(f"{num_new} tokens behind {length} do not fit a row of {self.max_len} slots")

    def append(self, row: int, num_tokens: int) -> None:
        """Commit the first `num_tokens` tokens of the segment just forwarded: a chain, or a tree's first branch.

        Raises: CacheRangeError if the row has no such slots.
        Effects: lengths[row].
        """
        self.check_fits(row, num_tokens)
        self.lengths[row] += num_tokens

    @abstractmethod
    def commit(self, row: int, path: Sequence[int]) -> None:
        """Commit the tokens on one path of the segment just forwarded, ancestors first.

        Args:
            path: indices into the segment, strictly increasing.
        Raises: CacheRangeError if the path is not increasing or leaves the row.
        Effects: what lies behind the length, lengths[row].
        """

    def truncate(self, row: int, length: int) -> None:
        """Forget every position of `row` at or after `length`. Idempotent; moves no memory.

        Raises: CacheRangeError if the row is not leased, length < 0 or length > lengths[row]: a rollback never
            grows a row.
        Effects: lengths[row].
        """
        self.check_fits(row, 0)
        if not 0 <= length <= self.lengths[row]:
            raise CacheRangeError(f"cannot truncate row {row} of length {self.lengths[row]} to {length}")
        self.lengths[row] = length

    def check_integrity(self) -> None:
        """Raises: OurBug if a row is lost or shared, a length is out of range or a free row has one."""
        self.rows.check_integrity()
        for row, length in enumerate(self.lengths):
            limit = self.max_len if self.rows.is_leased(row) else 0
            if not 0 <= length <= limit:
                raise OurBug(f"row {row} has length {length}, which is outside 0..{limit}")


@runtime_checkable
class LocalRows(Protocol):
    """Rows whose keys and values are within reach of this process, to be copied."""

    def behind(self, row: int, num_tokens: int) -> Tensor:
        """A view of the keys and values that a forward of so many tokens writes: [L, 2, H, num_tokens, D].

        Raises: CacheRangeError if the row has no such slots.
        Effects: may move the row to where it has room; any other movement makes the view worthless.
        """
        ...


def check_increasing(path: Sequence[int]) -> None:
    """Raises: CacheRangeError unless every index is larger than the one before, and none is negative."""
    if any(index <= previous for previous, index in zip((-1, *path), path, strict=False)):
        raise CacheRangeError(f"path {tuple(path)} is not strictly increasing")
