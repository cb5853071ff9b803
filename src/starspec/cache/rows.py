"""Which sequence holds which cache row."""

from __future__ import annotations

from starspec.errors import NoFreeRow, OurBug


class RowPool:
    """Rows of a cache, each free or leased to one sequence.

    Unless the caller asks for a certain row, the row that was freed last is leased first: its memory is already paged
    in.

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

    @property
    def longest_free(self) -> int:
        """The row that has been free for the longest time. Raises: NoFreeRow if every row is leased."""
        self._check_any_free()
        return self._free[0]

    def lease(self, row: int | None = None) -> int:
        """Take a free row: the given one, or the one that was freed last.

        Raises: NoFreeRow if every row is leased; OurBug if the given one is.
        """
        self._check_any_free()
        if row in self._leased:
            raise OurBug(f"row {row} is already leased")
        row = self._free[-1] if row is None else row
        self._free.remove(row)
        self._leased.add(row)
        return row

    def free(self, row: int) -> None:
        """Give a row back.

        Raises: OurBug if the row is not leased; otherwise two sequences could share it from now on.
        """
        if row not in self._leased:
            raise OurBug(f"row {row} is freed but not leased")
        self._leased.remove(row)
        self._free.append(row)

    def _check_any_free(self) -> None:
        if not self._free:
            raise NoFreeRow(f"all {self.num_rows} cache rows are leased")

    def check_integrity(self) -> None:
        """Raises: OurBug unless every row is either free or leased, exactly once."""
        if sorted([*self._free, *self._leased]) != list(range(self.num_rows)):
            raise OurBug(f"free {self._free} and leased {sorted(self._leased)} are not the {self.num_rows} rows")
