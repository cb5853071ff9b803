"""What a hub asks of whatever drafts: a causal LM, an EAGLE head, prompt lookup."""

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


def in_order_of_rows(draft_step: Sequence[StepInput]) -> list[StepInput]:
    """Sort by cache row. Rows that lie side by side in the cache and in the forward are loaded together."""
    return sorted(draft_step, key=lambda each: -1 if each.sequence.row is None else each.sequence.row)


class Drafter(Protocol):
    """What turns sequences into draft tokens. Sequences lease its rows, where it keeps what it knows of them."""

    @property
    def name(self) -> str: ...

    @property
    def max_len(self) -> int:
        """Tokens of the longest sequence, drafts included."""
        ...

    @property
    def vocab_size(self) -> int:
        """Token ids below this can be read."""
        ...

    @property
    def num_free_rows(self) -> int: ...

    @property
    def can_share_prefixes(self) -> bool:
        """Whether what a row holds follows from token ids alone, so that another sequence may begin with it.

        If not, sequences have no `prefix_names`.
        """
        ...

    @property
    def num_shared_tokens(self) -> int:
        """Tokens so far that were not read, because a row held them already."""
        ...

    def lease(self, sequence: DraftSequence) -> None:
        """Give the sequence a row, which may hold first tokens of it. Raises: NoFreeRow. Effects: `sequence.row`."""
        ...

    def free(self, sequence: DraftSequence) -> None:
        """Take the sequence's row away, if it has one. Effects: `sequence.row`, and what is known by it; tokens
        stay.
        """
        ...

    def learn(self, sequence: DraftSequence, message: Features) -> None:
        """Take in what the target thought. Raises: PeerProtocolError, changing nothing, if this is of no use."""
        ...

    def can_grow(self, sequence: DraftSequence) -> bool:
        """Whether all is here that the next draft step is made of; until then the sequence waits for its target."""
        ...

    def num_missing(self, sequence: DraftSequence) -> int:
        """Tokens that must be read before the next draft step of the tree is known, at least 1."""
        ...

    def grow(self, draft_step: Sequence[StepInput], is_obsolete: Callable[[], bool] | None = None) -> None:
        """Read tokens of several sequences at once; the tree of each that then misses none grows by a draft step.

        Args:
            draft step: sequences that hold rows, each once; 1 <= num_tokens <= num_missing, and all of them if they are
                nodes of the tree.
            is_obsolete: whether, by now, nothing of the draft step is of use any more; for nodes that are prepared.
        Raises: ForwardAborted once it is in vain.
        Effects: the sequences' trees and rows; none of them if it raises.
        """
        ...

    def num_preparable(self, sequence: DraftSequence) -> int:
        """Nodes that may be forwarded now for the proposal after the one in verification; 0 if that is never of use."""
        ...

    def note_request(self, sequence: DraftSequence) -> None:
        """The sequence is owed another proposal now, or none. Effects: row and tree, if they are of no use for it."""
        ...

    def note_commit(self, sequence: DraftSequence, token_ids: Sequence[int], survivors: Survivors) -> None:
        """The sequence has committed the tokens of a verdict; these are its last ones.

        Args:
            survivors: what of the tree's K/V is still true.
        Effects: the row keeps that, or less; if less, the tree is cleared, too.
        """
        ...

    def check_integrity(self, sequences: Iterable[DraftSequence]) -> None:
        """Raises: OurBug unless exactly these sequences' rows are leased, and fit them."""
        ...
