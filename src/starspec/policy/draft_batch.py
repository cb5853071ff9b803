"""Which sessions grow in the next draft layer: a pure function of a snapshot.

All that wait grow together in one batched forward, or the first `max_sessions` of the line (StarSD serves one at a
time). The line is first come, first served, unless it is another (`fairness.py`):

1. A waiting session without a row takes a free one; else the row of the idle session that was used least recently;
   else the row of the last in line. So the first in line is never passed over, and whoever loses a row lives on as
   token ids.
2. A waiting session that misses only what a verdict leaves, or a layer of its tree, grows whenever its turn comes.
3. Those in prefill (of a prompt, or of the past of an evicted session) share `prefill_chunk` tokens of a layer, an
   equal part for each target; `chunk_beside` tokens in a layer that others wait for. A proposal is delayed by at most
   one such layer: as long as one that has been delayed is not complete, prompts wait. Of those that would read the
   same, the first does; the others wait for what it leaves them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

from starspec.ids import SessionId, Tag


class TagKey(NamedTuple):
    """One draft session among those of all targets: a tag is unique within its target's session only."""

    session_id: SessionId
    tag: Tag


@dataclass(frozen=True, slots=True)
class SessionView:
    """What the scheduler may know of one session."""

    key: TagKey
    has_row: bool
    num_missing: int  # tokens whose K/V the next draft token needs and no row holds; at least 1
    is_prefill: bool  # they are more than a verdict leaves
    last_used_s: float  # when it last sent a request or got a proposal
    is_delayed: bool = False  # a layer for its request had a prompt in it
    is_begun: bool = False  # it was in a layer for its request
    is_urgent: bool = False  # its target's rounds were longer than they are to be
    next_block: bytes | None = None  # of a prompt, what it reads next: equal for those who read the same
    is_past: bool = False  # what it misses was committed; else it is a layer of its tree


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSnapshot:
    """The hub before a layer."""

    waiting: tuple[SessionView, ...]  # sessions that owe a proposal, first come first
    idle: tuple[SessionView, ...]  # sessions that hold a row and have no use for it now
    num_free_rows: int
    prefill_chunk: int  # prefill tokens in one layer, at most; at least 1
    chunk_beside: int  # the same for a layer in which others decode; at least 1
    max_sessions: int | None = None  # in one layer; None = all that wait

    @property
    def max_portions(self) -> int:
        """Sessions that may be in the layer: each needs a row."""
        num_rows = self.num_free_rows + len(self.idle) + sum(each.has_row for each in self.waiting)
        return num_rows if self.max_sessions is None else min(num_rows, self.max_sessions)

    @property
    def is_contended(self) -> bool:
        """Whether some must wait because others do not."""
        return len(self.waiting) > self.max_portions


class Portion(NamedTuple):
    """One session's part of a layer: the first `num_tokens` of those that it misses."""

    key: TagKey
    num_tokens: int
    is_prefill: bool
    is_past: bool = False  # they were committed: the prompt, a verdict, or what went with a row

    @property
    def cost(self) -> int:
        """Draft tokens that its target is charged. Of the past all that counts is the place in the layer: who lost a
        row to others is not to pay for it, too.
        """
        return 1 if self.is_past else self.num_tokens


@dataclass(frozen=True)
class Layer:
    """The decision: free the rows of `evicted`, then forward the portions together."""

    portions: tuple[Portion, ...] = ()
    evicted: tuple[TagKey, ...] = ()

    @property
    def has_prefill(self) -> bool:
        return self.num_prompt_tokens > 0

    @cached_property
    def num_prompt_tokens(self) -> int:
        return sum([portion.num_tokens for portion in self.portions if portion.is_prefill])


class Line(Protocol):
    """Those who wait, in some order; it may depend on who before was taken into the layer."""

    def __iter__(self) -> Iterator[SessionView]:
        """Each of them once."""
        ...

    def charge(self, portion: Portion) -> None:
        """The one that came last is in the layer."""
        ...

    def foreseen(self) -> Sequence[SessionView]:
        """Each of them once, as they will come if nothing is charged."""
        ...


class FirstComeLine:
    """In order of arrival."""

    def __init__(self, waiting: Sequence[SessionView]) -> None:
        self._waiting = waiting

    def __iter__(self) -> Iterator[SessionView]:
        return iter(self._waiting)

    def charge(self, portion: Portion) -> None:
        pass

    def foreseen(self) -> Sequence[SessionView]:
        return self._waiting


def choose_layer(snapshot: LayerSnapshot, line: Line | None = None) -> Layer:
    """Choose the next layer.

    Args:
        line: who comes first; None = who came first.
    Returns: a layer with at least one portion if any session waits; each session at most once; never more rows
        in use than there are.
    Effects: the line.
    """
    line = line or FirstComeLine(snapshot.waiting)
    rows, prompts = _Rows(snapshot, line.foreseen()), _PromptTokens(snapshot)
    portions: list[Portion] = []
    max_portions = snapshot.max_portions
    for session in line:
        rows.pass_by(session)
        num_tokens = prompts.left_for(session) if session.is_prefill else session.num_missing
        if num_tokens and rows.take(session):
            portions.append(Portion(session.key, num_tokens, session.is_prefill, session.is_past))
            line.charge(portions[-1])
            if session.is_prefill:
                prompts.take(session, num_tokens)
            if len(portions) == max_portions:
                break  # whose turn it would be now keeps it
    return Layer(tuple(portions), tuple(rows.evicted))


class _PromptTokens:
    """What a layer may hold of prompts: nothing while they delay somebody, nothing twice, the same for each target."""

    def __init__(self, snapshot: LayerSnapshot) -> None:
        decoding = [each for each in snapshot.waiting if not each.is_prefill]
        reading = {each.key.session_id for each in snapshot.waiting if each.is_prefill}
        chunk = snapshot.chunk_beside if decoding else snapshot.prefill_chunk
        self._left = 0 if any(each.is_delayed and each.has_row for each in decoding) else chunk
        self._left_of = dict.fromkeys(reading, max(1, chunk // max(1, len(reading))))
        self._blocks: set[bytes] = set()  # that are being read

    def left_for(self, session: SessionView) -> int:
        if session.next_block in self._blocks:
            return 0
        return min(session.num_missing, self._left, self._left_of[session.key.session_id])

    def take(self, session: SessionView, num_tokens: int) -> None:
        self._left -= num_tokens
        self._left_of[session.key.session_id] -= num_tokens
        if session.next_block is not None:
            self._blocks.add(session.next_block)


class _Rows:
    """Free rows, and those that may be taken away, while a layer is chosen."""

    def __init__(self, snapshot: LayerSnapshot, line: Sequence[SessionView]) -> None:
        self._num_free = snapshot.num_free_rows
        self._idle = sorted(snapshot.idle, key=lambda session: session.last_used_s, reverse=True)
        self._behind = {session.key: None for session in line if session.has_row}
        self.evicted: list[TagKey] = []

    def pass_by(self, session: SessionView) -> None:
        """It is this session's turn: whoever comes later cannot take its row."""
        self._behind.pop(session.key, None)

    def take(self, session: SessionView) -> bool:
        """See that the session has a row; False if there is none for it in this layer."""
        if session.has_row:
            return session.key not in self.evicted
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
