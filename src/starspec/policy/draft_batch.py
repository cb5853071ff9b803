"""Which sequences grow in the next draft step: a pure function of a snapshot.

All that wait grow together in one batched forward, or the first `max_sequences` of the line (StarSD serves one at a
time). The line is first come, first served, unless it is another (`fairness.py`):

1. A waiting sequence without a row takes a free one; else the row of the idle sequence that was used least recently;
   else the row of the last in line. So the first in line is never passed over, and whoever loses a row lives on as
   token ids.
2. A waiting sequence that misses only what a verdict leaves, or a draft step of its tree, grows whenever its turn
   comes.
3. Those in prefill (of a prompt, or of the past of an evicted sequence) share `prefill_chunk` tokens of a draft step,
   an equal part for each target; `chunk_beside` tokens in a draft step that others wait for. A proposal is delayed by
   at most one such draft step: as long as one that has been delayed is not complete, prompts wait. Of those that would
   read the same, the first does; the others wait for what it leaves them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

from starspec.ids import LinkId, Tag


class TagKey(NamedTuple):
    """One draft sequence among those of all targets: a tag is unique within its target's link only."""

    link_id: LinkId
    tag: Tag


@dataclass(frozen=True, slots=True)
class SequenceView:
    """What the scheduler may know of one sequence."""

    key: TagKey
    has_row: bool
    num_missing: int  # tokens whose K/V the next draft token needs and no row holds; at least 1
    is_prefill: bool  # they are more than a verdict leaves
    last_used_s: float  # when it last sent a request or got a proposal
    is_delayed: bool = False  # a draft step for its request had a prompt in it
    is_begun: bool = False  # it was in a draft step for its request
    is_urgent: bool = False  # its target's rounds were longer than they are to be
    next_block: bytes | None = None  # of a prompt, what it reads next: equal for those who read the same
    is_past: bool = False  # what it misses was committed; else it is a draft step of its tree


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftStepSnapshot:
    """The hub before a draft step."""

    waiting: tuple[SequenceView, ...]  # sequences that owe a proposal, first come first
    idle: tuple[SequenceView, ...]  # sequences that hold a row and have no use for it now
    num_free_rows: int
    prefill_chunk: int  # prefill tokens in one draft step, at most; at least 1
    chunk_beside: int  # the same for a draft step in which others decode; at least 1
    max_sequences: int | None = None  # in one draft step; None = all that wait

    @property
    def max_portions(self) -> int:
        """Sequences that may be in the draft step: each needs a row."""
        num_rows = self.num_free_rows + len(self.idle) + sum(each.has_row for each in self.waiting)
        return num_rows if self.max_sequences is None else min(num_rows, self.max_sequences)

    @property
    def is_contended(self) -> bool:
        """Whether some must wait because others do not."""
        return len(self.waiting) > self.max_portions


class Portion(NamedTuple):
    """One sequence's part of a draft step: the first `num_tokens` of those that it misses."""

    key: TagKey
    num_tokens: int
    is_prefill: bool
    is_past: bool = False  # they were committed: the prompt, a verdict, or what went with a row

    @property
    def cost(self) -> int:
        """Draft tokens that its target is charged. Of the past all that counts is the place in the draft step: who lost
        a row to others is not to pay for it, too.
        """
        return 1 if self.is_past else self.num_tokens


@dataclass(frozen=True)
class DraftStep:
    """The decision: free the rows of `evicted`, then forward the portions together."""

    portions: tuple[Portion, ...] = ()
    evicted: tuple[TagKey, ...] = ()

    @property
    def has_prefill(self) -> bool:
        return self.num_prompt_tokens > 0

    @property
    def num_tokens(self) -> int:
        """Tokens that it forwards, or nodes."""
        return sum([portion.num_tokens for portion in self.portions])

    @cached_property
    def num_prompt_tokens(self) -> int:
        return sum([portion.num_tokens for portion in self.portions if portion.is_prefill])


