"""Which request is in which row: vLLM tells the proposer tokens, and no names.

A request is recognised by its tokens. Wherever vLLM moved it, one that was there before has all the tokens that are
known of it in front of the new ones; what does not begin so is another request. The comparison costs the same at 100
tokens and at 100,000: length, the last tokens, and some spread evenly. Two requests that it cannot tell apart would
share drafts, which costs speed and never a token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from starspec.policy.estimators import WindowMedian

Tokens = NDArray[np.int32]

NUM_COMPARED: Final = 64  # of the last tokens, and of those spread evenly
FORGET_AFTER_S: Final = 1.0  # unseen for longer: finished, or preempted and to be recognised as another one later
FORGET_AFTER_STEPS: Final = 2.0  # and for longer than so many usual steps: a slow machine may take seconds for each
NUM_STEPS: Final = 16  # of so many the median is usual
LONGEST_STEP_S: Final = 10.0  # after a longer time, what goes on by chance from what was dropped is another request


class KnownRequest:
    """One request, as far as it has been seen: its prompt and what was sampled.

    Args:
        token_ids: [S] copied.
        prompt_len: of these, so many were there before anything was sampled.
        read_by: the hub that had its text when it was dropped though it had not ended, and may have most of it still.
    """

    def __init__(self, token_ids: Tokens, prompt_len: int, read_by: int | None = None) -> None:
        self.prompt_len = prompt_len
        self.read_by = read_by
        self._buffer: Tokens = np.empty(max(256, 2 * len(token_ids)), np.int32)
        self._buffer[: len(token_ids)] = token_ids
        self._len = len(token_ids)

    def __len__(self) -> int:
        return self._len

    @property
    def last_token_id(self) -> int:
        return int(self._buffer[self._len - 1])

    def token_ids(self, start: int = 0, end: int | None = None) -> list[int]:
        """From position `start` on, before position `end`."""
        ids: list[int] = self._buffer[start : self._len if end is None else min(end, self._len)].tolist()
        return ids

    def extend(self, token_ids: Tokens) -> None:
        """Take in tokens [T] that follow."""
        end = self._len + len(token_ids)
        if end > len(self._buffer):
            self._buffer = np.concatenate([self._buffer[: self._len], np.empty(end, np.int32)])
        self._buffer[self._len : end] = token_ids
        self._len = end

    def begins(self, row: Tokens) -> bool:
        """Whether a row [S] of at least this length begins with these tokens, as far as samples tell."""
        known, seen = self._buffer[: self._len], row[: self._len]
        step = max(1, self._len // NUM_COMPARED)
        return bool((known[-NUM_COMPARED:] == seen[-NUM_COMPARED:]).all() and (known[::step] == seen[::step]).all())


class _Unplaced:
    """Requests whose rows are looked for. Lengths and last tokens of all are compared at once, the rest of few."""

    def __init__(self, requests: Sequence[KnownRequest]) -> None:
        self._requests = requests
        self._lengths = np.array([len(each) for each in requests], np.int64)
        self._last_ids = np.array([each.last_token_id for each in requests], np.int32)

    def take(self, row: Tokens, num_sampled: int) -> KnownRequest | None:
        """The longest request that a row [S] is, with the tokens sampled now; it is placed from then on.

        The row may have more than that: a step near the model's length limit is not told to proposers. Of two requests
        of which one begins with all of the other, the longer one is it.
        """
        fitting = np.flatnonzero(self._lengths <= len(row) - num_sampled)
        alike = fitting[row[self._lengths[fitting] - 1] == self._last_ids[fitting]]
        longest_first: list[int] = alike[np.argsort(-self._lengths[alike], kind="stable")].tolist()
        for index in longest_first:
            request = self._requests[index]
            if request.begins(row):
                self._lengths[index] = np.iinfo(np.int64).max
                return request
        return None


class _Dropped(NamedTuple):
    """As `KnownRequest` has it."""

    prompt_len: int
    read_by: int | None


@dataclass(frozen=True, slots=True)
class SeenRow:
    """One row of a step in which tokens were sampled."""

    request: KnownRequest  # the new tokens are in it
    num_new: int
    is_first: bool  # not seen before, or forgotten


class RowBook:
    """All requests that are known, and where each was last."""

    def __init__(self) -> None:
        self._by_row: dict[int, KnownRequest] = {}
        self._last_seen_s: dict[KnownRequest, float] = {}
        self._step_s = WindowMedian(NUM_STEPS)
        self._stepped_s = 0.0  # when a step was seen last
        self._dropped: dict[tuple[int, int], _Dropped] = {}  # since then, by length and last token
        self.ended: list[int] = []  # of those dropped before the last step and not back in it: tokens sampled

    def __len__(self) -> int:
        return len(self._last_seen_s)

    def see(
        self, sampled: Sequence[Sequence[int]], lengths: NDArray[np.int32], token_ids: Tokens, now: float
    ) -> list[SeenRow | None]:
        """Take in a step.

        Args:
            sampled: for each row the tokens that it added; none while its prompt is read.
            lengths: [>= rows] tokens of each row, the added ones included.
            token_ids: [>= rows, >= S] of each row.
            now: seconds, as in `forget`.
        Returns: for each row what it holds; None where nothing was sampled.
        """
        rows = [token_ids[row, : lengths[row]] for row in range(len(sampled))]
        before, self._by_row = self._by_row, {}
        seen: list[SeenRow | None] = [None] * len(rows)
        for row, request in before.items():
            if row < len(rows) and self._goes_on(request, rows[row], len(sampled[row])):
                seen[row] = self._take(row, request, rows[row], len(sampled[row]), now)
        in_place = set(self._by_row.values())
        took_s = now - self._stepped_s
        self.ended = []
        if took_s > LONGEST_STEP_S:
            self._end_dropped()
        if in_place or self._were_dropped_too_soon(rows, sampled):
            self._step_s.add(took_s)  # else nothing went on, and the time since was no step's
        self._stepped_s = now
        moved = _Unplaced([request for request in self._last_seen_s if request not in in_place])
        for row, tokens in enumerate(rows):
            if row in self._by_row:
                continue
            found = moved.take(tokens, len(sampled[row]))
            if found is not None:
                seen[row] = self._take(row, found, tokens, len(sampled[row]), now)
            elif sampled[row]:
                request = self._new_request(tokens, len(tokens) - len(sampled[row]))
                self._by_row[row] = request
                self._last_seen_s[request] = now
                seen[row] = SeenRow(request, len(sampled[row]), is_first=True)
        self._end_dropped()
        return seen

    def end_step(self, now: float) -> None:
        """The step that was taken in last ends: while it waited for drafts nobody could be seen."""
        for request in self._by_row.values():
            self._last_seen_s[request] = now

    def forget(self, now: float, read_by: Callable[[KnownRequest], int | None] = lambda _: None) -> list[KnownRequest]:
        """Drop, and return, the requests that have not been seen for FORGET_AFTER_S and FORGET_AFTER_STEPS.

        vLLM tells of no ends: whether a request has ended or a step takes long shows only with time. One who is
        dropped in a step that takes unusually long is opened anew after it: the hub still holds most of what it read.

        Args:
            read_by: which hub has a request's text.
        """
        patience_s = max(FORGET_AFTER_S, FORGET_AFTER_STEPS * (self._step_s.value or 0.0))
        gone = [each for each, last_s in self._last_seen_s.items() if now - last_s > patience_s]
        for request in gone:
            del self._last_seen_s[request]
        self._dropped |= {(len(each), each.last_token_id): _Dropped(each.prompt_len, read_by(each)) for each in gone}
        self._by_row = {row: each for row, each in self._by_row.items() if each in self._last_seen_s}
        return gone

    def _end_dropped(self) -> None:
        self.ended += [length - each.prompt_len for (length, _), each in self._dropped.items()]
        self._dropped = {}

    def _new_request(self, tokens: Tokens, known_len: int) -> KnownRequest:
        """Of a row in which nothing is known: as far as tells, one that was dropped goes on, or one begins."""
        last_token_id = int(tokens[known_len - 1]) if known_len else -1
        before = self._dropped.pop((known_len, last_token_id), _Dropped(known_len, None))
        return KnownRequest(tokens, before.prompt_len, before.read_by)

    def _were_dropped_too_soon(self, rows: Sequence[Tokens], sampled: Sequence[Sequence[int]]) -> bool:
        """Whether a row goes on from what was dropped: the step was only long, and the next may be as long."""
        before = [len(row) - len(added) for row, added in zip(rows, sampled, strict=True)]
        return any(
            length > 0 and (length, int(row[length - 1])) in self._dropped
            for row, length in zip(rows, before, strict=True)
        )

    def _goes_on(self, request: KnownRequest, row: Tokens, num_sampled: int) -> bool:
        """Whether the row is this request and the tokens sampled now, and nothing else."""
        return len(request) == len(row) - num_sampled and request.begins(row)

    def _take(self, row: int, request: KnownRequest, tokens: Tokens, num_sampled: int, now: float) -> SeenRow | None:
        self._by_row[row] = request
        self._last_seen_s[request] = now
        if not num_sampled:  # its prompt is read (again), and what follows the known tokens may be part of it
            return None
        num_new = len(tokens) - len(request)
        request.extend(tokens[len(request) :])
        return SeenRow(request, num_new, is_first=False)
