"""What a draft guesses or draws below nodes of its sessions' trees, out of logits."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count, groupby
from typing import Final, NamedTuple

from torch import Tensor

from starspec.hub.growing_tree import Children, Guess
from starspec.hub.sequence import DraftSession
from starspec.sampling.argmax import argmaxes, is_at_hand
from starspec.speculation.budget import Opinion
from starspec.speculation.drawing import draw_children
from starspec.speculation.proposing import propose_token, propose_tokens

ONE_UNRATED: Final = Opinion(1, is_rated=False)
NUM_SPARE: Final = 4  # looked at beyond those wanted: of equal logits the lowest ids are to be taken


class Point(NamedTuple):
    """A node whose children are to be guessed."""

    session: DraftSession
    node: int

    @property
    def depth(self) -> int:
        return len(self.session.tree.path(self.node))


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
        likely = [Children(_of_target(session, each)) for (session, _), each in zip(points, likeliest, strict=True)]
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
    if len(opinions) == 1:
        return opinions.pop()
    return Opinion(max(each.top_k for each in opinions), any(each.is_rated for each in opinions))


def _likeliest(logits: Tensor, opinion: Opinion, token_ids: Tensor | None) -> list[list[Guess]]:
    """The `top_k` largest of each row [B, V], of equals mostly the lowest id first, in one go for all rows."""
    if opinion == ONE_UNRATED:
        best = argmaxes(logits)
        return [[Guess(token_id, 0.0)] for token_id in (best if token_ids is None else token_ids[best].tolist())]
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
    # on accelerators, too, all rows at once: rating is a few launches for all, drawing row by row some dozen for each
    if not session.opinion.is_rated and is_at_hand(logits):
        rows = zip(logits, counts, strict=True)
        return [Children([Guess(propose_token(row, session.law, position, seen), 0.0)]) for row, seen in rows]
    proposed = propose_tokens(logits, session.law, position, counts, num_tokens=session.opinion.top_k)
    return [Children([Guess(*pair) for pair in each]) for each in proposed]
