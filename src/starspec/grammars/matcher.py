"""Where one answer is in its grammar."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from llguidance import LLMatcher
from torch import Tensor

from starspec.grammars.source import complaint_of
from starspec.quoting import readable
from starspec.speculation.budget import MAX_FORWARDED
from starspec.speculation.tree import EMPTY_TREE, ROOT, DraftTree


class FittedDraft(NamedTuple):
    """A draft as a grammar leaves it."""

    tree: DraftTree
    num_kept: int  # nodes that are the draft's own; those before and behind them are tokens that the grammar forces
    num_before: int = 0  # nodes before those


class GrammarMatcher:
    """Implements Constraint. A path beyond the committed tokens is consumed for a look, and rolled back.

    If the grammar exceeds a limit while it is followed, `failure` says so, and nothing that is said then counts. What
    drafts lead to counts against these limits, too. So after a failure the matcher begins again, follows the committed
    tokens, and looks at no drafts any more: if it fails then, the answer without drafts fails as well.

    Args:
        begin: makes the matcher of the compiled grammar, before the first token of the answer.
        ends: bool [V], the end tokens; True for all if there are none.
    """

    def __init__(self, begin: Callable[[], LLMatcher], ends: Tensor) -> None:
        self._begin = begin
        self._matcher = begin()
        self._ends = ends
        self._committed: list[int] = []
        self._path: list[int] = []  # consumed behind the committed tokens
        self._is_left = False  # a token was committed that it does not allow
        self._has_looked_ahead = False  # at drafts, since it began
        self._may_look_ahead = True
        self._spent = _Stopwatch()

    @property
    def has_ended(self) -> bool:
        """Whether no text may follow the committed tokens."""
        with self._spent:
            self._move([])
            return self._matcher.is_stopped()

    @property
    def complaint(self) -> str:
        """What there is to say against the grammar; mostly nothing."""
        return complaint_of(self._matcher)

    @property
    def failure(self) -> str:
        """Why the grammar can be followed no further; empty while it can."""
        if self.complaint:
            return readable(self.complaint.partition("\n")[0])
        return "the model gives no probability to a token that the grammar allows" if self._is_left else ""

    def allowed(self, path: Sequence[int]) -> Tensor:
        """As Constraint. Behind the end of the text, and after a failure, end tokens."""
        with self._spent:
            mask = self._allowed(path)
            return self._allowed(path) if self._begin_again_if_failed() else mask

    def commit(self, token_id: int) -> None:
        """The answer goes on with this token."""
        with self._spent:
            self._is_left |= not self._move([token_id])
        self._committed.append(token_id)
        self._path = []

    def forced(self, most: int) -> list[int]:
        """The tokens that the grammar forces behind the committed ones, at most so many."""
        if not most:
            return []
        with self._spent:
            if not self._may_look_ahead or not self._move([]):
                return []
            forced = self._matcher.compute_ff_tokens()
            self._has_looked_ahead = True
            return [] if self._begin_again_if_failed() else forced[:most]

    def fit(self, tree: DraftTree, max_forced_depth: int, before: Sequence[int] = ()) -> FittedDraft:
        """The part of a draft that the grammar allows, and behind it the tokens that the grammar forces.

        Args:
            max_forced_depth: of a forced token; 0 = there are to be none.
            before: tokens that the grammar forces, and behind which the draft goes on.
        """
        if not (tree.token_ids or max_forced_depth):
            return FittedDraft(tree, 0)
        with self._spent:
            if not self._may_look_ahead or not self._move(before):
                return FittedDraft(EMPTY_TREE, 0)
            look = _Look(self._matcher, tree, before)
            look.at(ROOT)
            self._has_looked_ahead = True
            if self._begin_again_if_failed():
                return FittedDraft(EMPTY_TREE, 0)
            return look.fitted(max_forced_depth)

    def take_spent_s(self) -> float:
        """Processor seconds that all of this took since the last call."""
        seconds, self._spent.seconds = self._spent.seconds, 0.0
        return seconds

    def _allowed(self, path: Sequence[int]) -> Tensor:
        if not self._move(path) or self._matcher.is_stopped():
            return self._ends
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self._matcher.is_error():
            return self._ends
        return torch.from_numpy(np.unpackbits(bits, bitorder="little")[: len(self._ends)].view(np.bool_))

    def _move(self, path: Sequence[int]) -> bool:
        """Stand behind this path. Returns: whether the grammar goes so far."""
        num_shared = next((i for i, pair in enumerate(zip(self._path, path, strict=False)) if pair[0] != pair[1]), None)
        num_shared = min(len(self._path), len(path)) if num_shared is None else num_shared
        if num_shared < len(self._path):
            self._matcher.rollback(len(self._path) - num_shared)
        num_consumed = self._matcher.try_consume_tokens(list(path[num_shared:]))
        self._path = list(path[: num_shared + num_consumed])
        is_there = len(self._path) == len(path)
        return self._move(path) if self._begin_again_if_failed(is_lost=not is_there) else is_there

    def _begin_again_if_failed(self, *, is_lost: bool = False) -> bool:
        """If drafts may be why it failed, stand behind the committed tokens as if there had been none.

        Args:
            is_lost: it could not go where an answer goes. At a limit it says so only later.
        Returns: whether it began again.
        """
        if not self._has_looked_ahead or not (is_lost or self._matcher.is_error()):
            return False
        self._matcher = self._begin()
        self._matcher.try_consume_tokens(self._committed)
        self._path, self._has_looked_ahead, self._may_look_ahead = [], False, False
        return True


class _Stopwatch:
    """Adds up the processor time of this thread in `with` blocks."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._started_s = 0.0

    def __enter__(self) -> None:
        self._started_s = time.thread_time()

    def __exit__(self, *exception: object) -> None:
        self.seconds += time.thread_time() - self._started_s


