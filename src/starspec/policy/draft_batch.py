"""Which sequences grow in the next draft step: a pure function of a snapshot.

All waiting sequences grow together in one batched forward, or the first `max_sequences` of them (StarSD serves one at a
time). The order is first come, first served, or that of `fairness.py`:

1. A waiting sequence without a row takes a free one (`free_row`). If there is none, the hub evicts the least recently
   used idle row, else the row of the last waiting sequence. It takes no row from another target that holds no more
   rows, by weight, than the target that needs one. A sequence that loses its row lives on as token ids.
2. A waiting sequence that misses only what a verdict leaves, or nodes of its tree, grows without further conditions.
3. Sequences in prefill (of a prompt, or of the tokens of an evicted sequence) share `prefill_chunk` tokens of a draft
   step, an equal part for each target. They share only `chunk_beside` tokens if other sequences decode in it. A
   proposal is delayed by at most one such draft step in SPARED_STEPS: prompts wait until a proposal that was delayed is
   complete, or had that many draft steps more. If several sequences miss the same block, then the first one prefills
   it, and the others take it over.
4. While several targets ask, each has at most as many decoding sequences in a draft step as `step_shares.py` says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple, Protocol

from starspec.config import MAX_DRAFT_TOKENS, MAX_TOP_K
from starspec.ids import LinkId, Tag

SHORT_PAST: Final = MAX_TOP_K + 1  # tokens: a shorter past is forwarded like one depth of a tree, and is not a prefill
MOST_COMMITTED: Final = MAX_DRAFT_TOKENS + 1  # tokens of one verdict; an EAGLE head forwards all of them again
SPARED_STEPS: Final = 8  # draft steps without a prompt after one with it, for a proposal that takes so many


class TagKey(NamedTuple):
    """One draft sequence among those of all targets: a tag is unique within its target's link only."""

    link_id: LinkId
    tag: Tag


def is_prefill(num_missing: int, is_prefilled: bool) -> bool:
    """Whether the missing tokens of a sequence are more than a verdict leaves.

    Args:
        is_prefilled: whether its prompt was prefilled before.
    """
    return num_missing > (MOST_COMMITTED if is_prefilled else SHORT_PAST)


def free_row(num_held: Mapping[int, int], num_shared: int, longest_free: int) -> int:
    """The free row that a sequence takes, so that the content of the others can still be of use.

    It is a row that ends where the sequence continues: nothing is copied then. Else it is the row that has been free
    for longest.

    Args:
        num_held: the free rows that begin with what the sequence shares, and how many blocks each holds.
        num_shared: blocks that the sequence shares with some row, free or not.
        longest_free: the row that has been free for longest.
    """
    return next((row for row, num_blocks in num_held.items() if num_blocks == num_shared), longest_free)


@dataclass(frozen=True, slots=True)
class SequenceView:
    """What the scheduler may know of one sequence."""

    key: TagKey
    has_row: bool
    num_missing: int  # tokens whose K/V the next draft token needs and no row holds; at least 1
    is_prefill: bool  # the missing tokens are more than a verdict leaves
    last_used_s: float  # when it last sent a request or got a proposal
    is_delayed: bool = False  # one of the last draft steps for its request also prefilled a prompt
    has_started: bool = False  # it was in a draft step for its request
    is_urgent: bool = False  # its target misses its latency objective
    next_block: bytes | None = None  # the next block of its prefill: equal for sequences that miss the same block
    is_committed: bool = False  # the missing tokens are committed; else they are nodes of its tree


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftStepSnapshot:
    """The hub before a draft step."""

    waiting: tuple[SequenceView, ...]  # sequences that owe a proposal, first come first
    idle: tuple[SequenceView, ...]  # sequences that hold a row and do not wait
    num_free_rows: int
    prefill_chunk: int  # prefill tokens in one draft step, at most; at least 1
    chunk_beside: int  # the same for a draft step in which others decode; at least 1
    most: Mapping[LinkId, int] = field(default_factory=dict)  # decoding sequences of a target, at least 1; others: all
    max_sequences: int | None = None  # in one draft step; None = all that wait
    weights: Mapping[LinkId, float] = field(default_factory=dict)  # shares of rows; 1 for targets that are not in it

    @property
    def max_scheduled(self) -> int:
        """Sequences that may be in the draft step: each needs a row."""
        num_rows = self.num_free_rows + len(self.idle) + sum(each.has_row for each in self.waiting)
        return num_rows if self.max_sequences is None else min(num_rows, self.max_sequences)

    @property
    def is_contended(self) -> bool:
        """Whether not all waiting sequences fit."""
        return len(self.waiting) > self.max_scheduled


class ScheduledSequence(NamedTuple):
    """One sequence of a draft step, with the first `num_tokens` of its missing tokens."""

    key: TagKey
    num_tokens: int
    is_prefill: bool
    is_committed: bool = False  # the tokens are committed: a prompt, a verdict, or what was lost with a row

    @property
    def cost(self) -> int:
        """Draft tokens that its target is charged. Committed tokens count as one: a target that lost a row to another
        is not charged for that.
        """
        return 1 if self.is_committed else self.num_tokens


