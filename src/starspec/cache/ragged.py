"""The left-aligned ragged KV cache: why a rollback costs nothing. One of the three files to read first.

Every sequence owns one row, and the slot of a token is its position. There is no padding, so nothing is ever realigned:

    row 0   [ c c c c c c | r n n n . . . . . ]     c  committed: valid, visible
    row 1   [ c c c | r n . . . . . . . . . . ]     r  root of the forward in flight (the last sampled token)
    row 2   [ c c c c c c c c | r . . . . . . ]     n  draft nodes, in the order of the tree
                      length ^                      .  free; whatever lies there is masked

A forward writes keys and values behind the length and leaves the length unchanged. Then one of three things happens:

    append(row, n)      the chain was right: the first n new slots become committed      nothing moves
    commit(row, path)   a path of the tree was right: its slots move together            |path| slots move
    (nothing)           everything was wrong: the next forward overwrites the slots      nothing moves

`truncate(row, length)` forgets all positions from `length` on and moves nothing. If two sequences begin with the same
tokens, `take_over(row, source, length)` copies them from one row into another.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from starspec.cache.kv_cache import KVCache, check_increasing
from starspec.cache.memory import check_budget, check_rows, machine_bytes
from starspec.errors import CacheRangeError

KEY_BLOCK: Final = 64  # slots; a row has a whole number of blocks, so that attention may read whole blocks


class RaggedCache(KVCache):
    """Keys and values of `num_rows` sequences of different lengths, allocated once.

    Args:
        num_layers: L; 0 makes a cache that only counts positions.
        num_rows: B, sequences at once.
        max_len: S, slots of a row: tokens of the longest sequence plus the drafts behind it.
        num_kv_heads: H.
        head_dim: D.
        dtype: of keys and values.
        device: where they are.
    """

    def __init__(
        self,
        num_layers: int,
        num_rows: int,
        max_len: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(num_rows, max_len)
        num_slots = _num_slots(max_len)
        shape = (num_layers, 2, num_rows, num_kv_heads, num_slots, head_dim)
        self._storage = _lazy_zeros(shape, dtype, torch.device(device))
        self.keys: tuple[Tensor, ...] = self._storage[:, 0].unbind(0)  # one [B, H, S, D] a layer
        self.values: tuple[Tensor, ...] = self._storage[:, 1].unbind(0)
        self._by_slot = self._storage.permute(0, 2, 4, 1, 3, 5)  # [L, B, S, 2, H, D]
        self._of_layer: tuple[Tensor, ...] = self._by_slot.unbind(0)
        self._num_kv_heads, self._head_dim = num_kv_heads, head_dim

    @classmethod
    def within(
        cls,
        num_bytes: int | None,
        num_layers: int,
        num_rows: int,
        max_len: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> RaggedCache:
        """Make a cache with as many rows as fit into `num_bytes`, or with `num_rows` rows if that is None.

        Raises: ConfigError as `num_rows_within`.
        """
        num_rows = num_rows_within(
            num_bytes, num_layers, num_rows, max_len, num_kv_heads, head_dim, dtype=dtype, device=device
        )
        return cls(num_layers, num_rows, max_len, num_kv_heads, head_dim, dtype=dtype, device=device)

    @property
    def dtype(self) -> torch.dtype:
        return self._storage.dtype

    @property
    def device(self) -> torch.device:
        return self._storage.device

    @property
    def num_bytes(self) -> int:
        """Bytes when every slot of every row has been used."""
        return self._storage.numel() * self._storage.element_size()

    def write(self, layer: int, row: int, keys: Tensor, values: Tensor) -> None:
        """Put the new keys and values [H, T, D] of one row into the T slots behind its length.

        Effects: those slots; no length changes. The caller must have called `check_fits` (once is enough for all
            layers).
        """
        start = self.lengths[row]
        stop = start + keys.shape[1]
        self.keys[layer][row, :, start:stop] = keys
        self.values[layer][row, :, start:stop] = values

    def places(self, row: int, start: int, stop: int) -> tuple[Tensor, ...]:
        """Views of a row's keys and values in slots `start..stop`, one [stop - start, 2, H, D] a layer.

        Whoever writes into them must have called `check_fits`, as for `write`.
        """
        return self._by_slot[:, row, start:stop].unbind(0)

    def of_row(self, row: int) -> tuple[Tensor, ...]:
        """Views of everything that a row holds, one [2, H, S, D] a layer: keys, then values."""
        return self._storage[:, :, row].unbind(0)

    def scatter(self, layer: int, rows: Tensor, slots: Tensor, keys_values: Tensor) -> None:
        """Put new keys and values of many rows at once: [T, 2, H, D].

        Those of token t go into slot `slots[t]` of row `rows[t]`.

        Effects: those slots; no length changes. The caller must have called `check_fits`, as for `write`.
        """
        self._of_layer[layer].index_put_((rows, slots), keys_values)

    def gather(self, layer: int, rows: Tensor, slots: Tensor) -> Tensor:
        """A copy of the keys and values in some slots of some rows: [..., 2, H, D]. The index tensors broadcast."""
        return self._of_layer[layer][rows, slots]

    def windows(self, row: int, num_slots: int, num_copies: int) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Keys and values of a row's first slots, repeated `num_copies` times.

        Returns: one [num_copies, H, num_slots, D] a layer, for keys and for values. Nothing is copied: the repeated
            dimension has stride 0.
        """
        shape = (self._storage.shape[0], 2, num_copies, self._num_kv_heads, num_slots, self._head_dim)
        of_layer, of_kind, of_row, of_head, of_slot, of_element = self._storage.stride()
        strides = (of_layer, of_kind, 0, of_head, of_slot, of_element)
        keys, values = self._storage.as_strided(shape, strides, row * of_row).unbind(1)
        return keys.unbind(0), values.unbind(0)

    def behind(self, row: int, num_tokens: int) -> Tensor:
        """As `LocalRows.behind`. Effects: none."""
        self.check_fits(row, num_tokens)
        start = self.lengths[row]
        return self._storage[:, :, row, :, start : start + num_tokens]

    def commit(self, row: int, path: Sequence[int], kept: Sequence[int] = ()) -> None:
        """Commit the tokens on one path of the segment that was just forwarded, ancestors first.

            slots behind the length     r  n0 n1 n2 n3        path = (0, 2), kept = (4,)
            after                       r  n1 n3 .  .         lengths[row] += 2; n3 is in the first slot behind it

        Args:
            row: a leased row.
            path: indices into the segment, strictly increasing.
            kept: indices of further tokens, which move behind the path in this order and are not committed.
        Raises: CacheRangeError if the path is not increasing, or if an index is outside the row.
        Effects: the slots behind the length, and lengths[row].
        """
        check_increasing(path)
        order = [*path, *kept]
        self.check_fits(row, max(order, default=-1) + 1)
        in_place = 0
        while in_place < len(order) and order[in_place] == in_place:
            in_place += 1
        self._gather(row, self.lengths[row] + in_place, [self.lengths[row] + index for index in order[in_place:]])
        self.lengths[row] += len(path)

    def take_over(self, row: int, source: int, length: int) -> None:
        """Make a row hold the first positions of another row.

            source   [ c c c c c c | . . ]       length = 4
            row      [ c c | . . . . . . ]       its two positions equal the source's first two
            after    [ c c c c | . . . . ]       the other two are copied, in all layers

        A free source is allowed, because nothing is written into free rows. The source may also be the row itself if it
        was just leased; then nothing is copied. The caller knows that the source still holds those positions, and that
        the positions which both rows hold are equal.

        Args:
            row: a leased row.
            source: the row that holds the positions.
            length: positions that `row` holds afterwards.
        Raises: CacheRangeError if the row is not leased or holds more than `length`, or if `length` is beyond the row's
            end or beyond what a leased source holds.
        Effects: the slots behind the row's length, and lengths[row].
        """
        self.check_fits(row, length - self.lengths[row])
        if source != row:
            if self.rows.is_leased(source) and length > self.lengths[source]:
                raise CacheRangeError(f"row {source} holds {self.lengths[source]} positions, not {length}")
            start = self.lengths[row]
            self._storage[:, :, row, :, start:length] = self._storage[:, :, source, :, start:length]
        self.lengths[row] = length

    def _gather(self, row: int, start: int, slots: list[int]) -> None:
        """Move the content of `slots` to `start`, `start + 1`, ... in all layers at once."""
        if not slots:
            return
        index = torch.tensor(slots, device=self._storage.device)
        of_row = self._storage[:, :, row]  # [L, 2, H, S, D]
        # index_select copies, so a slot may be both source and destination
        of_row[:, :, :, start : start + len(slots)] = of_row.index_select(3, index)


