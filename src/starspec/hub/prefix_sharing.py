"""What one draft sequence has read is not read again for another: rows take keys and values over from each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from starspec.cache.prefixes import PREFIX_BLOCK, PrefixIndex, PrefixName
from starspec.cache.ragged import RaggedCache
from starspec.config import PrefixScope
from starspec.errors import OurBug
from starspec.hub.sequence import DraftSequence
from starspec.ids import LinkId


class PrefixSharing:
    """Leases rows that begin with what is held of their sequences' tokens already (ADR 19).

        row 0   [ system prompt | one request | its answer ]     free: its tag is closed
        row 1   [ system prompt | another request ]              leased: whole blocks of the system prompt are copied

    Who goes on where a free row ends has that row, and nothing is copied. For all else the row that has been free for
    longest is taken, so that what was left in the others can still be of use.

    Args:
        cache: of a causal draft, of which keys and values follow from token ids alone.
    """

    def __init__(self, cache: RaggedCache) -> None:
        self._cache = cache
        self._index = PrefixIndex(cache.num_rows)
        self.num_tokens = 0  # so far, that were taken over

    def num_held(self, sequence: DraftSequence) -> int:
        """First tokens of a sequence that need not be read; never all of them, for the last one's logits are wanted."""
        return self._num_blocks(sequence) * PREFIX_BLOCK

    def lease(self, sequence: DraftSequence) -> int:
        """A row for the sequence, which holds what is held of its tokens. Raises: NoFreeRow."""
        num_blocks = self._num_blocks(sequence)
        names = sequence.prefix_names[:num_blocks]
        row = self._cache.lease(self._row_for(sequence, names))
        self._take_over(row, names)
        return row

    def catch_up(self, sequence: DraftSequence) -> None:
        """Let the sequence's row take over what others have read meanwhile of a prompt that is its own too."""
        if sequence.row is None or len(sequence.token_ids) - self._cache.lengths[sequence.row] <= PREFIX_BLOCK:
            return
        num_blocks = self._num_blocks(sequence)
        if num_blocks * PREFIX_BLOCK > self._cache.lengths[sequence.row]:
            self._take_over(sequence.row, sequence.prefix_names[:num_blocks])

    def note(self, sequence: DraftSequence) -> None:
        """The length of the sequence's row has changed."""
        if sequence.row is None:
            return
        num_blocks = self._cache.lengths[sequence.row] // PREFIX_BLOCK
        if num_blocks != len(self._index.names(sequence.row)):
            self._index.hold(sequence.row, sequence.prefix_names[:num_blocks])

    def check_integrity(self, sequences: Iterable[DraftSequence]) -> None:
        """Raises: OurBug unless what is known of each sequence's row is what it holds."""
        self._index.check_integrity()
        for sequence in sequences:
            if sequence.row is None:
                continue
            held = sequence.prefix_names[: self._cache.lengths[sequence.row] // PREFIX_BLOCK]
            if self._index.names(sequence.row) != held:
                raise OurBug(f"row {sequence.row} of {sequence.key} is not known to hold its {len(held)} blocks")

    def _num_blocks(self, sequence: DraftSequence) -> int:
        return self._index.num_held(sequence.prefix_names, sequence.num_prefix_blocks)

    def _row_for(self, sequence: DraftSequence, names: Sequence[PrefixName]) -> int | None:
        """The free row that ends where the sequence goes on; else the one that has been free for longest.

        Whichever, if nothing is shared: then what others left is of no use to anybody.
        """
        if not sequence.can_share:
            return None
        for row in self._index.rows(names[-1]) if names else ():
            if not self._cache.rows.is_leased(row) and len(self._index.names(row)) == len(names):
                return row
        return self._cache.rows.longest_free

    def _take_over(self, row: int, names: Sequence[PrefixName]) -> None:
        """Effects: slots and length of the row, the index."""
        if names:
            sources = self._index.rows(names[-1])
            source = row if row in sources else next(iter(sources))
            before = self._cache.lengths[row]
            self._cache.take_over(row, source, len(names) * PREFIX_BLOCK)
            self.num_tokens += self._cache.lengths[row] - before
        self._index.hold(row, names)


def prefix_salt(scope: PrefixScope, link_id: LinkId) -> bytes | None:
    """Of a target's link: those with the same share what is read; None = nobody does."""
    match scope:
        case "off":
            return None
        case "target":
            return link_id.encode()
        case "hub":
            return b""
