"""How sessions grow by a layer: one batched forward, one more layer of the tree of each that asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import count, groupby
from typing import NamedTuple

from torch import Tensor

from starspec.cache.prefixes import PREFIX_BLOCK
from starspec.config import MAX_DRAFT_TOKENS
from starspec.draft.drafter import Growth
from starspec.draft.growing_tree import Children, Guess
from starspec.draft.prefix_sharing import PrefixSharing
from starspec.draft.session import DraftSession
from starspec.errors import OurBug, PeerProtocolError
from starspec.models.runner import ModelRunner, Segment
from starspec.speculation.budget import DraftBudget, Opinion
from starspec.speculation.drawing import draw_children
from starspec.speculation.proposing import propose_token, propose_tokens
from starspec.wire.messages import Features

NUM_SPARE = 4  # looked at beyond those wanted: of equal logits the lowest ids are to be taken


class Point(NamedTuple):
    """A node whose children are to be guessed."""

    session: DraftSession
    node: int

    @property
    def depth(self) -> int:
        return len(self.session.tree.path(self.node))


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
        to_forward = [growth.prepared or growth.session.to_forward for growth in layer]
        segments = [self._segment(growth, nodes) for growth, nodes in zip(layer, to_forward, strict=True)]
        logits = self._runner.forward(segments, is_in_vain=is_in_vain).logits  # [nodes whose children become known, V]
        growing = zip(layer, segments, to_forward, strict=True)
        points = [
            Point(growth.session, node) for growth, segment, nodes in growing if segment.num_logits for node in nodes
        ]
        children = guess_children(points, logits)
        for segment in segments:
            if segment.parents is None:  # committed tokens
                self._cache.append(segment.row, segment.num_new)
        for growth in layer:
            self._sharing.note(growth.session)
        for (session, node), known in zip(points, children, strict=True):
            session.tree.expand(node, known, session.opinion)

    def num_preparable(self, session: DraftSession) -> int:
        if session.row is None or not session.tree.is_rooted:
            return 0
        num_used = self._cache.lengths[session.row] + len(session.tree.forwarded)
        return max(0, self._cache.max_len - MAX_DRAFT_TOKENS - num_used)

    def ask(self, session: DraftSession, budget: DraftBudget, now: float) -> None:
        session.ask(budget, now)
        if budget.num_draft_tokens and session.tree.is_rooted and session.tree.opinion != session.opinion:
            self._restart(session)

    def reroot(self, session: DraftSession, token_ids: list[int]) -> None:
        survivors = session.reroot(token_ids)
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


def guess_children(points: Sequence[Point], logits: Tensor, token_ids: Tensor | None = None) -> list[Children]:
    """Guess the target's next token after each node with the target's own law (ADR 1), or draw it from the draft's.

    Args:
        points: those of a session together, in order of their depth.
        logits: [B, V], one row a node; or [B, Vd] if the draft knows only some tokens.
        token_ids: [Vd], increasing: those that it knows.
    Returns: B times at most the opinion's `top_k` children.
    """
    if not points:
        return []
    is_plain = [session.is_plain_argmax for session, _ in points]
    likeliest = _likeliest(logits, _widest(points), token_ids) if any(is_plain) else []
    if all(is_plain):
        likely = [Children(_of_target(point.session, each)) for point, each in zip(points, likeliest, strict=True)]
        if all(each.guesses for each in likely):
            return likely
    children: list[Children] = []
    for (session, _), group in groupby(zip(count(), points), lambda pair: (pair[1].session, pair[1].depth)):
        indices, nodes = zip(*((index, point.node) for index, point in group), strict=True)
        plain = [_of_target(session, likeliest[index]) if is_plain[index] else [] for index in indices]
        if all(plain):
            children += map(Children, plain)
            continue
        known = _of_all_tokens(logits[indices[0] : indices[-1] + 1], token_ids, session.target_vocab_size)
        children += _drawn(session, nodes, known) if session.is_drawn else _guessed(session, nodes, known)
    return children


def _widest(points: Sequence[Point]) -> Opinion:
    """One that answers what is asked about every node."""
    opinions = {session.opinion for session, _ in points}
    return Opinion(max(each.top_k for each in opinions), any(each.is_rated for each in opinions))


def _likeliest(logits: Tensor, opinion: Opinion, token_ids: Tensor | None) -> list[list[Guess]]:
    """The `top_k` largest of each row [B, V], of equals mostly the lowest id first, in one go for all rows."""
    if opinion == Opinion(1, is_rated=False):  # max is five times as fast as argmax on a CPU, and finds the same index
        best = logits.max(dim=-1).indices
        return [[Guess(token_id, 0.0)] for token_id in (best if token_ids is None else token_ids[best]).tolist()]
    top = logits.topk(min(opinion.top_k + NUM_SPARE, logits.shape[-1]), dim=-1)
    indices = top.indices if token_ids is None else token_ids[top.indices]
    log_confidences = (top.values.float() - logits.float().logsumexp(dim=-1, keepdim=True)).tolist()
    return [
        [Guess(*pair) for pair in sorted(zip(ids, row, strict=True), key=lambda pair: (-pair[1], pair[0]))]
        for ids, row in zip(indices.tolist(), log_confidences, strict=True)
    ]


def _of_target(session: DraftSession, likeliest: list[Guess]) -> list[Guess]:
    """Those that the target can say: the draft's embedding may be padded further than the target's."""
    vocab_size = session.target_vocab_size
    return [guess for guess in likeliest if guess.token_id < vocab_size][: session.opinion.top_k]


def _of_all_tokens(logits: Tensor, token_ids: Tensor | None, vocab_size: int) -> Tensor:
    """Logits [B, V] of the target's tokens, of a draft that may know only some [B, Vd]: it never says the others."""
    if token_ids is None:
        return logits[:, :vocab_size]
    num_tokens = max(vocab_size, int(token_ids[-1]) + 1)
    every = logits.new_full((len(logits), num_tokens), float("-inf"))
    return every.index_copy_(1, token_ids, logits)[:, :vocab_size]


def _drawn(session: DraftSession, nodes: Sequence[int], logits: Tensor) -> list[Children]:
    children = []
    for node, row in zip(nodes, logits, strict=True):
        draft, log_confidences = draw_children(
            row,
            session.law,
            session.position_after(node),
            session.counts_after(node),
            num_tokens=session.opinion.top_k,
            dice=session.dice_after(node),
        )
        pairs = zip(draft.candidates, log_confidences, strict=True)
        children.append(Children([Guess(*pair) for pair in pairs], draft))
    return children


def _guessed(session: DraftSession, nodes: Sequence[int], logits: Tensor) -> list[Children]:
    """For nodes of one depth, as those of a layer are."""
    position, counts = session.position_after(nodes[0]), [session.counts_after(node) for node in nodes]
    if not session.opinion.is_rated:
        rows = zip(logits, counts, strict=True)
        return [Children([Guess(propose_token(row, session.law, position, seen), 0.0)]) for row, seen in rows]
    proposed = propose_tokens(logits, session.law, position, counts, num_tokens=session.opinion.top_k)
    return [Children([Guess(*pair) for pair in each]) for each in proposed]
