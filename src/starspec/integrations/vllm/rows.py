"""Which request is in which row. vLLM gives a proposer the tokens of each row, but no request ids.

A request is recognised by its tokens. vLLM may move it to another row, but the row still begins with all its known
tokens. A row that does not begin with them is another request. A comparison takes as long for 100 tokens as for
100,000: it looks at the length, the last tokens, and a sample of the others. Two requests that it cannot tell apart
share drafts, which costs speed and cannot change the output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from starspec.policy.forgetting import Forgetting, may_return

Tokens = NDArray[np.int32]

NUM_COMPARED: Final = 64  # last tokens, and about as many others, evenly spaced


class KnownRequest:
    """One request, as far as it was seen: its prompt and its sampled tokens.

    Args:
        token_ids: [S]; they are copied.
        prompt_len: how many of them were there before anything was sampled.
        prefilled_by: number of the hub that may still have most of its tokens, since it held them when the request was
            dropped too soon.
    """

    def __init__(self, token_ids: Tokens, prompt_len: int, prefilled_by: int | None = None) -> None:
        self.prompt_len = prompt_len
        self.prefilled_by = prefilled_by
        self._buffer: Tokens = np.empty(max(256, 2 * len(token_ids)), np.int32)
        self._buffer[: len(token_ids)] = token_ids
        self._len = len(token_ids)

    def __len__(self) -> int:
        return self._len

    @property
    def last_token_id(self) -> int:
        return int(self._buffer[self._len - 1])

    def token_ids(self, start: int = 0, end: int | None = None) -> list[int]:
        """Tokens from position `start` on, up to and without position `end`."""
        ids: list[int] = self._buffer[start : self._len if end is None else min(end, self._len)].tolist()
        return ids

    def extend(self, token_ids: Tokens) -> None:
        """Append tokens [T]."""
        end = self._len + len(token_ids)
        if end > len(self._buffer):
            self._buffer = np.concatenate([self._buffer[: self._len], np.empty(end, np.int32)])
        self._buffer[self._len : end] = token_ids
        self._len = end

    def note_prefilled(self, hub: int) -> None:
        """The hub of this number may have most of the tokens, although it has not answered."""
        self.prefilled_by = hub

    def begins(self, row: Tokens) -> bool:
        """Whether a row [S] begins with these tokens, by a sample of them. The row must be at least as long."""
        known, seen = self._buffer[: self._len], row[: self._len]
        step = max(1, self._len // NUM_COMPARED)
        return bool((known[-NUM_COMPARED:] == seen[-NUM_COMPARED:]).all() and (known[::step] == seen[::step]).all())


class _Unplaced:
    """Requests that are not in their row. Lengths and last tokens of all are compared at once, other tokens of few."""

    def __init__(self, requests: Sequence[KnownRequest]) -> None:
        self._requests = requests
        self._lengths = np.array([len(each) for each in requests], np.int64)
        self._last_ids = np.array([each.last_token_id for each in requests], np.int32)

    def take(self, row: Tokens, num_sampled: int) -> KnownRequest | None:
        """The longest request that a row [S] continues. Effects: no other row gets it.

        The row may have more tokens than the request and those sampled now: near the model's length limit, vLLM skips
        the proposer. If one request begins with all tokens of another, the row continues the longer one.
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
    """What is kept of a dropped request, as in `KnownRequest`."""

    prompt_len: int
    prefilled_by: int | None


@dataclass(frozen=True, slots=True)
class SeenRow:
    """One row of a step in which tokens were sampled."""

    request: KnownRequest  # the new tokens are in it
    num_new: int
    is_first: bool  # the request was not seen before, or was forgotten


class RowBook:
    """All known requests, and the row that each was last in."""

    def __init__(self) -> None:
        self._by_row: dict[int, KnownRequest] = {}
        self._last_seen_s: dict[KnownRequest, float] = {}
        self._forgetting = Forgetting()
        self._stepped_s = 0.0  # when a step was seen last
        self._dropped: dict[tuple[int, int], _Dropped] = {}  # after that, by length and last token
        self.ended: list[int] = []  # sampled tokens of each request that ended, as the last step showed

    def __len__(self) -> int:
        return len(self._last_seen_s)

    def see(
        self, sampled: Sequence[Sequence[int]], lengths: NDArray[np.int32], token_ids: Tokens, now: float
    ) -> list[SeenRow | None]:
        """Take in a step.

        Args:
            sampled: for each row, the tokens that it added; none while its prompt is prefilled.
            lengths: [>= rows] tokens of each row, the added ones included.
            token_ids: [>= rows, >= S] of each row.
            now: seconds of a monotonic clock.
        Returns: what each row holds; None where nothing was sampled.
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
        if not may_return(took_s):
            self._end_dropped()
        if in_place or self._were_dropped_too_soon(rows, sampled):
            self._forgetting.add_step(took_s)  # else no row continued, so this was not the time of a step
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
        """The last step has ended. Requests cannot be seen while a step waits for drafts, so they count as seen now."""
        for request in self._by_row.values():
            self._last_seen_s[request] = now

    def forget(
        self, now: float, prefilled_by: Callable[[KnownRequest], int | None] = lambda _: None
    ) -> list[KnownRequest]:
        """Drop the requests that were not seen for too long, as `policy/forgetting.py` says.

        Args:
            prefilled_by: number of the hub that holds a request; None = no hub does.
        Returns: the dropped requests.
        """
        patience_s = self._forgetting.patience_s
        gone = [each for each, last_s in self._last_seen_s.items() if now - last_s > patience_s]
        for request in gone:
            del self._last_seen_s[request]
        self._dropped |= {
            (len(each), each.last_token_id): _Dropped(each.prompt_len, prefilled_by(each)) for each in gone
        }
        self._by_row = {row: each for row, each in self._by_row.items() if each in self._last_seen_s}
        return gone

    def _end_dropped(self) -> None:
        self.ended += [length - each.prompt_len for (length, _), each in self._dropped.items()]
        self._dropped = {}

    def _new_request(self, tokens: Tokens, known_len: int) -> KnownRequest:
        """The request of an unknown row: it continues a dropped one of this length and last token, or it is new."""
        last_token_id = int(tokens[known_len - 1]) if known_len else -1
        before = self._dropped.pop((known_len, last_token_id), _Dropped(known_len, None))
        return KnownRequest(tokens, before.prompt_len, before.prefilled_by)

    def _were_dropped_too_soon(self, rows: Sequence[Tokens], sampled: Sequence[Sequence[int]]) -> bool:
        """Whether a row continues a dropped request: then the step was long, and the next one may be, too."""
        before = [len(row) - len(added) for row, added in zip(rows, sampled, strict=True)]
        return any(
            length > 0 and (length, int(row[length - 1])) in self._dropped
            for row, length in zip(rows, before, strict=True)
        )

    def _goes_on(self, request: KnownRequest, row: Tokens, num_sampled: int) -> bool:
        """Whether the row is exactly this request and the tokens sampled now."""
        return len(request) == len(row) - num_sampled and request.begins(row)

    def _take(self, row: int, request: KnownRequest, tokens: Tokens, num_sampled: int, now: float) -> SeenRow | None:
        self._by_row[row] = request
        self._last_seen_s[request] = now
        if not num_sampled:  # its prompt is prefilled (again), and tokens after the known ones may be part of it
            return None
        num_new = len(tokens) - len(request)
        request.extend(tokens[len(request) :])
        return SeenRow(request, num_new, is_first=False)
