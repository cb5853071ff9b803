"""Drafts that are wrong on purpose. A lossless target must give the same tokens."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from starspec.engine.drafts import NoDrafts
from starspec.engine.sequence import TargetSequence
from starspec.speculation.tree import ROOT, DraftTree

TrueTokens = Callable[[TargetSequence], Sequence[int]]
"""The tokens that the target will emit next; may be empty."""


def knows_nothing(_: TargetSequence) -> Sequence[int]:
    """No token: the drafter proposes random tokens only."""
    return ()


class RandomDrafts(NoDrafts):
    """Proposes chains of random tokens. With `true_tokens`, a random number of true tokens comes first.

    So every accepted length occurs, at random, in every sequence of a batch.
    """

    drafts_forced = True
    is_connected = True

    def __init__(
        self, vocab_size: int, num_draft_tokens: int, seed: int, true_tokens: TrueTokens = knows_nothing
    ) -> None:
        self._vocab_size = vocab_size
        self._num_draft_tokens = num_draft_tokens
        self._random = random.Random(seed)  # noqa: S311 (not for secrets)
        self._true_tokens = true_tokens

    def collect(self, batch: Sequence[TargetSequence]) -> list[DraftTree]:
        return [self._propose(sequence) for sequence in batch]

    def _propose(self, sequence: TargetSequence) -> DraftTree:
        num_tokens = min(self._num_draft_tokens, sequence.num_unplanned - 1)
        true_ids = list(self._true_tokens(sequence))[len(sequence.ahead) :][: self._random.randint(0, num_tokens)]
        lies = [self._random.randrange(self._vocab_size) for _ in range(num_tokens - len(true_ids))]
        return DraftTree.chain([*true_ids, *lies])


class RandomTrees(NoDrafts):
    """Proposes bushy trees of random tokens, with true tokens on a path at random places.

    So accepted paths of every length occur, and the cache entries of a path are never in order.

    Args:
        num_steps: depth.
        width: largest number of nodes at each depth.
    """

    drafts_forced = True
    is_connected = True

    def __init__(
        self, vocab_size: int, num_steps: int, width: int, seed: int, true_tokens: TrueTokens = knows_nothing
    ) -> None:
        self._vocab_size = vocab_size
        self._num_steps = num_steps
        self._width = width
        self._random = random.Random(seed)  # noqa: S311 (not for secrets)
        self._true_tokens = true_tokens

    def collect(self, batch: Sequence[TargetSequence]) -> list[DraftTree]:
        return [self._propose(sequence) for sequence in batch]

    def _propose(self, sequence: TargetSequence) -> DraftTree:
        num_steps = min(self._num_steps, sequence.num_unplanned - 1)
        true_ids = list(self._true_tokens(sequence))[len(sequence.ahead) :][
            : self._random.randint(0, max(0, num_steps))
        ]
        edges: list[tuple[int, int]] = []  # (parent, token)
        level, true_node = [ROOT], ROOT
        for depth in range(num_steps):
            new = [(self._random.choice(level), self._random.randrange(self._vocab_size)) for _ in range(self._width)]
            if depth < len(true_ids):
                new.insert(self._random.randrange(len(new)), (true_node, true_ids[depth]))
            first = len(edges)
            edges += dict.fromkeys(new)  # siblings carry different tokens
            level = list(range(first, len(edges)))
            if depth < len(true_ids):
                true_node = edges.index((true_node, true_ids[depth]), first)
        return DraftTree(tuple(token for _, token in edges), tuple(parent for parent, _ in edges))
