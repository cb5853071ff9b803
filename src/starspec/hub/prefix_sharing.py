"""Each prefix is prefilled once: other cache rows copy its keys and values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from starspec.cache.prefixes import PREFIX_BLOCK, PrefixIndex, PrefixName
from starspec.cache.ragged import RaggedCache
from starspec.config import PrefixScope
from starspec.errors import OurBug
from starspec.hub.sequence import DraftSequence
from starspec.ids import LinkId
from starspec.policy.draft_batch import free_row


class PrefixSharing:
    """Leases rows that begin with the K/V of a prefix that some row holds already (ADR 19).

        row 0   [ system prompt | one request | its answer ]     free: its tag is closed
        row 1   [ system prompt | another request ]              leased: whole blocks of the system prompt are copied

    A sequence that continues where a free row ends gets that row, and nothing is copied. Otherwise the row that has
    been free for longest is taken, so that the content of the others can still be of use.

    Args:
        cache: of a causal LM, whose keys and values depend on token ids alone.
    """

    def __init__(self, cache: RaggedCache) -> None:
        self._cache = cache
        self._index = PrefixIndex(cache.num_rows)
        self.num_tokens = 0  # tokens taken over so far

    def num_held(self, sequence: DraftSequence) -> int:
        """First tokens of a sequence that need no prefill; never all of them, as the last one's logits are wanted."""
        return self._num_blocks(sequence) * PREFIX_BLOCK

    def lease(self, sequence: DraftSequence) -> int:
        """A row for the sequence, with the prefix that some row holds already. Raises: NoFreeRow."""
        num_blocks = self._num_blocks(sequence)
        names = sequence.committed.prefix_names[:num_blocks]
        row = self._cache.lease(self._row_for(sequence, names))
        self._take_over(row, names)
        return row

    def catch_up(self, sequence: DraftSequence) -> None:
        """Let the sequence's row take over blocks of its prompt that others have prefilled meanwhile."""
        if sequence.row is None or len(sequence.token_ids) - self._cache.lengths[sequence.row] <= PREFIX_BLOCK:
            return
        num_blocks = self._num_blocks(sequence)
        if num_blocks * PREFIX_BLOCK > self._cache.lengths[sequence.row]:
            self._take_over(sequence.row, sequence.committed.prefix_names[:num_blocks])

    def note(self, sequence: DraftSequence) -> None:
        """The length of the sequence's row has changed."""
        if sequence.row is None:
            return
        num_blocks = self._cache.lengths[sequence.row] // PREFIX_BLOCK
        if num_blocks != len(self._index.names(sequence.row)):
            self._index.hold(sequence.row, sequence.committed.prefix_names[:num_blocks])

    def check_integrity(self, sequences: Iterable[DraftSequence]) -> None:
        """Raises: OurBug unless the index has exactly the blocks that each sequence's row holds."""
        self._index.check_integrity()
        for sequence in sequences:
            if sequence.row is None:
                continue
            held = sequence.committed.prefix_names[: self._cache.lengths[sequence.row] // PREFIX_BLOCK]
            if self._index.names(sequence.row) != held:
                raise OurBug(f"row {sequence.row} of {sequence.key} is not known to hold its {len(held)} blocks")

    def _num_blocks(self, sequence: DraftSequence) -> int:
        return self._index.num_held(sequence.committed.prefix_names, sequence.committed.num_prefix_blocks)

    def _row_for(self, sequence: DraftSequence, names: Sequence[PrefixName]) -> int | None:
        """The row that `policy/draft_batch.py` chooses. Raises: NoFreeRow.

        None if nothing is shared: then any row will do, as the content of free rows is of no use.
        """
        if not sequence.can_share:
            return None
        rows, holders = self._cache.rows, self._index.rows(names[-1]) if names else ()
        num_held = {row: len(self._index.names(row)) for row in holders if not rows.is_leased(row)}
        return free_row(num_held, len(names), rows.longest_free)

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
    """The salt of a link's prefix names: links with the same salt share prefixes; None = no sharing."""
    match scope:
        case "off":
            return None
        case "target":
            return link_id.encode()
        case "hub":
            return b""
