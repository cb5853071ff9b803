"""What a hub asks of whatever drafts: a causal LM, an EAGLE head, prompt lookup."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from starspec.hub.growing_tree import Survivors
from starspec.hub.sequence import DraftSession
from starspec.wire.messages import Features


class Growth(NamedTuple):
    """A session's part of a layer: the first `num_tokens` of those that it misses, or nodes that it may soon miss."""

    session: DraftSession
    num_tokens: int
    prepared: Sequence[int] = ()  # these nodes; no proposal is owed


def in_order_of_rows(layer: Sequence[Growth]) -> list[Growth]:
    """The growths in the order of their sessions' cache rows: what lies side by side in both is read together."""
    return sorted(layer, key=lambda growth: -1 if growth.session.row is None else growth.session.row)


class Drafter(Protocol):
    """What turns sequences into draft tokens. Sessions lease its rows, where it keeps what it knows of them."""

    @property
    def name(self) -> str: ...

    @property
    def max_len(self) -> int:
        """Tokens of the longest sequence, drafts included."""
        ...

    @property
    def vocab_size(self) -> int:
        """Token ids below this can be read."""
        ...

    @property
    def num_free_rows(self) -> int: ...

    @property
    def can_share_prefixes(self) -> bool:
        """Whether what a row holds follows from token ids alone, so that another session may begin with it.

        If not, sessions have no `prefix_names`.
        """
        ...

    @property
    def num_shared_tokens(self) -> int:
        """Tokens so far that were not read, because a row held them already."""
        ...

    def lease(self, session: DraftSession) -> None:
        """Give the session a row, which may hold first tokens of it. Raises: NoFreeRow. Effects: `session.row`."""
        ...

    def free(self, session: DraftSession) -> None:
        """Take the session's row away, if it has one. Effects: `session.row`, and what is known by it; tokens stay."""
        ...

    def learn(self, session: DraftSession, message: Features) -> None:
        """Take in what the target thought. Raises: PeerProtocolError, changing nothing, if this is of no use."""
        ...

    def can_grow(self, session: DraftSession) -> bool:
        """Whether all is here that the next layer is made of; until then the session waits for its target."""
        ...

    def num_missing(self, session: DraftSession) -> int:
        """Tokens that must be read before the next layer of the tree is known, at least 1."""
        ...

    def grow(self, layer: Sequence[Growth], is_in_vain: Callable[[], bool] | None = None) -> None:
        """Read tokens of several sessions at once; the tree of each that then misses none grows by a layer.

        Args:
            layer: sessions that hold rows, each once; 1 <= num_tokens <= num_missing, and all of them if they are
                nodes of the tree.
            is_in_vain: whether, by now, nothing of the layer is of use any more; for nodes that are prepared.
        Raises: ForwardGivenUp once it is in vain.
        Effects: the sessions' trees and rows; none of them if it raises.
        """
        ...

    def num_preparable(self, session: DraftSession) -> int:
        """Nodes that may be forwarded now for the proposal after the one in verification; 0 if that is never of use."""
        ...

    def note_request(self, session: DraftSession) -> None:
        """The session is owed another proposal now, or none. Effects: row and tree, if they are of no use for it."""
        ...

    def note_commit(self, session: DraftSession, token_ids: Sequence[int], survivors: Survivors) -> None:
        """The session has committed the tokens of a verdict; these are its last ones.

        Args:
            survivors: what of the tree's K/V is still true.
        Effects: the row keeps that, or less; if less, the tree is cleared, too.
        """
        ...

    def check_integrity(self, sessions: Iterable[DraftSession]) -> None:
        """Raises: OurBug unless exactly these sessions' rows are leased, and fit them."""
        ...
