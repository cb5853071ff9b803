"""A left-aligned ragged key-value cache: why rolling back is free.

Every sequence owns a row, and slot = position. Nothing is padded, so nothing is ever realigned:

    row 0   [ c c c c c c | r n n n . . . . . ]     c  committed: valid, visible
    row 1   [ c c c | r n . . . . . . . . . . ]     r  root of the forward in flight (the last sampled token)
    row 2   [ c c c c c c c c | r . . . . . . ]     n  draft nodes, in the order of the tree
                      length ^                      .  free; whatever lies there is masked

A forward writes behind the length and moves no length. What happens next is one of three:

    append(row, n)      a chain was right: the first n new slots count from now on       nothing moves
    commit(row, path)   a tree was walked: the path's slots move together, then count    |path| slots move
    (nothing)           everything was wrong: the next forward overwrites it             nothing moves

and `truncate(row, length)` forgets from any position on, moving nothing. Where two sequences begin alike,
`take_over(row, source, length)` copies what one row holds into the other.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from starspec.cache.kv_cache import KVCache, check_increasing
from starspec.cache.memory import machine_bytes
from starspec.errors import CacheRangeError, ConfigError

KEY_BLOCK: Final = 64  # slots; a row has a whole number of blocks, so that attention may read whole blocks


class RaggedCache(KVCache):
    """Keys and values of `num_rows` sequences of different lengths, allocated once.

    Args:
        num_layers: L; 0 makes a cache that only counts.
        num_rows: B, sequences held at once.
        max_len: S, slots of a row: tokens of the longest sequence plus the drafts behind it.
        num_kv_heads: H.
        head_dim: D.
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
        """A cache of as many rows as fit into so much memory; of `num_rows` if that is None.

        Raises: ConfigError if not even one row fits, or if it is more than the machine has. Of memory that is not the
            machine's own, as a GPU's, torch says what there is.
        """
        num_row_bytes = 2 * num_layers * num_kv_heads * _num_slots(max_len) * head_dim * dtype.itemsize
        most = machine_bytes() if torch.device(device).type == "cpu" else None
        if num_bytes is None:
            if most is not None and num_rows * num_row_bytes > most:
                raise ConfigError(
                    f"{num_rows} sequences of {max_len} tokens, drafts included, take {num_rows * num_row_bytes} "
                    f"bytes, more than this machine's memory, {most} bytes; lower how many are held at once "
                    "(max_num_seqs of a server, batch sizes or ExSpec's window of a measurement), or max_model_len"
                )
        else:
            if most is not None and num_bytes > most:
                raise ConfigError(
                    f"a KV budget of {num_bytes} bytes is more than this machine's memory, {most} bytes; allow less"
                )
            num_rows = num_bytes // num_row_bytes
            if num_rows < 1:
                raise ConfigError(
                    f"a KV budget of {num_bytes} bytes holds no sequence: one of {max_len} tokens, drafts included, "
                    f"takes {num_row_bytes}; allow more, or lower max_model_len"
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
        """Put new keys and values [H, T, D] of one row into the T slots behind its length.

        Effects: those slots; no length. Trusts the caller to have called `check_fits` once for all layers.
        """
        start = self.lengths[row]
        stop = start + keys.shape[1]
        self.keys[layer][row, :, start:stop] = keys
        self.values[layer][row, :, start:stop] = values

    def places(self, row: int, start: int, stop: int) -> tuple[Tensor, ...]:
        """Views of a row's keys and values in slots `start..stop`, one [stop - start, 2, H, D] a layer.

        Whoever writes into them is trusted as the caller of `write` is.
        """
        return self._by_slot[:, row, start:stop].unbind(0)

    def of_row(self, row: int) -> tuple[Tensor, ...]:
        """Views of all that a row holds, one [2, H, S, D] a layer: keys, then values."""
        return self._storage[:, :, row].unbind(0)

    def scatter(self, layer: int, rows: Tensor, slots: Tensor, keys_values: Tensor) -> None:
        """Put new keys and values of many rows at once: [T, 2, H, D] into slot `slots[t]` of row `rows[t]`.

        Effects: those slots; no length. Trusts the caller as `write` does.
        """
        self._of_layer[layer].index_put_((rows, slots), keys_values)

    def gather(self, layer: int, rows: Tensor, slots: Tensor) -> Tensor:
        """A copy of the keys and values in some slots of some rows, index tensors that broadcast: [..., 2, H, D]."""
        return self._of_layer[layer][rows, slots]

    def windows(self, row: int, num_slots: int, num_copies: int) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Keys and values of a row's first slots, seen `num_copies` times: one [num_copies, H, num_slots, D] a layer.

        Nothing is copied: the stride of the copies is 0.
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
        """Commit the tokens on one path of the segment just forwarded, ancestors first.

            slots behind the length     r  n0 n1 n2 n3        path = (0, 2), kept = (4,)
            after                       r  n1 n3 .  .         lengths[row] += 2; n3 is in the first slot behind it

        Args:
            path: indices into the segment, strictly increasing.
            kept: indices of further tokens that are moved behind the path, in this order, and not committed.
        Raises: CacheRangeError if the path is not increasing or either leaves the row.
        Effects: the slots behind the length, lengths[row].
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
        """Let a row hold the first positions of another.

            source   [ c c c c c c | . . ]       length = 4
            row      [ c c | . . . . . . ]       its two are the same as the source's first two
            after    [ c c c c | . . . . ]       the other two are copied, in all layers

        The source may be free, for nothing is written into a free row; it may then be the row itself, just leased, and
        nothing is copied. That it still holds those positions, and that what both hold is the same, the caller knows.

        Args:
            length: positions that the row holds afterwards.
        Raises: CacheRangeError if the row is not leased or holds more, or if the length is beyond a row's end, or
            beyond what a leased source holds.
        Effects: the slots behind the row's length, lengths[row].
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
        # index_select copies, so a slot may be both read and overwritten
        of_row[:, :, :, start : start + len(slots)] = of_row.index_select(3, index)


def _num_slots(max_len: int) -> int:
    """Of a row: whole blocks."""
    return -(-max_len // KEY_BLOCK) * KEY_BLOCK


def _lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros whose pages the operating system hands out on first touch: what is never used costs nothing.

    Zeros, not garbage: attention reads whole key blocks and multiplies what the mask hides by 0, and 0 * NaN is NaN.
    Small pages: a row has a place in every head of every layer, and with pages of 2 MB, which NumPy asks for, its first
    token would take hundreds of them (0.5 s and 200 MiB for SmolLM2).
    """
    num_bytes = math.prod(shape) * dtype.itemsize
    if device.type != "cpu" or num_bytes == 0:
        return torch.zeros(shape, dtype=dtype, device=device)
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8).view(dtype).view(shape)
