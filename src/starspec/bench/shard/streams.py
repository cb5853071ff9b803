"""Sequences that decode behind a pipe, with a modelled draft beside the coordinator, and windows in flight."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from math import inf
from typing import Final, NamedTuple

from starspec.bench.shard.modelled_stage import VOCAB, true_token
from starspec.errors import PeerLost
from starspec.models.runner import Segment
from starspec.policy.pipe_depth import PipePlan
from starspec.policy.window_choice import WindowChoice
from starspec.sampling.counts import TokenCounts
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.tree import DraftTree
from starspec.stages.coordinator import RemoteVerifier
from starspec.windows.verifier import Lost, Ticket
from starspec.windows.window import Judge, Law, Verdict, Window

GREEDY: Final = Law(SamplingSpec(temperature=0.0), None, None)
NOTHING_COUNTED: Final = TokenCounts((), ())
Planning = Callable[["Streams"], PipePlan]


@dataclass(frozen=True, slots=True, eq=False)
class _Flight:
    """A window in flight."""

    stream: Stream
    token_ids: tuple[int, ...]  # root and draft
    guess: int  # of the target's own token behind them


class _Launched(NamedTuple):
    """Windows that were launched together."""

    flights: list[_Flight]
    started_s: float
    num_others: int  # launches in flight then
    is_ahead: bool  # others may stand on them


@dataclass(slots=True, eq=False)
class Stream:
    """One sequence."""

    row: int
    length: int = 1  # committed tokens
    last: int = true_token(0)  # the one that the next window begins with
    ready_s: float = 0.0  # when the draft of the next window is there
    flights: deque[_Flight] = field(default_factory=deque)  # those that are not stale
    stale: set[_Flight] = field(default_factory=set)

    @property
    def front(self) -> int:
        """Tokens with all that are presumed."""
        return self.length + sum(len(each.token_ids) for each in self.flights)


class Streams:
    """Several sequences behind one coordinator.

    Which draft tokens are the target's depends on seed, row and position only, and not on when they are drafted: so
    two runs can be compared whose windows differ in time.

    Args:
        clock: seconds; those of the verifier.
        planning: asked before each window.
        alpha: probability that a draft token is the target's, if those before it are.
        draft_s: of one draft token of one sequence; those of a batch are drafted together.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        verifier: RemoteVerifier,
        num_streams: int,
        planning: Planning,
        *,
        alpha: float,
        draft_s: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.num_verified = self.num_accepted = 0  # draft tokens that were judged, up to the first refused one
        self.num_streams = num_streams
        self.windows = WindowChoice()  # is told of each round
        self._clock = clock
        self._verifier = verifier
        self._planning = planning
        self._alpha = alpha
        self._draft_s = draft_s
        self._seed = seed
        self._streams = [Stream(verifier.cache.lease()) for _ in range(num_streams)]
        self._in_flight: dict[Ticket, _Launched] = {}

    def run(self, num_tokens: int) -> float:
        """Decode until each sequence has so many tokens.

        Returns: tokens a second of all.
        Raises: PeerLost if a stage is gone.
        """
        started_s = self._clock()
        while any(each.length <= num_tokens for each in self._streams):
            plan = self._planning(self)
            ready = [each for each in self._streams if self._may_launch(each, plan) and each.ready_s <= self._clock()]
            if ready:
                self._launch(ready, plan)
                continue
            next_s = min((each.ready_s for each in self._streams if self._may_launch(each, plan)), default=inf)
            self._poll(min(next_s - self._clock(), 1e6))
        total = sum(each.length - 1 for each in self._streams)
        return total / (self._clock() - started_s)

    def _may_launch(self, stream: Stream, plan: PipePlan) -> bool:
        return len(stream.flights) < plan.depth

    def _launch(self, batch: Sequence[Stream], plan: PipePlan) -> None:
        flights, windows = [], []
        for stream in batch:
            if stream.flights:
                self._verifier.cache.commit(stream.row, range(len(stream.flights[-1].token_ids)))
            front = stream.front
            root = stream.flights[-1].guess if stream.flights else stream.last
            draft = [self._guess(stream.row, front + index) for index in range(plan.num_draft_tokens)]
            flight = _Flight(stream, (root, *draft), self._guess(stream.row, front + plan.num_draft_tokens))
            segment = Segment(stream.row, flight.token_ids, len(flight.token_ids))
            windows.append(Window(segment, Judge(GREEDY, DraftTree.chain(draft), front, NOTHING_COUNTED)))
            flights.append(flight)
        num_others, is_ahead = len(self._in_flight), plan.depth > 1
        launched = _Launched(flights, self._clock(), num_others, is_ahead)
        self._in_flight[self._verifier.launch(windows)] = launched
        self.windows.add_draft(1, self._draft_s, self._draft_s, is_ahead=is_ahead)
        for flight in flights:
            flight.stream.flights.append(flight)
            flight.stream.ready_s = self._clock() + self._draft_s * len(flight.token_ids)

    def _guess(self, row: int, position: int) -> int:
        truth = true_token(position)
        drawn = blake2b(f"{self._seed} {row} {position}".encode(), digest_size=8).digest()
        is_right = int.from_bytes(drawn) < self._alpha * 2**64
        return truth if is_right else (truth + 1) % VOCAB

    def _poll(self, timeout_s: float) -> None:
        for landed in self._verifier.poll(timeout_s):
            if isinstance(landed, Lost):
                raise PeerLost(landed.reason)
            launched = self._in_flight.pop(landed.ticket)
            if landed.took is not None and not all(each in each.stream.stale for each in launched.flights):
                seconds = (self._clock() - launched.started_s) / (launched.num_others + 1)
                self.windows.add_round(landed.took, seconds, is_ahead=launched.is_ahead)
            for flight, verdict in zip(launched.flights, landed.verdicts, strict=True):
                self._land(flight, verdict)

    def _land(self, flight: _Flight, verdict: Verdict) -> None:
        stream, token_ids = flight.stream, verdict.result.token_ids
        if flight in stream.stale:
            stream.stale.remove(flight)
            return
        assert stream.flights.popleft() is flight
        num_accepted = len(token_ids) - 1
        self.num_accepted += num_accepted
        self.num_verified += min(num_accepted + 1, len(flight.token_ids) - 1)
        stream.length += len(token_ids)
        stream.last = token_ids[-1]
        goes_on = token_ids == (*flight.token_ids[1:], flight.guess)
        if not stream.flights:
            self._verifier.cache.commit(stream.row, verdict.result.rows)
        elif not goes_on:
            stream.stale |= set(stream.flights)
            stream.flights.clear()
            self._verifier.cache.truncate(stream.row, stream.length - 1)
        plan = self._planning(self)
        if not goes_on or plan.depth == 1:  # the draft begins behind the target's own token
            stream.ready_s = self._clock() + self._draft_s * plan.num_draft_tokens
