"""Who holds which cache row."""

from __future__ import annotations

from starspec.errors import NoFreeRow, OurBug


class RowPool:
    """Rows of a cache, each free or leased to one sequence.

    The row given back last is leased first: its memory is already paged in.

    Args:
        num_rows: rows in all, at least 1.
    """

    def __init__(self, num_rows: int) -> None:
        if num_rows < 1:
            raise ValueError(f"a pool needs at least one row, got {num_rows}")
        self.num_rows = num_rows
        self._free = list(range(num_rows - 1, -1, -1))
        self._leased: set[int] = set()

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def leased(self) -> frozenset[int]:
        return frozenset(self._leased)

    def is_leased(self, row: int) -> bool:
        return row in self._leased

    def lease(self) -> int:
        """Take a free row.

        Raises: NoFreeRow if every row is leased.
        """
        if not self._free:
            raise NoFreeRow(f"all {self.num_rows} cache rows are leased")
        row = self._free.pop()
        self._leased.add(row)
        return row

    def free(self, row: int) -> None:
        """Give a row back.

        Raises: OurBug if the row is not leased: two owners would share it from now on.
        """
        if row not in self._leased:
            raise OurBug(f"row {row} is freed but not leased")
        self._leased.remove(row)
        self._free.append(row)

    def check_integrity(self) -> None:
        """Raises: OurBug unless every row is either free or leased, once."""
        if sorted([*self._free, *self._leased]) != list(range(self.num_rows)):
            raise OurBug(f"free {self._free} and leased {sorted(self._leased)} are not the {self.num_rows} rows")


def memory_of(num_rows: int, num_bytes: int) -> str:
    """What a cache takes when every slot of every row is in use, for people."""
    return f"{num_rows} cache rows, at most {num_bytes / 2**20:,.0f} MiB"