class WaitingOrder(Protocol):
    """Those who wait, in some order; it may depend on who before was taken into the draft step."""

    def __iter__(self) -> Iterator[SequenceView]:
        """Each of them once."""
        ...

    def charge(self, portion: Portion) -> None:
        """The one that came last is in the draft step."""
        ...

    def expected_order(self) -> Sequence[SequenceView]:
        """Each of them once, as they will come if nothing is charged."""
        ...


class FirstCome:
    """In order of arrival."""

    def __init__(self, waiting: Sequence[SequenceView]) -> None:
        self._waiting = waiting

    def __iter__(self) -> Iterator[SequenceView]:
        return iter(self._waiting)

    def charge(self, portion: Portion) -> None:
        pass

    def expected_order(self) -> Sequence[SequenceView]:
        return self._waiting


def choose_step(snapshot: DraftStepSnapshot, order: WaitingOrder | None = None) -> DraftStep:
    """Choose the next draft step.

    Args:
        line: who comes first; None = who came first.
    Returns: a draft step with at least one portion if any sequence waits; each sequence at most once; never more rows
        in use than there are.
    Effects: the line.
    """
    order = order or FirstCome(snapshot.waiting)
    rows, prompts = _Rows(snapshot, order.expected_order()), _PromptTokens(snapshot)
    portions: list[Portion] = []
    max_portions = snapshot.max_portions
    for sequence in order:
        rows.pass_by(sequence)
        num_tokens = prompts.left_for(sequence) if sequence.is_prefill else sequence.num_missing
        if num_tokens and rows.take(sequence):
            portions.append(Portion(sequence.key, num_tokens, sequence.is_prefill, sequence.is_past))
            order.charge(portions[-1])
            if sequence.is_prefill:
                prompts.take(sequence, num_tokens)
            if len(portions) == max_portions:
                break  # whose turn it would be now keeps it
    return DraftStep(tuple(portions), tuple(rows.evicted))


class _PromptTokens:
    """What a draft step may hold of prompts: nothing while they delay somebody, nothing twice, the same for each
    target.
    """

    def __init__(self, snapshot: DraftStepSnapshot) -> None:
        decoding = [each for each in snapshot.waiting if not each.is_prefill]
        reading = {each.key.link_id for each in snapshot.waiting if each.is_prefill}
        chunk = snapshot.chunk_beside if decoding else snapshot.prefill_chunk
        self._left = 0 if any(each.is_delayed and each.has_row for each in decoding) else chunk
        self._left_of = dict.fromkeys(reading, max(1, chunk // max(1, len(reading))))
        self._blocks: set[bytes] = set()  # that are being read

    def left_for(self, sequence: SequenceView) -> int:
        if sequence.next_block in self._blocks:
            return 0
        return min(sequence.num_missing, self._left, self._left_of[sequence.key.link_id])

    def take(self, sequence: SequenceView, num_tokens: int) -> None:
        self._left -= num_tokens
        self._left_of[sequence.key.link_id] -= num_tokens
        if sequence.next_block is not None:
            self._blocks.add(sequence.next_block)


class _Rows:
    """Free rows, and those that may be taken away, while a draft step is chosen."""

    def __init__(self, snapshot: DraftStepSnapshot, order: Sequence[SequenceView]) -> None:
        self._num_free = snapshot.num_free_rows
        self._idle = sorted(snapshot.idle, key=lambda sequence: sequence.last_used_s, reverse=True)
        self._behind = {sequence.key: None for sequence in order if sequence.has_row}
        self.evicted: list[TagKey] = []

    def pass_by(self, sequence: SequenceView) -> None:
        """It is this sequence's turn: whoever comes later cannot take its row."""
        self._behind.pop(sequence.key, None)

    def take(self, sequence: SequenceView) -> bool:
        """See that the sequence has a row; False if there is none for it in this draft step."""
        if sequence.has_row:
            return sequence.key not in self.evicted
        if self._num_free:
            self._num_free -= 1
            return True
        if self._idle:
            self.evicted.append(self._idle.pop().key)
            return True
        if self._behind:
            self.evicted.append(self._behind.popitem()[0])
            return True
        return False
