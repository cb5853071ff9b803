"""The smallest engine: sequences that decode behind a verifier, with drafts of any kind and windows in flight."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from starspec.models.runner import Segment
from starspec.sampling.counts import TokenCounts
from starspec.speculation.tree import EMPTY_TREE, DraftTree
from starspec.windows.verifier import Lost, Ticket
from starspec.windows.window import Judge, Law, Verdict, Window


@dataclass(slots=True)
class Flight:
    """A window in flight."""

    sequence: Driven
    tree: DraftTree
    lease: int  # of the sequence, whose row is empty after a loss
    presumed: int | None = None  # the token that the window behind it takes for the target's own
    is_stale: bool = False


@dataclass(slots=True, eq=False)
class Driven:
    token_ids: list[int]
    prompt_len: int
    law: Law
    end_len: int
    row: int | None = None
    num_leases: int = 0
    is_done: bool = False
    why_failed: str = ""
    flights: deque[Flight] = field(default_factory=deque)  # those that are not stale
    counts: TokenCounts = field(init=False)

    def __post_init__(self) -> None:
        self.counts = TokenCounts(self.token_ids[: self.prompt_len], self.token_ids[self.prompt_len :])

    @property
    def presumed(self) -> list[int]:
        """The tokens with all that windows in flight take for granted."""
        token_ids = list(self.token_ids)
        for each in self.flights:
            if each.presumed is not None:
                token_ids += [*each.tree.token_ids, each.presumed]
        return token_ids


DraftOf = Callable[[Driven, list[int]], DraftTree]


class Driver:
    """Args: verifier: any. draft: makes the draft behind some tokens of a sequence. chunk: tokens of a prefill."""

    def __init__(self, verifier, draft: DraftOf, chunk: int = 8) -> None:
        self.verifier = verifier
        self.sequences: list[Driven] = []
        self.num_stale = 0
        self._draft = draft
        self._chunk = chunk
        self._in_flight: dict[Ticket, list[Flight]] = {}

    @property
    def running(self) -> list[Driven]:
        return [each for each in self.sequences if each.row is not None]

    @property
    def num_in_flight(self) -> int:
        return len(self._in_flight)

    def begin(self, prompt: Sequence[int], law: Law, num_tokens: int) -> Driven:
        sequence = Driven(list(prompt), len(prompt), law, len(prompt) + num_tokens)
        self.sequences.append(sequence)
        self.admit(sequence)
        return sequence

    def admit(self, sequence: Driven) -> None:
        """Lease a row and prefill all tokens but the last. Chunks are not waited for."""
        sequence.row = self.verifier.cache.lease()
        self._prefill(sequence)

    def _prefill(self, sequence: Driven) -> None:
        cache, row = self.verifier.cache, sequence.row
        assert row is not None
        sequence.num_leases += 1
        known = sequence.token_ids[:-1]
        for start in range(0, len(known), self._chunk):
            chunk = known[start : start + self._chunk]
            self._in_flight[self.verifier.launch([Window(Segment(row, chunk, 0), None)])] = []
            cache.append(row, len(chunk))

    def abort(self, sequence: Driven) -> None:
        sequence.is_done = True
        self._release(sequence)

    def can_launch(self, sequence: Driven) -> bool:
        """Whether another window may follow: none is in flight, or the last one is a chain."""
        fits = len(sequence.presumed) < sequence.end_len + 8
        return fits and (not sequence.flights or sequence.flights[-1].tree.is_chain)

    def launch(self, batch: Sequence[Driven], guess: int = 0) -> None:
        """Launch one window of each. Args: guess: the target's own token behind a window that is in flight."""
        for each in batch:
            if each.flights:
                each.flights[-1].presumed = guess
                assert each.row is not None
                self.verifier.cache.commit(each.row, range(each.flights[-1].tree.num_draft_tokens + 1))
        flights, windows = [], []
        for each in batch:
            token_ids = each.presumed
            flight = Flight(each, self._draft(each, token_ids), each.num_leases)
            each.flights.append(flight)
            flights.append(flight)
            windows.append(window_of(each, token_ids, flight.tree))
        self._in_flight[self.verifier.launch(windows)] = flights

    def poll(self, timeout_s: float) -> int:
        """Take what has landed or is lost. Returns: how many launches or losses."""
        landed = self.verifier.poll(timeout_s)
        for each in landed:
            if isinstance(each, Lost):
                self._lose(each)
                continue
            flights = self._in_flight.pop(each.ticket)
            assert len(flights) == len(each.verdicts)
            for flight, verdict in zip(flights, each.verdicts, strict=True):
                self._land(flight, verdict)
        return len(landed)

    def decode_all(self, is_ahead: bool = False) -> None:
        """Run all sequences to their ends, those with nothing in flight in one launch."""
        while self.running:
            ready = [each for each in self.running if not each.flights]
            if ready:
                self.launch(ready)
            ahead = [each for each in self.running if is_ahead and self.can_launch(each)]
            if ahead and self.num_in_flight < 4:
                self.launch(ahead)
            self.poll(1.0)

    def _lose(self, lost: Lost) -> None:
        self._in_flight.clear()
        for each in self.running:
            each.flights.clear()
            if lost.can_go_on:
                self._prefill(each)
            else:
                each.why_failed = lost.reason
                self.abort(each)

    def _land(self, flight: Flight, verdict: Verdict) -> None:
        sequence, result = flight.sequence, verdict.result
        if sequence.row is None or sequence.num_leases != flight.lease:
            return
        if flight.is_stale:
            self.num_stale += 1
            assert not result.token_ids, "a window on refused tokens was judged"
            return
        assert sequence.flights.popleft() is flight
        assert result.token_ids, "a window on true tokens was dropped"
        self._extend(sequence, list(result.token_ids))
        if sequence.row is None:
            return
        presumed = None if flight.presumed is None else (*flight.tree.token_ids, flight.presumed)
        if presumed is None:
            self.verifier.cache.commit(sequence.row, result.rows)
        elif presumed != result.token_ids:
            for each in sequence.flights:
                each.is_stale = True
            sequence.flights.clear()
            self.verifier.cache.truncate(sequence.row, len(sequence.token_ids) - 1)

    def _extend(self, sequence: Driven, token_ids: list[int]) -> None:
        kept = token_ids[: sequence.end_len - len(sequence.token_ids)]
        sequence.token_ids += kept
        sequence.counts.append(kept)
        if len(sequence.token_ids) == sequence.end_len:
            sequence.is_done = True
            self._release(sequence)

    def _release(self, sequence: Driven) -> None:
        assert sequence.row is not None
        self.verifier.cache.free(sequence.row)
        sequence.row = None
        sequence.flights.clear()


def window_of(sequence: Driven, token_ids: Sequence[int], tree: DraftTree) -> Window:
    assert sequence.row is not None
    parents = None if tree.is_chain else (-1, *(parent + 1 for parent in tree.parents))
    ids = (token_ids[-1], *tree.token_ids)
    segment = Segment(sequence.row, ids, len(ids), parents)
    return Window(segment, Judge(sequence.law, tree, len(token_ids), sequence.counts))


def no_draft(sequence: Driven, token_ids: list[int]) -> DraftTree:
    return EMPTY_TREE