def num_rows_within(
    num_bytes: int | None,
    num_layers: int,
    num_rows: int,
    max_len: int,
    num_kv_heads: int,
    head_dim: int,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
) -> int:
    """The rows of a cache that fit into `num_bytes`; `num_rows` if that is None. Needs no memory itself.

    Raises: ConfigError if not even one row fits, or if the cache is larger than the machine's memory. The limit of
        other memory, such as a GPU's, is reported by torch.
    """
    num_row_bytes = row_bytes(num_layers, max_len, num_kv_heads, head_dim, dtype=dtype)
    most = machine_bytes() if torch.device(device).type == "cpu" else None
    if num_bytes is None:
        if most is not None:
            check_rows(num_rows, max_len, num_row_bytes, most)
    else:
        check_budget(num_bytes, max_len, num_row_bytes, most)
        num_rows = num_bytes // num_row_bytes
    return num_rows


def row_bytes(num_layers: int, max_len: int, num_kv_heads: int, head_dim: int, *, dtype: torch.dtype) -> int:
    """Bytes of a cache row when every slot of it has been used."""
    return 2 * num_layers * num_kv_heads * _num_slots(max_len) * head_dim * dtype.itemsize


def _num_slots(max_len: int) -> int:
    """Slots of a row: a whole number of blocks."""
    return -(-max_len // KEY_BLOCK) * KEY_BLOCK


def _lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros whose pages the operating system provides on first touch, so that unused slots cost no memory.

    They must be zeros: attention reads whole key blocks and multiplies masked values by 0, and 0 * NaN is NaN. The
    pages must be small: a row has a part in every head of every layer. With the 2 MB pages that NumPy asks for, its
    first token would touch hundreds of pages (0.5 s and 200 MiB for SmolLM2).
    """
    num_bytes = math.prod(shape) * dtype.itemsize
    if device.type != "cpu" or num_bytes == 0:
        return torch.zeros(shape, dtype=dtype, device=device)
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8).view(dtype).view(shape)
