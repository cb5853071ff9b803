"""What one draft session has read is not read again for another: rows take keys and values over from each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from starspec.cache.prefixes import PREFIX_BLOCK, PrefixIndex, PrefixName
from starspec.cache.ragged import RaggedCache
from starspec.config import PrefixScope
from starspec.errors import OurBug
from starspec.hub.sequence import DraftSession
from starspec.ids import SessionId


class PrefixSharing:
    """Leases rows that begin with what is held of their sessions' tokens already (ADR 19).

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

    def num_held(self, session: DraftSession) -> int:
        """First tokens of a session that need not be read; never all of them, for the last one's logits are wanted."""
        return self._num_blocks(session) * PREFIX_BLOCK

    def lease(self, session: DraftSession) -> int:
        """A row for the session, which holds what is held of its tokens. Raises: NoFreeRow."""
        num_blocks = self._num_blocks(session)
        names = session.prefix_names[:num_blocks]
        row = self._cache.lease(self._row_for(session, names))
        self._take_over(row, names)
        return row

    def catch_up(self, session: DraftSession) -> None:
        """Let the session's row take over what others have read meanwhile of a prompt that is its own too."""
        if session.row is None or len(session.token_ids) - self._cache.lengths[session.row] <= PREFIX_BLOCK:
            return
        num_blocks = self._num_blocks(session)
        if num_blocks * PREFIX_BLOCK > self._cache.lengths[session.row]:
            self._take_over(session.row, session.prefix_names[:num_blocks])

    def note(self, session: DraftSession) -> None:
        """The length of the session's row has changed."""
        if session.row is None:
            return
        num_blocks = self._cache.lengths[session.row] // PREFIX_BLOCK
        if num_blocks != len(self._index.names(session.row)):
            self._index.hold(session.row, session.prefix_names[:num_blocks])

    def check_integrity(self, sessions: Iterable[DraftSession]) -> None:
        """Raises: OurBug unless what is known of each session's row is what it holds."""
        self._index.check_integrity()
        for session in sessions:
            if session.row is None:
                continue
            held = session.prefix_names[: self._cache.lengths[session.row] // PREFIX_BLOCK]
            if self._index.names(session.row) != held:
                raise OurBug(f"row {session.row} of {session.key} is not known to hold its {len(held)} blocks")

    def _num_blocks(self, session: DraftSession) -> int:
        return self._index.num_held(session.prefix_names, session.num_prefix_blocks)

    def _row_for(self, session: DraftSession, names: Sequence[PrefixName]) -> int | None:
        """The free row that ends where the session goes on; else the one that has been free for longest.

        Whichever, if nothing is shared: then what others left is of no use to anybody.
        """
        if not session.can_share:
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


def prefix_salt(scope: PrefixScope, session_id: SessionId) -> bytes | None:
    """Of a target's session: those with the same share what is read; None = nobody does."""
    match scope:
        case "off":
            return None
        case "target":
            return session_id.encode()
        case "hub":
            return b""
