"""Where one answer is in its grammar."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from llguidance import LLMatcher
from torch import Tensor

from starspec.quoting import readable
from starspec.speculation.tree import ROOT, DraftTree


class GrammarMatcher:
    """Implements Constraint. A path beyond the committed tokens is consumed for a look, and rolled back.

    If the grammar exceeds a limit while it is followed, `failure` says so, and nothing that is said then counts.

    Args:
        matcher: of the compiled grammar, before the first token of the answer.
        ends: bool [V], the end tokens; True for all if there are none.
    """

    def __init__(self, matcher: LLMatcher, ends: Tensor) -> None:
        self._matcher = matcher
        self._ends = ends
        self._path: list[int] = []  # consumed behind the committed tokens
        self._is_left = False  # a token was committed that it does not allow

    @property
    def has_ended(self) -> bool:
        """Whether no text may follow the committed tokens."""
        self._move([])
        return self._matcher.is_stopped()

    @property
    def failure(self) -> str:
        """Why the grammar can be followed no further; empty while it can."""
        if self._matcher.is_error():
            return readable(self._matcher.get_error().partition("\n")[0])
        return "the model gives no probability to a token that the grammar allows" if self._is_left else ""

    def allowed(self, path: Sequence[int]) -> Tensor:
        """As Constraint. Behind the end of the text, and after a failure, end tokens."""
        if not self._move(path) or self._matcher.is_stopped():
            return self._ends
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self._matcher.is_error():
            return self._ends
        return torch.from_numpy(np.unpackbits(bits, bitorder="little")[: len(self._ends)].view(np.bool_))

    def commit(self, token_id: int) -> None:
        """The answer goes on with this token."""
        self._is_left |= not self._move([token_id])
        self._path = []

    def prune(self, tree: DraftTree) -> DraftTree:
        """The part of a draft that the grammar allows."""
        self._move([])
        kept = set[int]()
        for path in _paths(tree):
            num_allowed = self._matcher.validate_tokens([tree.token_ids[node] for node in path])
            kept.update(path[:num_allowed])
        return tree if len(kept) == tree.num_draft_tokens else tree.restricted(kept)

    def _move(self, path: Sequence[int]) -> bool:
        """Stand behind this path. Returns: whether the grammar goes so far."""
        num_shared = next((i for i, pair in enumerate(zip(self._path, path, strict=False)) if pair[0] != pair[1]), None)
        num_shared = min(len(self._path), len(path)) if num_shared is None else num_shared
        if num_shared < len(self._path):
            self._matcher.rollback(len(self._path) - num_shared)
        num_consumed = self._matcher.try_consume_tokens(list(path[num_shared:]))
        self._path = list(path[: num_shared + num_consumed])
        return len(self._path) == len(path)


def _paths(tree: DraftTree) -> Iterable[list[int]]:
    """The nodes from the root to each leaf."""
    inner = set(tree.parents)
    for leaf in range(tree.num_draft_tokens):
        if leaf not in inner:
            path = [leaf]
            while (parent := tree.parents[path[-1]]) != ROOT:
                path.append(parent)
            yield path[::-1]
