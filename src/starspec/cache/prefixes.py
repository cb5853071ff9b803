"""Which cache rows hold which prefixes, so that the KV cache of one sequence can be reused for another.

Prefixes have a name for each whole block. A name stands for all tokens up to the end of its block. So a row that holds
a prefix also holds all shorter ones, and bisection finds the longest prefix of a sequence that any row holds:

    tokens      a a a a | b b b b | c c          blocks of four
    names             A        AB                row 0 holds A, AB, ABD; row 1 holds A: the longest is AB, of row 0
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from hashlib import blake2b
from typing import Final, NewType

from starspec.errors import OurBug

PREFIX_BLOCK: Final = 16  # tokens; the rest behind the whole blocks is prefilled in the time of one token
NAME_SIZE: Final = 16  # bytes; two sequences that an attacker gives one name would share keys and values

PrefixName = NewType("PrefixName", bytes)


class PrefixNames:
    """Names of one sequence's prefixes: equal for equal tokens and salt, and for nothing else.

    Args:
        salt: identifies the group that shares prefixes; None = this sequence shares with nobody and has no names.
    """

    def __init__(self, salt: bytes | None) -> None:
        key = b"" if salt is None else blake2b(salt).digest()
        self._hash = blake2b(digest_size=NAME_SIZE, key=key)
        self._is_shared = salt is not None
        self._names: list[PrefixName] = []

    def of(self, token_ids: Sequence[int]) -> Sequence[PrefixName]:
        """Names of all whole blocks, shortest prefix first.

        Args:
            token_ids: the tokens of the previous call, possibly with more behind them.
        """
        start = len(self._names) * PREFIX_BLOCK
        if self._is_shared and len(token_ids) - start >= PREFIX_BLOCK:
            num_blocks = len(token_ids) // PREFIX_BLOCK
            numbers = array("I", token_ids[start : num_blocks * PREFIX_BLOCK])
            blocks, size = memoryview(numbers.tobytes()), PREFIX_BLOCK * numbers.itemsize
            for first in range(0, len(blocks), size):
                self._hash.update(blocks[first : first + size])
                self._names.append(PrefixName(self._hash.digest()))
        return self._names


class PrefixIndex:
    """Which prefixes each row holds, by name. A freed row keeps its content until it is leased again.

    Args:
        num_rows: rows of the cache.
    """

    def __init__(self, num_rows: int) -> None:
        self._names: list[list[PrefixName]] = [[] for _ in range(num_rows)]
        # name -> the rows that hold it, in the order in which they began to
        self._rows: dict[PrefixName, dict[int, None]] = {}

    def names(self, row: int) -> Sequence[PrefixName]:
        """The names of all prefixes that a row holds, shortest first."""
        return self._names[row]

    def rows(self, name: PrefixName) -> Collection[int]:
        """The rows that hold a prefix."""
        return self._rows.get(name, {}).keys()

    def num_held(self, names: Sequence[PrefixName], limit: int) -> int:
        """How many of a sequence's first `limit` blocks some row holds.

        Takes O(log limit) look-ups, however many rows there are.
        """
        low, high = 0, limit
        while low < high:
            middle = (low + high + 1) // 2
            if names[middle - 1] in self._rows:
                low = middle
            else:
                high = middle - 1
        return low

    def hold(self, row: int, names: Sequence[PrefixName]) -> None:
        """Record that the row now holds exactly these prefixes, shortest first."""
        held = self._names[row]
        num_same = min(len(held), len(names))
        while num_same and held[num_same - 1] != names[num_same - 1]:
            num_same -= 1
        for name in held[num_same:]:
            del self._rows[name][row]
            if not self._rows[name]:
                del self._rows[name]
        for name in names[num_same:]:
            self._rows.setdefault(name, {})[row] = None
        held[num_same:] = names[num_same:]

    def check_integrity(self) -> None:
        """Raises: OurBug unless both directions of the index agree."""
        by_row = {(name, row) for row, names in enumerate(self._names) for name in names}
        by_name = {(name, row) for name, rows in self._rows.items() for row in rows}
        if by_row != by_name or not all(self._rows.values()):
            raise OurBug(f"the prefix index is inconsistent: {len(by_row)} entries by row, {len(by_name)} by name")
