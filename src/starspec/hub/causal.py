"""Drafting with a causal LM: one batched forward lets the tree of each sequence in it grow by one depth."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from starspec.cache.prefixes import PREFIX_BLOCK
from starspec.config import MAX_DRAFT_TOKENS
from starspec.errors import OurBug, PeerProtocolError
from starspec.hub.children import Point, draft_children
from starspec.hub.drafter import StepInput, in_order_of_rows
from starspec.hub.prefix_sharing import PrefixSharing
from starspec.hub.sequence import DraftSequence
from starspec.hub.tree_nodes import Survivors
from starspec.models.runner import ModelRunner, Segment
from starspec.policy.peer_limits import MAX_HELD_TOKENS
from starspec.wire.messages import Features


class CausalDrafter:
    """Drafts trees with a causal LM.

    A row holds K/V of the first `cache.lengths[row]` committed tokens. When it holds all of them, the last one's
    logits have given the root its children, and K/V of the tree's forwarded nodes lie in the slots behind.
    """

    max_held_tokens = MAX_HELD_TOKENS
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

    def lease(self, sequence: DraftSequence) -> None:
        sequence.hold_row(self._sharing.lease(sequence))

    def free(self, sequence: DraftSequence) -> None:
        if sequence.row is not None:
            self._cache.free(sequence.row)
            sequence.drop_row()
            sequence.forget_tree()

    def learn(self, sequence: DraftSequence, message: Features) -> None:  # noqa: ARG002
        raise PeerProtocolError("this draft takes no features")

    def can_grow(self, sequence: DraftSequence) -> bool:  # noqa: ARG002
        return True

    def num_missing(self, sequence: DraftSequence) -> int:
        num_uncommitted = self._num_uncommitted(sequence)
        if num_uncommitted > PREFIX_BLOCK:
            num_uncommitted = min(num_uncommitted, len(sequence.token_ids) - self._sharing.num_held(sequence))
        return num_uncommitted or len(sequence.to_forward) or 1

    def grow(self, draft_step: Sequence[StepInput], is_obsolete: Callable[[], bool] | None = None) -> None:
        for step_input in draft_step:
            self._sharing.catch_up(step_input.sequence)
        draft_step = in_order_of_rows(draft_step)
        to_forward = [step_input.prepared or step_input.sequence.to_forward for step_input in draft_step]
        segments = [self._segment(step_input, nodes) for step_input, nodes in zip(draft_step, to_forward, strict=True)]
        logits = self._runner.forward(segments, is_obsolete=is_obsolete).logits  # [expanded nodes, V]
        growing = zip(draft_step, segments, to_forward, strict=True)
        points = [
            Point(step_input.sequence, node)
            for step_input, segment, nodes in growing
            if segment.num_logits
            for node in nodes
        ]
        children = draft_children(points, logits)
        for step_input, segment in zip(draft_step, segments, strict=True):
            if segment.parents is None:  # committed tokens
                self._cache.append(segment.row, segment.num_new)
                self._sharing.note(step_input.sequence)
        for (sequence, node), known in zip(points, children, strict=True):
            sequence.expand(node, known)

    def num_preparable(self, sequence: DraftSequence) -> int:
        if sequence.row is None or not sequence.tree.is_rooted:
            return 0
        num_used = self._cache.lengths[sequence.row] + len(sequence.tree.forwarded)
        return max(0, self._cache.max_len - MAX_DRAFT_TOKENS - num_used)

    def note_request(self, sequence: DraftSequence) -> None:
        if sequence.is_asked_otherwise:
            self._restart(sequence)

    def note_commit(self, sequence: DraftSequence, token_ids: Sequence[int], survivors: Survivors) -> None:  # noqa: ARG002
        if sequence.row is None:
            return
        self._cache.commit(sequence.row, survivors.path, survivors.kept)
        self._sharing.note(sequence)
        num_slots = self._cache.lengths[sequence.row] + len(survivors.kept) + MAX_DRAFT_TOKENS
        if survivors.kept and num_slots > self._cache.max_len:
            self._restart(sequence)  # further nodes might not fit behind those that were kept

    def check_integrity(self, sequences: Iterable[DraftSequence]) -> None:
        sequences = list(sequences)
        self._cache.check_integrity()
        self._sharing.check_integrity(sequences)
        holders = {sequence.row: sequence for sequence in sequences if sequence.row is not None}
        if holders.keys() != self._cache.rows.leased:
            raise OurBug(f"rows {sorted(self._cache.rows.leased)} are leased, sequences hold {sorted(holders)}")
        for row, sequence in holders.items():
            num_uncommitted = self._num_uncommitted(sequence)
            if num_uncommitted < 0 or (num_uncommitted == 0) != sequence.tree.is_rooted:
                raise OurBug(f"row {row} misses {num_uncommitted} tokens of a sequence whose tree is {sequence.tree}")

    def _num_uncommitted(self, sequence: DraftSequence) -> int:
        """Committed tokens whose K/V the row does not hold."""
        return len(sequence.token_ids) - (0 if sequence.row is None else self._cache.lengths[sequence.row])

    def _segment(self, step_input: StepInput, nodes: Sequence[int]) -> Segment:
        sequence, num_tokens = step_input.sequence, step_input.num_tokens
        if sequence.row is None:
            raise OurBug(f"sequence {sequence.key} has no row to grow in")
        start, stop = self._cache.lengths[sequence.row], self._cache.lengths[sequence.row] + num_tokens
        if start < len(sequence.token_ids):
            is_last = stop == len(sequence.token_ids)
            return Segment(sequence.row, sequence.token_ids[start:stop], num_logits=int(is_last))
        token_ids, parents = sequence.tree.segment(nodes)
        num_forwarded = len(sequence.tree.forwarded)
        return Segment(sequence.row, token_ids, len(token_ids) - num_forwarded, parents, num_forwarded)

    def _restart(self, sequence: DraftSequence) -> None:
        """Forget the tree. The logits of the root are gone, so the last committed token must be forwarded again."""
        sequence.forget_tree()
        if sequence.row is not None:
            length = min(self._cache.lengths[sequence.row], len(sequence.token_ids) - 1)
            self._cache.truncate(sequence.row, length)
            self._sharing.note(sequence)
