"""Drafts that are wrong on purpose: a lossless target must not care."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from starspec.speculation.tree import DraftTree
from starspec.target.drafts import NoDrafts
from starspec.target.sequence import Sequence as TargetSequence

Truth = Callable[[TargetSequence], Sequence[int]]
"""The tokens that the target is going to say next; may be empty."""


def knows_nothing(_: TargetSequence) -> Sequence[int]:
    """The truth of a drafter that only guesses."""
    return ()


class LyingDrafts(NoDrafts):
    """Proposes chains of random tokens, and before them some true ones if it knows them.

    With a truth, each proposal is right for a random number of tokens: every accepted length comes up, at random, in
    every sequence of a batch.
    """

    is_connected = True

    def __init__(self, vocab_size: int, num_draft_tokens: int, seed: int, truth: Truth = knows_nothing) -> None:
        self._vocab_size = vocab_size
        self._num_draft_tokens = num_draft_tokens
        self._random = random.Random(seed)  # noqa: S311 (lies need no secrecy)
        self._truth = truth

    def collect(self, batch: Sequence[TargetSequence]) -> list[DraftTree]:
        return [self._propose(sequence) for sequence in batch]

    def _propose(self, sequence: TargetSequence) -> DraftTree:
        num_tokens = min(self._num_draft_tokens, sequence.num_remaining - 1)
        true_ids = list(self._truth(sequence))[: self._random.randint(0, num_tokens)]
        lies = [self._random.randrange(self._vocab_size) for _ in range(num_tokens - len(true_ids))]
        return DraftTree.chain([*true_ids, *lies])
