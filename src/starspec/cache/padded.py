"""The left-padded key-value cache of EqSpec and ExSpec: why a batch with uneven acceptance costs copies.

The sequences of a batch lie in one rectangle, with their last tokens in the same column. A forward writes its T new
tokens into the columns behind. Each sequence then keeps what it accepted, so the right edge becomes ragged:

    row 0   [ p p c c c c | a a a x ]        p  padding, masked           a  accepted      starts = 2, 0, 3
    row 1   [ c c c c c c | a x x x ]        c  committed before          x  rejected      stops  = 9, 7, 8
    row 2   [ p p p c c c | a a x x ]

The next forward needs one right edge again. Unpad, append, repad (Batch Speculative Decoding Done Right, section 3.1,
algorithm 2): every row is copied into a new rectangle, as wide as the longest sequence now is, with new padding:

    row 0   [ c c c c c c c | . . . ]        a row of n tokens begins at column width - n, where its position is 0
    row 1   [ c c c c c c c | . . . ]
    row 2   [ p p c c c c c | . . . ]

Nothing is copied if all rows accepted the same number of tokens. Nothing needs padding if the sequences have the same
length; ExSpec looks for such sequences (section 3.3) and concatenates them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

import torch
from torch import Tensor

from starspec.cache.kv_cache import KVCache, check_increasing
from starspec.cache.ragged import RaggedCache
from starspec.errors import CacheRangeError, OurBug
from starspec.speculation.budget import MAX_FORWARDED

# Free columns of a new rectangle beyond the forward that it is made for: rows that accept evenly grow in place.
SPARE_COLUMNS: Final = 64


class Movement(Enum):
    """What it took to bring the sequences of a forward together."""

    NOTHING = auto()  # exactly these sequences were in one rectangle already, at one right edge
    # concatenated, as they have one length; or copied because others had left the rectangle or it was full
    COPY = auto()
    REALIGNMENT = auto()  # unpadded and padded again


@dataclass(slots=True, eq=False)
class Rectangle:
    """Keys and values of some sequences, in aligned columns."""

    keys_values: Tensor  # [L, 2, B, H, C, D]
    rows: list[int]  # the cache row of each of the B sequences
    starts: list[int]  # the first column of each sequence
    stops: list[int] = field(default_factory=list)  # the column behind the last committed one of each sequence

    @property
    def width(self) -> int:
        """The right edge; all columns from here on are free."""
        return max(self.stops)

    def content(self, index: int) -> Tensor:
        """A view of one sequence's committed keys and values: [L, 2, H, len, D]."""
        return self.keys_values[:, :, index, :, self.starts[index] : self.stops[index]]

    @property
    def num_columns(self) -> int:
        return self.keys_values.shape[4]

    @property
    def num_free_columns(self) -> int:
        return self.num_columns - self.width

    @property
    def num_bytes(self) -> int:
        return self.keys_values.numel() * self.keys_values.element_size()


