"""The coordinator's copy of the rows of all stages: lengths only. What changes them rides on the next launch."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from starspec.cache.kv_cache import KVCache, check_increasing
from starspec.errors import CacheRangeError, OurBug
from starspec.ids import RowEpoch, RowLease
from starspec.models.runner import Segment
from starspec.wire.messages import RowChange, WindowHead

FIRST: Final = RowEpoch(0)


class Occupant(NamedTuple):
    """A row's occupant, and the row epoch from which its windows count."""

    row: int
    lease: RowLease
    epoch: RowEpoch


@dataclass(slots=True)
class _Row:
    """What the next window of a leased row will say."""

    lease: RowLease
    epoch: RowEpoch = FIRST
    base: int = 0
    path: tuple[int, ...] = ()
    launched: Sequence[int] = ()  # token ids of the newest window
    token_ids: list[int] = field(default_factory=list)  # of the committed positions


class MirroredRows(KVCache):
    """Implements KVCache for a pipe, without keys and values.

    After a launch, a commit is remembered as a path of its window. It is so for windows that have not landed, too: then
    it is a presumption, which `truncate` takes back. Only chains may be presumed, because the path of a tree moves
    slots.

    Args:
        num_rows: of each stage, at least.
        max_len: positions of a row at each stage, at least.
        num_bytes: of the caches of all stages.
    """

    def __init__(self, num_rows: int, max_len: int, num_bytes: int) -> None:
        super().__init__(num_rows, max_len)
        self._num_bytes = num_bytes
        self._rows: dict[int, _Row] = {}
        self._leases = itertools.count(1)
        self._changes: list[RowChange] = []
        self._retracted: list[Occupant] = []

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    @property
    def has_changes(self) -> bool:
        """Whether the stages do not know all leases and frees."""
        return bool(self._changes)

    def lease(self, row: int | None = None) -> int:
        row = super().lease(row)
        self._begin(row)
        return row

    def free(self, row: int) -> None:
        super().free(row)
        here = self._rows.pop(row)
        self._retracted.append(Occupant(row, here.lease, RowEpoch(here.epoch + 1)))
        self._changes.append(RowChange("free", row, here.lease))

    def start_over(self) -> None:
        """The stages have forgotten all rows: those that are leased have new occupants, and are empty."""
        self._changes, self._retracted = [], []
        for row in sorted(self._rows):
            self._begin(row)

    def append(self, row: int, num_tokens: int) -> None:
        self.commit(row, range(num_tokens))

    def commit(self, row: int, path: Sequence[int]) -> None:
        check_increasing(path)
        self.check_fits(row, len(path))
        here = self._rows[row]
        if path and path[-1] >= len(here.launched):
            raise CacheRangeError(f"path {tuple(path)} of a window of {len(here.launched)} tokens")
        if here.path:
            raise OurBug(f"row {row} is committed twice after one launch")
        here.path = tuple(path)
        here.token_ids += [here.launched[index] for index in path]
        self.lengths[row] += len(path)

    def truncate(self, row: int, length: int) -> None:
        super().truncate(row, length)
        here = self._rows[row]
        if length <= here.base:  # what was launched there stands on tokens that are gone, or on another root
            here.base, here.path, here.epoch = length, (), RowEpoch(here.epoch + 1)
            self._retracted.append(Occupant(row, here.lease, here.epoch))
        else:
            here.path = here.path[: length - here.base]
        del here.token_ids[length:]

    def holds(self, row: int, lease: RowLease) -> bool:
        """Whether the row still has this occupant."""
        here = self._rows.get(row)
        return here is not None and here.lease == lease

    def tokens_of(self, row: int) -> list[int]:
        """The tokens whose keys and values are committed, or presumed to be."""
        return self._rows[row].token_ids

    def launch(self, segment: Segment) -> WindowHead:
        """Note that a window is launched. Returns: what the stages are told.

        Raises: CacheRangeError if it does not fit into the row.
        """
        num_tokens = len(segment.token_ids)
        self.check_fits(segment.row, num_tokens)
        here = self._rows[segment.row]
        head = WindowHead(
            segment.row,
            here.lease,
            here.epoch,
            here.base,
            num_tokens,
            segment.num_logits,
            here.path,
            None if segment.parents is None else tuple(segment.parents),
            list(segment.token_ids),
        )
        here.base, here.path, here.launched = self.lengths[segment.row], (), segment.token_ids
        return head

    def _begin(self, row: int) -> None:
        lease = RowLease(next(self._leases))
        self._rows[row], self.lengths[row] = _Row(lease), 0
        self._changes.append(RowChange("lease", row, lease))

    def take_changes(self) -> list[RowChange]:
        """Leases and frees that the stages do not know yet, in order."""
        changes, self._changes = self._changes, []
        return changes

    def take_retracted(self) -> list[Occupant]:
        """Whose earlier windows need not be computed any more."""
        retracted, self._retracted = self._retracted, []
        return retracted
