"""Prompt lookup as a drafter: no model, no cache, any vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from starspec.cache.rows import RowPool
from starspec.errors import OurBug, PeerProtocolError
from starspec.hub.drafter import StepInput
from starspec.hub.sequence import DraftSequence
from starspec.hub.tree_nodes import Survivors
from starspec.policy.peer_limits import MAX_HELD_TOKENS
from starspec.speculation.ngram import PromptLookup
from starspec.wire.messages import Features

ANY_LEN = ANY_TOKEN = 2**31  # no sequence is too long, and no token is unknown
INDEX_FACTOR = 4  # the index of a token takes some times as much memory as the token


class NgramDrafter:
    """Drafts a whole chain at once from the sequence's own tokens.

    They are indexed as a model prefills them: so many in a draft step, so that nobody waits long for those of others.

    Args:
        min_ngram, max_ngram: shortest and longest run of tokens that is looked up.
        num_rows: sequences whose indexes are held at once; others are indexed again when they ask.
    """

    name = "ngram"
    max_len = ANY_LEN
    vocab_size = ANY_TOKEN
    max_held_tokens = MAX_HELD_TOKENS // INDEX_FACTOR
    can_share_prefixes = False  # an index is of one sequence
    num_shared_tokens = 0

    def __init__(self, min_ngram: int, max_ngram: int, num_rows: int) -> None:
        self._rows = RowPool(num_rows)
        self._lookup = PromptLookup[int](min_ngram, max_ngram)  # by row, over its sequence's first committed tokens

    @property
    def num_free_rows(self) -> int:
        return self._rows.num_free

    def lease(self, sequence: DraftSequence) -> None:
        row = self._rows.lease()
        sequence.hold_row(row)
        self._lookup.append(row, ())

    def free(self, sequence: DraftSequence) -> None:
        if sequence.row is not None:
            self._rows.free(sequence.row)
            self._lookup.forget(sequence.row)
            sequence.drop_row()

    def learn(self, sequence: DraftSequence, message: Features) -> None:  # noqa: ARG002
        raise PeerProtocolError("prompt lookup reads no features")

    def can_grow(self, sequence: DraftSequence) -> bool:  # noqa: ARG002
        return True

    def num_missing(self, sequence: DraftSequence) -> int:
        return self._num_unindexed(sequence) or 1  # a lookup is one step

    def grow(self, draft_step: Sequence[StepInput], is_obsolete: Callable[[], bool] | None = None) -> None:  # noqa: ARG002
        for sequence, num_tokens, _ in draft_step:
            row, num_unindexed = _row_of(sequence), self._num_unindexed(sequence)
            start = len(sequence.token_ids) - num_unindexed
            self._lookup.append(row, sequence.token_ids[start : start + num_tokens])
            if num_tokens < num_unindexed:
                continue
            guessed = self._lookup.propose(row, sequence.round.budget.num_steps)
            ends = [index for index, token_id in enumerate(guessed) if token_id in sequence.sampling.end_token_ids]
            sequence.become_chain(guessed[: ends[0] + 1] if ends else guessed)

    def num_preparable(self, sequence: DraftSequence) -> int:  # noqa: ARG002  a lookup takes no time
        return 0

    def note_request(self, sequence: DraftSequence) -> None:
        pass

    def note_commit(self, sequence: DraftSequence, token_ids: Sequence[int], survivors: Survivors) -> None:  # noqa: ARG002
        sequence.forget_tree()  # with more tokens to look up there may be a better guess

    def check_integrity(self, sequences: Iterable[DraftSequence]) -> None:
        self._rows.check_integrity()
        holders = {sequence.row: sequence for sequence in sequences if sequence.row is not None}
        if holders.keys() != self._lookup.lengths.keys():
            raise OurBug(f"indexes {self._lookup.lengths.keys()} are not those of rows {holders.keys()}")
        if holders.keys() != self._rows.leased:
            raise OurBug(f"rows {sorted(self._rows.leased)} are leased, sequences hold {sorted(holders)}")
        for row, sequence in holders.items():
            num_unindexed = self._num_unindexed(sequence)
            if num_unindexed < 0 or (num_unindexed and sequence.tree.is_rooted):
                raise OurBug(f"row {row} misses {num_unindexed} tokens of a sequence whose tree is {sequence.tree}")

    def _num_unindexed(self, sequence: DraftSequence) -> int:
        """Committed tokens that are not in the row's index; all, if it has no row."""
        num_indexed = 0 if sequence.row is None else self._lookup.num_indexed(sequence.row)
        return len(sequence.token_ids) - num_indexed


def _row_of(sequence: DraftSequence) -> int:
    if sequence.row is None:
        raise OurBug(f"sequence {sequence.key} is to be looked up without a row")
    return sequence.row