class _Look:
    """A look at a draft, node by node. The matcher stands behind the tokens `before` it, before and after."""

    def __init__(self, matcher: LLMatcher, tree: DraftTree, before: Sequence[int]) -> None:
        self._matcher = matcher
        self._tree = tree
        self._before = before
        self._children: dict[int, list[int]] = defaultdict(list)
        for node, parent in enumerate(tree.parents):
            self._children[parent].append(node)
        self._kept: list[int] = []
        self._forced: dict[int, list[int]] = {}  # kept node without kept children -> the tokens that must follow it

    def at(self, node: int) -> None:
        """Look at what is below a node, behind which the matcher stands."""
        forced = self._matcher.compute_ff_tokens()
        num_kept = len(self._kept)
        for child in self._children[node]:
            token_id = self._tree.token_ids[child]
            if forced[:1] in ([], [token_id]) and self._matcher.try_consume_tokens([token_id]):
                self._kept.append(child)
                self.at(child)
                self._matcher.rollback(1)
        if forced and len(self._kept) == num_kept:
            self._forced[node] = forced

    def fitted(self, max_forced_depth: int) -> FittedDraft:
        """Args: as `GrammarMatcher.fit`. A tree of the largest size gets no forced tokens."""
        num_before = len(self._before)
        tree, kept = self._tree, sorted(self._kept)[: MAX_FORWARDED - num_before]
        if len(kept) < tree.num_draft_tokens:
            tree = tree.restricted(kept)
        places = {ROOT: ROOT} | {node: place for place, node in enumerate(kept)}
        room = MAX_FORWARDED - num_before - len(kept)
        chains = dict[int, list[int]]()
        for node, forced in self._forced.items():
            depth = num_before + (0 if node == ROOT else self._tree.depths[node])
            chain = forced[: min(room, max(0, max_forced_depth - depth))]
            if chain:
                chains[places[node]] = chain
                room -= len(chain)
        fitted = tree.extended(chains) if chains else tree
        return FittedDraft(fitted.behind(self._before), len(kept), num_before)