class PaddedCache(KVCache):
    """A KV cache of left-padded rectangles. Each sequence lies in the rectangle of its last forward.

    Args:
        like: a cache of the same model, which gives layers, heads, dtype, device, rows and the longest sequence.
    """

    def __init__(self, like: RaggedCache) -> None:
        super().__init__(like.num_rows, like.max_len)
        self._shape = (len(like.keys), 2, like.keys[0].shape[1], like.keys[0].shape[3])  # L, 2, H, D
        self._dtype, self._device = like.dtype, like.device
        self._homes: dict[int, Rectangle] = {}  # row -> its rectangle; a row that was never forwarded has none

    @property
    def num_bytes(self) -> int:
        """Bytes at most, with every row at its longest.

        While sequences are brought together, both their old rectangles and the new one exist, and other sequences may
        have left nearly half of the old ones.
        """
        num_layers, _, num_heads, head_dim = self._shape
        num_columns = self.max_len + MAX_FORWARDED + SPARE_COLUMNS
        return (2 + 1) * 2 * num_layers * self.num_rows * num_heads * num_columns * head_dim * self._dtype.itemsize

    @property
    def num_held_bytes(self) -> int:
        """Bytes of all rectangles that exist now."""
        return sum(each.num_bytes for each in self._rectangles())

    def free(self, row: int) -> None:
        """As `KVCache.free`. The row's columns stay where they are until sequences are brought together again."""
        super().free(row)
        self._homes.pop(row, None)

    def gather(self, rows: Sequence[int], num_new: int) -> tuple[Rectangle, Movement]:
        """Bring sequences together at one right edge, with room for `num_new` columns behind it.

        Args:
            rows: leased rows without duplicates, in the order of the rectangle.
            num_new: free columns that are needed behind the edge.
        Returns: the rectangle of the sequences, and what it took.
        Effects: may copy their keys and values into a new rectangle. If half of a rectangle's sequences or more have
            left it, the others get copies of their own, so that they do not keep its memory alive.
        """
        home = self._home_at_one_edge(rows)
        if home is not None and home.rows == list(rows) and home.num_free_columns >= num_new:
            gathered, movement = home, Movement.NOTHING
        else:
            lengths = [self.lengths[row] for row in rows]
            gathered = self._make(rows, max(lengths) + num_new + SPARE_COLUMNS, max(lengths))
            self._homes.update(dict.fromkeys(rows, gathered))
            is_even = home is not None or len(set(lengths)) == 1
            movement = Movement.COPY if is_even else Movement.REALIGNMENT
        for each in self._rectangles():
            self._move_out_of_half_empty(each)
        return gathered, movement

    def behind(self, row: int, num_tokens: int) -> Tensor:
        """As `LocalRows.behind`. Effects: moves the row into a rectangle of its own, as a forward of it alone does."""
        self.check_fits(row, num_tokens)
        rectangle, _ = self.gather([row], num_tokens)
        return rectangle.keys_values[:, :, 0, :, rectangle.width : rectangle.width + num_tokens]

    def append(self, row: int, num_tokens: int) -> None:
        """As `KVCache.append`."""
        self.commit(row, range(num_tokens))

    def commit(self, row: int, path: Sequence[int]) -> None:
        """As `KVCache.commit`. Nothing moves if the path is a chain; otherwise its columns move together."""
        check_increasing(path)
        self.check_fits(row, max(path, default=-1) + 1)
        if not path:
            return
        home = self._homes.get(row)
        if home is None:
            raise CacheRangeError(f"row {row} has not been forwarded, so there is nothing to commit")
        index = home.rows.index(row)
        start = home.stops[index]
        if start + path[-1] >= home.num_columns:
            raise CacheRangeError(f"the last forward of row {row} had no token {path[-1]} of path {tuple(path)}")
        if path[-1] != len(path) - 1:
            columns = torch.tensor([start + token for token in path], device=self._device)
            of_row = home.keys_values[:, :, index]  # [L, 2, H, C, D]
            of_row[:, :, :, start : start + len(path)] = of_row.index_select(3, columns)
        home.stops[index] += len(path)
        self.lengths[row] += len(path)

    def truncate(self, row: int, length: int) -> None:
        """As `KVCache.truncate`."""
        super().truncate(row, length)
        home = self._homes.get(row)
        if home is not None:
            index = home.rows.index(row)
            home.stops[index] = home.starts[index] + length

    def check_integrity(self) -> None:
        """As `KVCache.check_integrity`. Raises: also if a row's number of columns is not its length."""
        super().check_integrity()
        for row, length in enumerate(self.lengths):
            home = self._homes.get(row)
            if home is None:
                is_right = length == 0
            else:
                index = home.rows.index(row)
                is_right = self.rows.is_leased(row) and home.stops[index] - home.starts[index] == length
            if not is_right:
                raise OurBug(f"row {row} has length {length} but another number of columns")

    def _rectangles(self) -> list[Rectangle]:
        return [*{id(each): each for each in self._homes.values()}.values()]

    def _home_at_one_edge(self, rows: Sequence[int]) -> Rectangle | None:
        """The rectangle in which all these sequences end at the same column, or None."""
        home = self._homes.get(rows[0])
        if home is None or any(self._homes.get(row) is not home for row in rows):
            return None
        stops = {home.stops[home.rows.index(row)] for row in rows}
        return home if len(stops) == 1 else None

    def _make(self, rows: Sequence[int], num_columns: int, width: int) -> Rectangle:
        """Copy sequences into a new rectangle, right-aligned at `width`."""
        num_layers, _, num_heads, head_dim = self._shape
        shape = (num_layers, 2, len(rows), num_heads, num_columns, head_dim)
        starts = [width - self.lengths[row] for row in rows]
        # a forward creates rectangles, and commits change them outside of forwards
        with torch.inference_mode(mode=False):
            keys_values = torch.empty(shape, dtype=self._dtype, device=self._device)
        made = Rectangle(keys_values, list(rows), starts, [width] * len(rows))
        for index, (row, start) in enumerate(zip(rows, starts, strict=True)):
            # zeros, because attention multiplies masked values by 0, and 0 * NaN is NaN
            made.keys_values[:, :, index, :, :start] = 0
            old = self._homes.get(row)
            if old is not None:
                made.content(index).copy_(old.content(old.rows.index(row)))
        return made

    def _move_out_of_half_empty(self, rectangle: Rectangle) -> None:
        staying = [row for row in rectangle.rows if self._homes.get(row) is rectangle]
        if 2 * len(staying) <= len(rectangle.rows):
            for row in staying:
                length = self.lengths[row]
                self._homes[row] = self._make([row], length, length)
