"""The left-padded key-value cache of EqSpec and ExSpec: why a batch that accepts unevenly costs copies.

The sequences of a batch lie in one rectangle, their last tokens in the same column. A forward writes its T new tokens
into the columns behind; then each sequence keeps what it accepted, and the right edge is ragged:

    row 0   [ p p c c c c | a a a x ]        p  padding, masked           a  accepted      starts = 2, 0, 3
    row 1   [ c c c c c c | a x x x ]        c  committed before          x  rejected      stops  = 9, 7, 8
    row 2   [ p p p c c c | a a x x ]

The next forward needs one right edge again. Unpad, append, repad (Batch Speculative Decoding Done Right, section 3.1,
algorithm 2): every row is copied into another rectangle, as wide as the longest sequence is now, and is padded anew:

    row 0   [ c c c c c c c | . . . ]        a row of n tokens begins at column width - n, where its position is 0
    row 1   [ c c c c c c c | . . . ]
    row 2   [ p p c c c c c | . . . ]

Nothing is copied if all rows accepted equally many tokens; and nothing has to be padded if the sequences are of one
length, which is what ExSpec looks for (section 3.3): they are concatenated.
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

# Of a new rectangle, beyond the forward that it is made for: rows that accept evenly grow in place.
SPARE_COLUMNS: Final = 64


class Movement(Enum):
    """What it took to bring the sequences of a forward together."""

    NOTHING = auto()  # they, and no others, lay in one rectangle, at one right edge
    COPY = auto()  # of one length, and concatenated; or at one edge of a rectangle that others left, or that was full
    REALIGNMENT = auto()  # unpadded and padded anew


@dataclass(slots=True, eq=False)
class Rectangle:
    """Keys and values of some sequences, in columns."""

    keys_values: Tensor  # [L, 2, B, H, C, D]
    rows: list[int]  # cache row of each of the B
    starts: list[int]  # first column of each
    stops: list[int] = field(default_factory=list)  # the column behind the last committed one of each

    @property
    def width(self) -> int:
        """The right edge; columns from here on are free."""
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
    """Keys and values of sequences that lie in left-padded rectangles, each in the one of its last forward.

    Args:
        like: a cache of the same model: layers, heads, dtype, device, rows, longest sequence.
    """

    def __init__(self, like: RaggedCache) -> None:
        super().__init__(like.num_rows, like.max_len)
        self._shape = (len(like.keys), 2, like.keys[0].shape[1], like.keys[0].shape[3])  # L, 2, H, D
        self._dtype, self._device = like.dtype, like.device
        self._homes: dict[int, Rectangle] = {}  # row -> where it lies; a row that was never forwarded lies nowhere

    @property
    def num_bytes(self) -> int:
        """Bytes at most, of all rows at their longest.

        While sequences are brought together, there are the rectangles that they come from, of which others may have
        left nearly half, and the one that they get.
        """
        num_layers, _, num_heads, head_dim = self._shape
        num_columns = self.max_len + MAX_FORWARDED + SPARE_COLUMNS
        return (2 + 1) * 2 * num_layers * self.num_rows * num_heads * num_columns * head_dim * self._dtype.itemsize

    @property
    def num_held_bytes(self) -> int:
        """Bytes of all rectangles now."""
        return sum(each.num_bytes for each in self._rectangles())

    def free(self, row: int) -> None:
        """As `KVCache.free`. The row's columns stay where they are until others are brought together."""
        super().free(row)
        self._homes.pop(row, None)

    def gather(self, rows: Sequence[int], num_new: int) -> tuple[Rectangle, Movement]:
        """Bring sequences together at one right edge, with room for `num_new` columns behind it.

        Args:
            rows: leased, each once; the order of the rectangle.
        Returns: their rectangle, and what it took.
        Effects: may copy their keys and values into a new rectangle. Whoever is in a rectangle that half of its
            sequences or more have left gets a copy of its own, so that none keeps the memory of others alive for long.
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
        """As `LocalRows.behind`. Effects: the row lies in a rectangle of its own, as after a forward of it alone."""
        self.check_fits(row, num_tokens)
        rectangle, _ = self.gather([row], num_tokens)
        return rectangle.keys_values[:, :, 0, :, rectangle.width : rectangle.width + num_tokens]

    def append(self, row: int, num_tokens: int) -> None:
        """As `KVCache.append`."""
        self.commit(row, range(num_tokens))

    def commit(self, row: int, path: Sequence[int]) -> None:
        """As `KVCache.commit`: nothing moves if the path is a chain's, else its columns move together."""
        check_increasing(path)
        self.check_fits(row, max(path, default=-1) + 1)
        if not path:
            return
        home = self._homes.get(row)
        if home is None:
            raise CacheRangeError(f"row {row} was in no forward, so there is nothing to commit")
        index = home.rows.index(row)
        start = home.stops[index]
        if start + path[-1] >= home.num_columns:
            raise CacheRangeError(f"row {row} was forwarded without token {path[-1]} of {tuple(path)}")
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
        """As `KVCache.check_integrity`; also if a row's columns are not as many as it has committed."""
        super().check_integrity()
        for row, length in enumerate(self.lengths):
            home = self._homes.get(row)
            if home is None:
                is_right = length == 0
            else:
                index = home.rows.index(row)
                is_right = self.rows.is_leased(row) and home.stops[index] - home.starts[index] == length
            if not is_right:
                raise OurBug(f"row {row} of length {length} does not lie in as many columns")

    def _rectangles(self) -> list[Rectangle]:
        return [*{id(each): each for each in self._homes.values()}.values()]

    def _home_at_one_edge(self, rows: Sequence[int]) -> Rectangle | None:
        """The rectangle in which all of these sequences lie, at one right edge, if there is one."""
        home = self._homes.get(rows[0])
        if home is None or any(self._homes.get(row) is not home for row in rows):
            return None
        stops = {home.stops[home.rows.index(row)] for row in rows}
        return home if len(stops) == 1 else None

    def _make(self, rows: Sequence[int], num_columns: int, width: int) -> Rectangle:
        """Copy sequences into a rectangle of their own, right-aligned at `width`."""
        num_layers, _, num_heads, head_dim = self._shape
        shape = (num_layers, 2, len(rows), num_heads, num_columns, head_dim)
        starts = [width - self.lengths[row] for row in rows]
        with torch.inference_mode(mode=False):  # forwards make rectangles, and commits change them outside of forwards
            keys_values = torch.empty(shape, dtype=self._dtype, device=self._device)
        made = Rectangle(keys_values, list(rows), starts, [width] * len(rows))
        for index, (row, start) in enumerate(zip(rows, starts, strict=True)):
            # zeros, not garbage: attention multiplies what the mask hides by 0, and 0 * NaN is NaN
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
