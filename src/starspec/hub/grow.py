"""How sessions grow by a layer: one batched forward, one more layer of the tree of each that asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from starspec.cache.prefixes import PREFIX_BLOCK
from starspec.config import MAX_DRAFT_TOKENS
from starspec.errors import OurBug, PeerProtocolError
from starspec.hub.children import Point, guess_children
from starspec.hub.drafter import Growth, in_order_of_rows
from starspec.hub.growing_tree import Survivors
from starspec.hub.prefix_sharing import PrefixSharing
from starspec.hub.sequence import DraftSession
from starspec.models.runner import ModelRunner, Segment
from starspec.wire.messages import Features


class CausalDrafter:
    """Drafts trees with a causal LM.

    A row holds K/V of the first `cache.lengths[row]` committed tokens. When it holds all of them, the last one's
    logits have given the root its children, and K/V of the tree's forwarded nodes lie in the slots behind.
    """

    can_share_prefixes = True

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self._cache = runner.cache
        self._sharing = PrefixSharing(runner.cache)

    @property
    def name(self) -> str:
        return self._runner.info.name

    @property
    def max_len(self) -> int:
        return min(self._runner.info.max_model_len, self._cache.max_len)

    @property
    def vocab_size(self) -> int:
        return self._runner.info.vocab_size

    @property
    def num_free_rows(self) -> int:
        return self._cache.num_free_rows

    @property
    def num_shared_tokens(self) -> int:
        return self._sharing.num_tokens

    def lease(self, session: DraftSession) -> None:
        session.row = self._sharing.lease(session)

    def free(self, session: DraftSession) -> None:
        if session.row is not None:
            self._cache.free(session.row)
            session.row = None
            session.tree.clear()

    def learn(self, session: DraftSession, message: Features) -> None:  # noqa: ARG002
        raise PeerProtocolError("this draft reads no features")

    def can_grow(self, session: DraftSession) -> bool:  # noqa: ARG002
        return True

    def num_missing(self, session: DraftSession) -> int:
        num_uncommitted = self._num_uncommitted(session)
        if num_uncommitted > PREFIX_BLOCK:
            num_uncommitted = min(num_uncommitted, len(session.token_ids) - self._sharing.num_held(session))
        return num_uncommitted or len(session.to_forward) or 1

    def grow(self, layer: Sequence[Growth], is_in_vain: Callable[[], bool] | None = None) -> None:
        for growth in layer:
            self._sharing.catch_up(growth.session)
        layer = in_order_of_rows(layer)
        to_forward = [growth.prepared or growth.session.to_forward for growth in layer]
        segments = [self._segment(growth, nodes) for growth, nodes in zip(layer, to_forward, strict=True)]
        logits = self._runner.forward(segments, is_in_vain=is_in_vain).logits  # [nodes whose children become known, V]
        growing = zip(layer, segments, to_forward, strict=True)
        points = [
            Point(growth.session, node) for growth, segment, nodes in growing if segment.num_logits for node in nodes
        ]
        children = guess_children(points, logits)
        for growth, segment in zip(layer, segments, strict=True):
            if segment.parents is None:  # committed tokens
                self._cache.append(segment.row, segment.num_new)
                self._sharing.note(growth.session)
        for (session, node), known in zip(points, children, strict=True):
            session.tree.expand(node, known, session.opinion)

    def num_preparable(self, session: DraftSession) -> int:
        if session.row is None or not session.tree.is_rooted:
            return 0
        num_used = self._cache.lengths[session.row] + len(session.tree.forwarded)
        return max(0, self._cache.max_len - MAX_DRAFT_TOKENS - num_used)

    def note_request(self, session: DraftSession) -> None:
        if session.is_asked_otherwise:
            self._restart(session)

    def note_commit(self, session: DraftSession, token_ids: Sequence[int], survivors: Survivors) -> None:  # noqa: ARG002
        if session.row is None:
            return
        self._cache.commit(session.row, survivors.path, survivors.kept)
        self._sharing.note(session)
        num_slots = self._cache.lengths[session.row] + len(survivors.kept) + MAX_DRAFT_TOKENS
        if survivors.kept and num_slots > self._cache.max_len:
            self._restart(session)  # what is to be grown might not fit behind what was kept

    def check_integrity(self, sessions: Iterable[DraftSession]) -> None:
        sessions = list(sessions)
        self._cache.check_integrity()
        self._sharing.check_integrity(sessions)
        holders = {session.row: session for session in sessions if session.row is not None}
        if holders.keys() != self._cache.rows.leased:
            raise OurBug(f"rows {sorted(self._cache.rows.leased)} are leased, sessions hold {sorted(holders)}")
        for row, session in holders.items():
            num_uncommitted = self._num_uncommitted(session)
            if num_uncommitted < 0 or (num_uncommitted == 0) != session.tree.is_rooted:
                raise OurBug(f"row {row} misses {num_uncommitted} tokens of a session whose tree is {session.tree}")

    def _num_uncommitted(self, session: DraftSession) -> int:
        """Committed tokens of which no K/V is held."""
        return len(session.token_ids) - (0 if session.row is None else self._cache.lengths[session.row])

    def _segment(self, growth: Growth, nodes: Sequence[int]) -> Segment:
        session, num_tokens = growth.session, growth.num_tokens
        if session.row is None:
            raise OurBug(f"session {session.key} is to grow without a row")
        start, stop = self._cache.lengths[session.row], self._cache.lengths[session.row] + num_tokens
        if start < len(session.token_ids):
            is_last = stop == len(session.token_ids)
            return Segment(session.row, session.token_ids[start:stop], num_logits=int(is_last))
        token_ids, parents = session.tree.segment(nodes)
        num_forwarded = len(session.tree.forwarded)
        return Segment(session.row, token_ids, len(token_ids) - num_forwarded, parents, num_forwarded)

    def _restart(self, session: DraftSession) -> None:
        """Forget the tree; the root's logits are gone, so its last token is to be forwarded anew."""
        session.tree.clear()
        if session.row is not None:
            length = min(self._cache.lengths[session.row], len(session.token_ids) - 1)
            self._cache.truncate(session.row, length)
            self._sharing.note(session)
