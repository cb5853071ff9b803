"""The cache rows of a stage: each window says what its row must be, and here it becomes so."""

from __future__ import annotations

from starspec.cache.ragged import RaggedCache
from starspec.errors import OurBug, PeerProtocolError
from starspec.models.runner import Segment
from starspec.wire.messages import Retract, RowChange, WindowHead
from starspec.wire.stage_session import RowSession


class StageRows:
    """The rows of one stage's cache, with what is known about their occupants.

    Args:
        cache: of the stage; nobody else may change it.
    """

    def __init__(self, cache: RaggedCache) -> None:
        self.cache = cache
        self._sessions = [RowSession(row) for row in range(cache.num_rows)]

    def change(self, change: RowChange) -> None:
        """Lease or free a row. Raises: PeerProtocolError if that is not possible."""
        self._session(change.row).change(change)
        if change.kind == "lease":
            self.cache.lease(change.row)
        else:
            self.cache.free(change.row)

    def retract(self, retract: Retract) -> None:
        """Drop windows that are older, if they come. A hint for a row that is not there says nothing."""
        if retract.row < len(self._sessions):
            self._sessions[retract.row].retract(retract)

    def is_stale(self, window: WindowHead) -> bool:
        """Raises: PeerProtocolError as `RowSession.is_stale`."""
        return self._session(window.row).is_stale(window)

    def place(self, window: WindowHead) -> Segment:
        """Bring the row to where the window stands. Returns: the new tokens, all 0 if the window does not state them.

        Raises: PeerProtocolError if the row has not been there; CacheRangeError if it is too short.
        """
        self._session(window.row).move(window)
        length = self.cache.lengths[window.row]
        if window.path:
            self.cache.commit(window.row, window.path)
        elif window.base > length:  # the first tokens of the last forward, a chain
            self.cache.append(window.row, window.base - length)
        else:
            self.cache.truncate(window.row, window.base)
        self.cache.check_fits(window.row, window.num_tokens)
        token_ids = window.token_ids or [0] * window.num_tokens
        return Segment(window.row, token_ids, window.num_logits, window.parents)

    def free_all(self) -> None:
        """A pipe epoch begins or ends."""
        for row in self.cache.rows.leased:
            self.cache.free(row)
        self._sessions = [RowSession(row) for row in range(self.cache.num_rows)]

    def check_integrity(self) -> None:
        """Raises: OurBug if the cache is not what the sessions say."""
        self.cache.check_integrity()
        for each in self._sessions:
            if each.length != self.cache.lengths[each.row]:
                raise OurBug(f"row {each.row} has {self.cache.lengths[each.row]} positions, not {each.length}")

    def _session(self, row: int) -> RowSession:
        if row >= len(self._sessions):
            raise PeerProtocolError(f"row {row} of {len(self._sessions)}")
        return self._sessions[row]