@dataclass(frozen=True)
class DraftStep:
    """The decision: free the rows of `evicted`, then forward the sequences together."""

    sequences: tuple[ScheduledSequence, ...] = ()
    evicted: tuple[TagKey, ...] = ()

    @property
    def has_prefill(self) -> bool:
        return self.num_prompt_tokens > 0

    @property
    def num_tokens(self) -> int:
        """Tokens that it forwards, or nodes."""
        return sum([scheduled.num_tokens for scheduled in self.sequences])

    @property
    def size(self) -> int:
        """Its sequences and the tokens that they forward: both take time."""
        return len(self.sequences) + self.num_tokens

    @cached_property
    def num_prompt_tokens(self) -> int:
        return sum([scheduled.num_tokens for scheduled in self.sequences if scheduled.is_prefill])


class WaitingOrder(Protocol):
    """Waiting sequences in some order, which may depend on those that were scheduled before."""

    def __iter__(self) -> Iterator[SequenceView]:
        """Each of them once."""
        ...

    def charge(self, scheduled: ScheduledSequence) -> None:
        """The sequence that was yielded last is scheduled."""
        ...

    def expected_order(self) -> Sequence[SequenceView]:
        """Each of them once, in the order that they have if nothing is charged."""
        ...


class FirstCome:
    """In order of arrival."""

    def __init__(self, waiting: Sequence[SequenceView]) -> None:
        self._waiting = waiting

    def __iter__(self) -> Iterator[SequenceView]:
        return iter(self._waiting)

    def charge(self, scheduled: ScheduledSequence) -> None:
        pass

    def expected_order(self) -> Sequence[SequenceView]:
        return self._waiting


def choose_step(snapshot: DraftStepSnapshot, order: WaitingOrder | None = None) -> DraftStep:
    """Choose the next draft step.

    Args:
        order: of the waiting sequences; None = in order of arrival.
    Returns: a draft step with at least one sequence if any waits; each sequence at most once; never more rows
        in use than there are.
    Effects: charges `order`.
    """
    order = order or FirstCome(snapshot.waiting)
    rows, prompts = _Rows(snapshot, order.expected_order()), _PromptTokens(snapshot)
    places = dict(snapshot.most)
    sequences: list[ScheduledSequence] = []
    max_scheduled = snapshot.max_scheduled
    for sequence in order:
        rows.pass_by(sequence)
        if sequence.is_prefill:
            num_tokens = prompts.left_for(sequence)
        else:
            num_tokens = sequence.num_missing if places.get(sequence.key.link_id, 1) else 0
        if num_tokens and rows.take(sequence):
            sequences.append(ScheduledSequence(sequence.key, num_tokens, sequence.is_prefill, sequence.is_committed))
            order.charge(sequences[-1])
            if sequence.is_prefill:
                prompts.take(sequence, num_tokens)
            elif sequence.key.link_id in places:
                places[sequence.key.link_id] -= 1
            if len(sequences) == max_scheduled:
                break  # the next one in order stays the next one
    return DraftStep(tuple(sequences), tuple(rows.evicted))


class _PromptTokens:
    """Prefill tokens that are left in a draft step, the same number for each target.

    None are left while prefill would delay a proposal a second time. No block is prefilled twice.
    """

    def __init__(self, snapshot: DraftStepSnapshot) -> None:
        decoding = [each for each in snapshot.waiting if not each.is_prefill]
        prefilling = {each.key.link_id for each in snapshot.waiting if each.is_prefill}
        chunk = snapshot.chunk_beside if decoding else snapshot.prefill_chunk
        self._left = 0 if any(each.is_delayed and each.has_row for each in decoding) else chunk
        self._left_of = dict.fromkeys(prefilling, max(1, chunk // max(1, len(prefilling))))
        self._blocks: set[bytes] = set()  # that are prefilled in this draft step

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
    """Free rows, and rows that may be evicted, while a draft step is chosen.

    A target never loses a row to one that holds as many rows or more, by weight: else a target with many sequences
    would take the rows of all others while they verify, and they would be prefilled again in each round.
    """

    def __init__(self, snapshot: DraftStepSnapshot, order: Sequence[SequenceView]) -> None:
        self._num_free = snapshot.num_free_rows
        self._idle = sorted(snapshot.idle, key=lambda sequence: sequence.last_used_s)
        self._behind = {sequence.key: None for sequence in order if sequence.has_row}
        self._num_held = Counter(key.link_id for key in (*self._behind, *(each.key for each in self._idle)))
        self._weights = snapshot.weights
        self.evicted: list[TagKey] = []

    def pass_by(self, sequence: SequenceView) -> None:
        """The sequence is next in order, so sequences after it cannot take its row."""
        self._behind.pop(sequence.key, None)

    def take(self, sequence: SequenceView) -> bool:
        """Make sure that the sequence has a row. Returns: False if there is none for it in this draft step."""
        if sequence.has_row:
            return sequence.key not in self.evicted
        if self._num_free:
            self._num_free -= 1
        elif (victim := self._victim(sequence.key.link_id)) is not None:
            self.evicted.append(victim)
            self._num_held[victim.link_id] -= 1
        else:
            return False
        self._num_held[sequence.key.link_id] += 1
        return True

    def _victim(self, taker: LinkId) -> TagKey | None:
        """Who loses its row: the idle sequence that was used least recently, else the last one that waits."""
        for index, sequence in enumerate(self._idle):
            if self._may_take(taker, sequence.key):
                return self._idle.pop(index).key
        for key in reversed(self._behind):
            if self._may_take(taker, key):
                del self._behind[key]
                return key
        return None

    def _may_take(self, taker: LinkId, key: TagKey) -> bool:
        return key.link_id == taker or self._share(key.link_id) > self._share(taker)

    def _share(self, target: LinkId) -> float:
        return self._num_held[target] / self._weights.get(target, 1.0)
