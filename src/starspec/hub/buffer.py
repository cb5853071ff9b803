"""The global request buffer (StarSD 4.1): who owes growth, who holds a row, and the layer that comes next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from starspec.config import MAX_DRAFT_TOKENS, MAX_TOP_K, MaxBatch
from starspec.errors import OurBug
from starspec.hub.drafter import Drafter, Growth
from starspec.hub.sequence import DraftSession
from starspec.ids import SessionId
from starspec.policy.batch_limit import BatchLimit
from starspec.policy.capacity import LayerCost
from starspec.policy.draft_batch import Layer, LayerSnapshot, Portion, SessionView, TagKey, choose_layer
from starspec.policy.draft_step_times import LayerTimes
from starspec.policy.fairness import Turns, choose_fairly
from starspec.policy.run_ahead_width import AheadWidth
from starspec.wire.messages import Close, Open, Verdict

SHORT_PAST: Final = MAX_TOP_K + 1  # tokens: one no longer is read like a layer of a tree, and is no prompt
MOST_COMMITTED: Final = MAX_DRAFT_TOKENS + 1  # tokens that one verdict adds; a head reads all of them anew


class RequestBuffer:
    """Sessions that owe growth, in order of arrival, and the rows that sessions grow in.

    Args:
        drafter: owns the rows.
        prefill_chunk: prompt tokens in one layer, at most.
        max_batch: sessions in one layer, at most.
        is_fair: whether targets take turns when not all can grow; else it is first come, first served.
    """

    def __init__(
        self,
        drafter: Drafter,
        *,
        prefill_chunk: int,
        max_batch: MaxBatch = "auto",
        is_fair: bool = False,
    ) -> None:
        self._drafter = drafter
        self._prefill_chunk = prefill_chunk
        self._max_batch = max_batch
        self._is_fair = is_fair
        self._turns = Turns()
        self._waiting: dict[TagKey, DraftSession] = {}  # in order of arrival
        self._holders: dict[TagKey, DraftSession] = {}  # sessions with a row
        self._preparing: dict[TagKey, DraftSession] = {}  # in verification, and perhaps with more to prepare
        self._in_flight: list[DraftSession] = []
        self._ahead: list[Growth] = []  # of the layer in flight, if nobody waits for it
        self._times, self._limit, self._width = LayerTimes(), BatchLimit(), AheadWidth()
        self._settled: Sequence[DraftSession] = ()  # who grew in the last layer and will in the next; () = unknown

    @property
    def owes_growth(self) -> bool:
        return bool(self._waiting)

    @property
    def can_run_ahead(self) -> bool:
        """Whether `run_ahead` may find something to do."""
        return bool(self._preparing)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def join(self, session_id: SessionId, weight: float) -> None:
        """A target comes, with so much weight."""
        self._turns = self._turns.with_weight(session_id, weight)

    def leave(self, session_id: SessionId) -> None:
        """A target has gone; its sessions are removed one by one."""
        self._turns = self._turns.without(session_id)

    @property
    def waiting_targets(self) -> set[SessionId]:
        """Those with sessions that owe growth."""
        return {key.session_id for key in self._waiting}

    @property
    def weights(self) -> Mapping[SessionId, float]:
        """Of every target."""
        return self._turns.weights

    @property
    def num_rows(self) -> int:
        """Of the drafter: sessions that keep what is known of them at the same time."""
        return len(self._holders) + self._drafter.num_free_rows

    @property
    def layer_cost(self) -> LayerCost | None:
        """Of a layer without prompts; None before the first."""
        return self._times.cost

    @property
    def max_sessions(self) -> int | None:
        """In the next layer, at most; None = all that wait."""
        return self._limit.max_sessions if self._max_batch == "auto" else self._max_batch

    def update(self, session: DraftSession) -> None:
        """Take in what the session owes now. One that waits already keeps its place in the line;
        one whose target has not said all that it needs is not in it.

        Effects: a session that can never grow again gives its row back.
        """
        self._settled = ()
        if not session.room:
            self._free(session)
        if self._is_due(session):
            self._waiting[session.key] = session
        else:
            self._waiting.pop(session.key, None)
        if session.in_verification is not None and session.ahead_choice.mode != "off":
            self._preparing[session.key] = session
        else:
            self._preparing.pop(session.key, None)

    def remove(self, session: DraftSession) -> None:
        """Forget the session and free its row."""
        self._settled = ()
        self._free(session)
        self._waiting.pop(session.key, None)
        self._preparing.pop(session.key, None)

    def run_layer(self, now: float) -> tuple[Layer, list[DraftSession]]:
        """Choose the next layer and forward it.

        Returns: the layer and the sessions in it, in order. They stay in flight until `land`.
        Raises: whatever the drafter raises; the sessions are then still in flight.
        """
        layer, self._turns = self._choose_layer()
        if not layer.portions:
            raise OurBug(f"nothing was chosen for a layer, of {list(self._waiting)}")
        for key in layer.evicted:
            self._free(self._holders[key])
        growths = [self._begin(portion, layer, now) for portion in layer.portions]
        self._drafter.grow(growths)
        for session in self._in_flight:
            session.is_read |= session.tree.is_rooted
        if not self._settled and not layer.has_prefill:
            self._settled = self._who_goes_on()
        return layer, self._in_flight

    def run_ahead(self, is_in_vain: Callable[[], bool] | None = None) -> int:
        """Grow trees whose proposals are in verification by one layer, for the proposals after those.

        Args:
            is_in_vain: whether, by what has arrived meanwhile, nothing of the layer is of use any more.
        Returns: the nodes forwarded; 0 if there is nothing to prepare, and nothing was forwarded then. Their sessions
            stay in flight until `land`.
        Raises: as run_layer; ForwardGivenUp if the layer was in vain.
        """
        growths: list[Growth] = []
        num_each, num_more = divmod(self._width.choose(len(self._preparing)), len(self._preparing))
        for key, session in list(self._preparing.items()):
            share = num_each + (len(growths) < num_more)
            if not share:
                break
            del self._preparing[key]
            nodes = session.to_prepare(min(share, self._drafter.num_preparable(session)))
            if nodes:
                growths.append(Growth(session, len(nodes), nodes))
                self._in_flight.append(session)
                self._preparing[key] = session  # behind those that wait for another layer
        self._ahead = growths
        if growths:
            self._drafter.grow(growths, is_in_vain)
        return sum(growth.num_tokens for growth in growths)

    def is_added_to(self, session: DraftSession, verdict: Verdict) -> bool:
        """Whether the layer that runs ahead adds to the session's tree, and still does after the verdict."""
        return any(growth.session is session and _is_of_use(growth, verdict) for growth in self._ahead)

    def is_in_vain(self, spoken: Mapping[TagKey, Open | Verdict | Close]) -> bool:
        """Whether nothing of the layer that runs ahead is of use once these messages are handled."""
        return not any(_is_of_use(growth, spoken.get(growth.session.key)) for growth in self._ahead)

    def note_time(self, layer: Layer, seconds: float) -> None:
        """A layer took so long: what shares a layer, and what is read of prompts beside it, follows that."""
        self._times.add(layer, seconds)
        if layer.has_prefill:
            return
        self._width.add(sum([portion.num_tokens for portion in layer.portions]), seconds)
        before = self._limit.max_sessions
        self._limit.add(len(layer.portions), seconds)
        if before != self._limit.max_sessions:
            self._settled = ()

    def note_time_ahead(self, num_nodes: int, seconds: float) -> None:
        """A layer ahead, of so many nodes, took so long: how wide others are follows that."""
        self._width.add(num_nodes, seconds)

    def land(self) -> list[DraftSession]:
        """End the layer in flight. Returns: its sessions."""
        landed, self._in_flight, self._ahead = self._in_flight, [], []
        return landed

    def check_integrity(self, sessions: Iterable[DraftSession]) -> None:
        """Raises: OurBug unless the line and the rows are those of exactly these sessions."""
        sessions = list(sessions)
        self._drafter.check_integrity(sessions)
        if self._waiting != {session.key: session for session in sessions if self._is_due(session)}:
            raise OurBug(f"the buffer holds {list(self._waiting)}, which is not who waits")
        if self._holders != {session.key: session for session in sessions if session.row is not None}:
            raise OurBug(f"rows are known of {list(self._holders)}, which is not who holds one")
        if any(session.in_verification is None for session in self._preparing.values()):
            raise OurBug(f"{list(self._preparing)} are prepared for verdicts, and not all will get one")
        if self._waiting and self._choose_layer() != self._choose(self._snapshot()):
            raise OurBug(f"{self._choose_layer()} is not the layer that the scheduler would choose")

    def _is_due(self, session: DraftSession) -> bool:
        return session.request is not None and self._drafter.can_grow(session)

    def _choose_layer(self) -> tuple[Layer, Turns]:
        """The scheduler's choice, found without it where it is plain: all that wait fit, or the last layer goes on."""
        everyone = self._everyone()
        if everyone is not None:
            return everyone, self._turns
        if not self._settled:
            return self._choose(self._snapshot())
        layer = Layer(tuple(Portion(each.key, self._drafter.num_missing(each), False) for each in self._settled))
        if not self._is_fair:
            return layer, self._turns
        taken = zip(self._settled, layer.portions, strict=True)
        return layer, self._turns.charged(portion for session, portion in taken if not session.is_urgent)

    def _everyone(self) -> Layer | None:
        """All that wait, if each holds a row and none reads a prompt: then nobody takes anything from anybody."""
        most = self.max_sessions
        if most is not None and len(self._waiting) > most:
            return None
        portions: list[Portion] = []
        for session in self._waiting.values():
            num_missing = self._drafter.num_missing(session)
            if session.row is None or _is_prefill(session, num_missing):
                return None
            portions.append(Portion(session.key, num_missing, False, not session.tree.is_rooted))
        return Layer(tuple(portions))

    def _who_goes_on(self) -> Sequence[DraftSession]:
        """After a layer without prompts that not all fit in: those who will be in the next one, if nothing happens.

        Returns: the sessions in flight, in the order of the next layer; () if others may come before one of them.
        """
        # one that was to take a prompt over may have lost it to one that was leased its source before
        if not all(session.tree.is_rooted for session in self._in_flight):
            return ()
        if len(self._in_flight) != self.max_sessions or len(self._in_flight) == len(self._waiting):
            return ()  # there is room for more, or all fit
        line = list(self._waiting.values())
        if self._is_fair:  # who comes before all turns, in this order
            begun = [session for session in line if session.is_begun and not session.is_urgent]
            line = [session for session in line if session.is_urgent] + begun
        line = line[: self.max_sessions]
        in_flight = {session.key for session in self._in_flight}
        return line if in_flight == {session.key for session in line} else ()

    def _choose(self, snapshot: LayerSnapshot) -> tuple[Layer, Turns]:
        """By turns, if it matters: who takes nothing from anybody owes nothing."""
        if self._is_fair and snapshot.is_contended:
            return choose_fairly(snapshot, self._turns)
        return choose_layer(snapshot), self._turns

    def _snapshot(self) -> LayerSnapshot:
        num_free = self._drafter.num_free_rows
        num_seeking = sum(session.row is None for session in self._waiting.values())
        # who does not wait matters only when rows are short; there may be many of them
        victims = self._holders.values() if num_seeking > num_free else ()
        return LayerSnapshot(
            waiting=tuple(self._view(session) for session in self._waiting.values()),
            idle=tuple(self._view(session) for session in victims if session.key not in self._waiting),
            num_free_rows=num_free,
            prefill_chunk=self._prefill_chunk,
            chunk_beside=self._times.chunk_beside(self._prefill_chunk),
            max_sessions=self.max_sessions,
        )

    def _view(self, session: DraftSession) -> SessionView:
        num_missing = self._drafter.num_missing(session)
        is_prefill = _is_prefill(session, num_missing)
        return SessionView(
            session.key,
            session.row is not None,
            num_missing,
            is_prefill,
            session.last_used_s,
            is_delayed=session.request is not None and session.request.has_prefill,
            is_begun=session.is_begun,
            is_urgent=session.is_urgent,
            next_block=session.next_block(len(session.token_ids) - num_missing) if is_prefill else None,
            is_past=not session.tree.is_rooted,
        )

    def _begin(self, portion: Portion, layer: Layer, now: float) -> Growth:
        session = self._waiting[portion.key]
        self._in_flight.append(session)
        if session.row is None:
            self._drafter.lease(session)
            self._holders[session.key] = session
        session.begin(now, layer.has_prefill)
        return Growth(session, portion.num_tokens)

    def _free(self, session: DraftSession) -> None:
        session.num_wasted = session.num_ahead
        session.is_read = False
        self._drafter.free(session)
        self._holders.pop(session.key, None)


def _is_prefill(session: DraftSession, num_missing: int) -> bool:
    """Whether what it misses is more than a verdict leaves."""
    return num_missing > (MOST_COMMITTED if session.is_read else SHORT_PAST)


def _is_of_use(growth: Growth, message: Open | Verdict | Close | None) -> bool:
    """Whether what is prepared outlives the message, if there is one."""
    if isinstance(message, Verdict):
        return growth.session.tree.are_kept(growth.prepared, message.token_ids)
    return message is None
