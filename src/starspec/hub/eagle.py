"""Drafting with an EAGLE head, which takes the target's hidden states (features) as input.

A row holds K/V of slots that were computed from the target's own features. Slot i pairs the feature of a position with
the token after it. So n committed tokens are n - 1 slots, and the last of them predicts the next token:

    positions    first ...           n - 2 | n - 1                     features known up to n - 2
    inputs       (f, t first + 1) .. (f, t n - 1) | (h, a) (h, b) ...  a node takes its parent's hidden state h

A verdict brings the features of all tokens that it commits. The K/V of nodes comes from drafted hidden states, so it is
always dropped, and accepted tokens are forwarded again. `first` is 0 only if the features of the whole prompt came.
Features depend on all tokens before them, so a head drafts nearly as well from the last ones (`FEATURE_WINDOW`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import torch
from torch import Tensor

from starspec.cache.features import MAX_FEATURE, are_readable, from_bytes
from starspec.errors import OurBug, PeerProtocolError
from starspec.hub.children import Point, draft_children
from starspec.hub.drafter import StepInput, in_order_of_rows
from starspec.hub.sequence import DraftSequence
from starspec.hub.tree_nodes import Survivors
from starspec.models.heads.head import EagleHead
from starspec.models.runner import Segment
from starspec.policy.peer_limits import MAX_HELD_TOKENS
from starspec.wire.messages import Features

FEATURE_WINDOW: Final = 256  # positions whose features both ends keep of a tag


class EagleDrafter:
    """Drafts trees with an EAGLE head shared by all sequences; each has its own K/V and features."""

    max_held_tokens = MAX_HELD_TOKENS
    can_share_prefixes = False  # a row depends on one target's features, from as far back as they are kept
    num_shared_tokens = 0

    def __init__(self, head: EagleHead) -> None:
        self._head = head
        self._cache = head.cache
        self._first: dict[int, int] = {}  # row -> position of its slot 0
        self._hidden: dict[
            int, dict[int, Tensor]
        ] = {}  # row -> hidden state for the children of each expanded node, [C]

    @property
    def name(self) -> str:
        return self._head.info.name

    @property
    def max_len(self) -> int:
        return self._head.info.max_model_len

    @property
    def vocab_size(self) -> int:
        return self._head.info.vocab_size

    @property
    def num_free_rows(self) -> int:
        return self._cache.num_free_rows

    def lease(self, sequence: DraftSequence) -> None:
        row = self._cache.lease()
        sequence.hold_row(row)
        self._first[row] = sequence.features.start
        self._hidden[row] = {}

    def free(self, sequence: DraftSequence) -> None:
        if sequence.row is not None:
            self._cache.free(sequence.row)
            del self._first[sequence.row], self._hidden[sequence.row]
            sequence.drop_row()
            sequence.forget_tree()

    def learn(self, sequence: DraftSequence, message: Features) -> None:
        """Add features. Raises: PeerProtocolError, changing nothing, unless this head can take them."""
        try:
            features = from_bytes(message.data, message.num_positions)
        except ValueError as error:
            raise PeerProtocolError(str(error)) from error
        if features.shape[1] != self._head.spec.feature_size:
            raise PeerProtocolError(f"features of {features.shape[1]} numbers: {self._head.spec.feature_size} expected")
        if message.start >= len(sequence.token_ids):
            raise PeerProtocolError(f"features of position {message.start} in {len(sequence.token_ids)} tokens")
        if not bool(are_readable(features).all()):
            raise PeerProtocolError(f"features must be finite and at most {MAX_FEATURE:g}")
        sequence.add_features(message.start, features)
        self._close_hole(sequence)

    def can_grow(self, sequence: DraftSequence) -> bool:
        """Whether the feature of the last token but one has come."""
        last = len(sequence.token_ids) - 2
        return sequence.features.start <= last < sequence.features.stop

    def num_missing(self, sequence: DraftSequence) -> int:
        return self._num_uncomputed(sequence) or len(sequence.to_forward) or 1

    def grow(self, draft_step: Sequence[StepInput], is_obsolete: Callable[[], bool] | None = None) -> None:  # noqa: ARG002
        draft_step = in_order_of_rows(draft_step)
        to_forward = [step_input.sequence.to_forward for step_input in draft_step]
        segments = [self._segment(step_input, nodes) for step_input, nodes in zip(draft_step, to_forward, strict=True)]
        growing = list(zip(draft_step, segments, to_forward, strict=True))
        output = self._head.forward(segments, torch.cat([self._hidden_inputs(*each) for each in growing]))
        points = [
            Point(step_input.sequence, node)
            for step_input, segment, nodes in growing
            if segment.num_logits
            for node in nodes
        ]
        children = draft_children(points, output.logits, self._head.token_ids)
        for segment in segments:
            if segment.parents is None:  # committed tokens
                self._cache.append(segment.row, segment.num_new)
        for (sequence, node), tokens, hidden in zip(points, children, output.hidden, strict=True):
            sequence.expand(node, tokens)
            if sequence.row is not None:
                self._hidden[sequence.row][node] = hidden

    def num_preparable(self, sequence: DraftSequence) -> int:  # noqa: ARG002  not worth it: the verdict's features are missing (ADR 20)
        return 0

    def note_request(self, sequence: DraftSequence) -> None:
        if sequence.is_asked_otherwise:
            self._forget_tree(sequence)
            if sequence.row is not None:  # the root's logits are gone: its slot is forwarded again
                self._cache.truncate(sequence.row, self._cache.lengths[sequence.row] - 1)
                self._close_hole(sequence)

    def note_commit(self, sequence: DraftSequence, token_ids: Sequence[int], survivors: Survivors) -> None:  # noqa: ARG002
        self._forget_tree(sequence)  # it was drafted from hidden states of the head, not of the target

    def check_integrity(self, sequences: Iterable[DraftSequence]) -> None:
        self._cache.check_integrity()
        holders = {sequence.row: sequence for sequence in sequences if sequence.row is not None}
        if not holders.keys() == self._cache.rows.leased == self._first.keys() == self._hidden.keys():
            raise OurBug(f"rows {sorted(self._cache.rows.leased)} are leased, sequences hold {sorted(holders)}")
        for row, sequence in holders.items():
            num_uncomputed, length = self._num_uncomputed(sequence), self._cache.lengths[row]
            # an empty row may begin where the tokens end, or beyond: features travel ahead of their verdict
            if (num_uncomputed < 0 and length) or (num_uncomputed == 0 and length > 0) != sequence.tree.is_rooted:
                raise OurBug(f"row {row} misses {num_uncomputed} slots of a sequence whose tree is {sequence.tree}")
            if self._hidden[row].keys() != sequence.tree.expanded:
                raise OurBug(f"row {row} keeps hidden states of nodes {sorted(self._hidden[row])} of {sequence.tree}")

    def _close_hole(self, sequence: DraftSequence) -> None:
        """Start the row again where features begin, if it is empty or if the feature of its next slot is not known."""
        if sequence.row is None:
            return
        if sequence.features.start > self._next(sequence.row) or not self._cache.lengths[sequence.row]:
            self._cache.truncate(sequence.row, 0)
            self._first[sequence.row] = sequence.features.start
            self._forget_tree(sequence)

    def _forget_tree(self, sequence: DraftSequence) -> None:
        sequence.forget_tree()
        if sequence.row is not None:
            self._hidden[sequence.row].clear()

    def _next(self, row: int) -> int:
        """The position whose feature the next slot takes."""
        return self._first[row] + self._cache.lengths[row]

    def _num_uncomputed(self, sequence: DraftSequence) -> int:
        start = sequence.features.start if sequence.row is None else self._next(sequence.row)
        return len(sequence.token_ids) - 1 - start

    def _segment(self, step_input: StepInput, nodes: Sequence[int]) -> Segment:
        sequence, num_tokens = step_input.sequence, step_input.num_tokens
        if sequence.row is None:
            raise OurBug(f"sequence {sequence.key} has no row to grow in")
        num_uncomputed = self._num_uncomputed(sequence)
        if num_uncomputed:
            start = self._next(sequence.row) + 1
            is_last = num_tokens == num_uncomputed
            return Segment(sequence.row, sequence.token_ids[start : start + num_tokens], num_logits=int(is_last))
        token_ids, parents = sequence.tree.segment(nodes)
        num_forwarded = len(sequence.tree.forwarded)
        return Segment(sequence.row, token_ids, len(token_ids) - num_forwarded, parents, num_forwarded)

    def _hidden_inputs(self, step_input: StepInput, segment: Segment, nodes: Sequence[int]) -> Tensor:
        """The hidden states that go with the new tokens of a segment, or with the nodes: [num_new, C]."""
        sequence, row = step_input.sequence, segment.row
        if segment.parents is None:
            start = self._next(row)
            return self._head.fuse(sequence.features.since(start, start + segment.num_new))
        hidden = self._hidden[row]
        return torch.stack([hidden[sequence.tree.parent(node)] for node in nodes])
