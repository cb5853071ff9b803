"""What a hub needs of a drafter: a causal LM, an EAGLE head, or prompt lookup."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from starspec.hub.sequence import DraftSequence
from starspec.hub.tree_nodes import Survivors
from starspec.wire.messages import Features


class StepInput(NamedTuple):
    """One sequence's part of a draft step: the first `num_tokens` of its missing tokens, or nodes to prepare."""

    sequence: DraftSequence
    num_tokens: int
    prepared: Sequence[int] = ()  # those nodes, if the draft step runs ahead


class DraftFailed(Exception):
    """A draft step failed for these sequences. Without them it could go on."""

    def __init__(self, sequences: Sequence[DraftSequence]) -> None:
        super().__init__(f"no children can be told for {[each.key for each in sequences]}")
        self.sequences = sequences


def in_order_of_rows(draft_step: Sequence[StepInput]) -> list[StepInput]:
    """Sort by cache row. Rows that lie side by side in the cache and in the forward are loaded together."""
    return sorted(draft_step, key=lambda each: -1 if each.sequence.row is None else each.sequence.row)


class Drafter(Protocol):
    """Makes draft tokens for sequences. Each sequence that grows holds one of its rows, with K/V or an index."""

    @property
    def name(self) -> str: ...

    @property
    def max_len(self) -> int:
        """Tokens of the longest sequence, drafts included."""
        ...

    @property
    def max_held_tokens(self) -> int:
        """Committed tokens that a hub may hold of all sequences: what is kept of each takes memory."""
        ...

    @property
    def vocab_size(self) -> int:
        """It has embeddings for token ids below this."""
        ...

    @property
    def num_free_rows(self) -> int: ...

    @property
    def can_share_prefixes(self) -> bool:
        """Whether the content of a row depends on token ids alone, so that other sequences can take it over.

        If not, sequences have no `prefix_names`.
        """
        ...

    @property
    def num_shared_tokens(self) -> int:
        """Tokens so far that needed no prefill, because a row held them already."""
        ...

    def lease(self, sequence: DraftSequence) -> None:
        """Give the sequence a row, which may hold its first tokens already. Raises: NoFreeRow."""
        ...

    def free(self, sequence: DraftSequence) -> None:
        """Take the sequence's row away, if it has one, and with it the tree. The committed tokens stay."""
        ...

    def learn(self, sequence: DraftSequence, message: Features) -> None:
        """Add the target's hidden states. Raises: PeerProtocolError, changing nothing, if they cannot be used."""
        ...

    def can_grow(self, sequence: DraftSequence) -> bool:
        """Whether the drafter has all inputs of the next draft step. Until then the sequence waits for its target."""
        ...

    def num_missing(self, sequence: DraftSequence) -> int:
        """How many tokens or nodes to forward until the tree has grown by one depth, at least 1."""
        ...

    def grow(self, draft_step: Sequence[StepInput], is_obsolete: Callable[[], bool] | None = None) -> None:
        """Forward tokens of several sequences at once. If a sequence then misses none, its tree grows by one depth.

        Args:
            draft_step: sequences that hold rows, each once; 1 <= num_tokens <= num_missing, and all of them if they are
                nodes of the tree.
            is_obsolete: whether the whole draft step has become useless; asked if it runs ahead.
        Raises: ForwardAborted then; DraftFailed if it fails for some sequences by their own fault.
        Effects: the sequences' trees and rows; none of them if it raises.
        """
        ...

    def num_preparable(self, sequence: DraftSequence) -> int:
        """Nodes that may be forwarded now, ahead of a verdict; 0 if that is never of use."""
        ...

    def note_request(self, sequence: DraftSequence) -> None:
        """The target wants another proposal for the sequence, or none. Effects: clears what the request cannot use."""
        ...

    def note_commit(self, sequence: DraftSequence, token_ids: Sequence[int], survivors: Survivors) -> None:
        """The sequence has committed these tokens; they are its last ones now.

        Args:
            survivors: the part of the tree's K/V that is still right.
        Effects: the row keeps this part, or less. If it keeps less, the tree is cleared too.
        """
        ...

    def check_integrity(self, sequences: Iterable[DraftSequence]) -> None:
        """Raises: OurBug unless exactly these sequences' rows are leased, and fit them."""
        ...
