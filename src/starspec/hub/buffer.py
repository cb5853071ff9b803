"""The global request buffer (StarSD 4.1): who owes growth, who holds a row, and the draft step that comes next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from starspec.config import MAX_DRAFT_TOKENS, MAX_TOP_K, MaxBatch
from starspec.errors import OurBug
from starspec.hub.drafter import Drafter, Growth
from starspec.hub.sequence import DraftSequence
from starspec.ids import LinkId
from starspec.policy.batch_limit import BatchLimit
from starspec.policy.capacity import DraftStepCost
from starspec.policy.draft_batch import DraftStep, DraftStepSnapshot, Portion, SequenceView, TagKey, choose_step
from starspec.policy.draft_step_times import DraftStepTimes
from starspec.policy.fairness import RoundRobin, choose_fairly
from starspec.policy.run_ahead_width import AheadWidth
from starspec.wire.messages import Close, Open, Verdict

SHORT_PAST: Final = MAX_TOP_K + 1  # tokens: one no longer is read like a draft step of a tree, and is no prompt
MOST_COMMITTED: Final = MAX_DRAFT_TOKENS + 1  # tokens that one verdict adds; a head reads all of them anew


class RequestBuffer:
    """Sequences that owe growth, in order of arrival, and the rows that sequences grow in.

    Args:
        drafter: owns the rows.
        prefill_chunk: prompt tokens in one draft step, at most.
        max_batch: sequences in one draft step, at most.
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
        self._round_robin = RoundRobin()
        self._waiting: dict[TagKey, DraftSequence] = {}  # in order of arrival
        self._holders: dict[TagKey, DraftSequence] = {}  # sequences with a row
        self._preparing: dict[TagKey, DraftSequence] = {}  # in verification, and perhaps with more to prepare
        self._in_flight: list[DraftSequence] = []
        self._ahead: list[Growth] = []  # of the draft step in flight, if nobody waits for it
        self._times, self._limit, self._width = DraftStepTimes(), BatchLimit(), AheadWidth()
        self._settled: Sequence[
            DraftSequence
        ] = ()  # who grew in the last draft step and will in the next; () = unknown

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

    def join(self, link_id: LinkId, weight: float) -> None:
        """A target comes, with so much weight."""
        self._round_robin = self._round_robin.with_weight(link_id, weight)

    def leave(self, link_id: LinkId) -> None:
        """A target has gone; its sequences are removed one by one."""
        self._round_robin = self._round_robin.without(link_id)

    @property
    def waiting_targets(self) -> set[LinkId]:
        """Those with sequences that owe growth."""
        return {key.link_id for key in self._waiting}

    @property
    def weights(self) -> Mapping[LinkId, float]:
        """Of every target."""
        return self._round_robin.weights

    @property
    def num_rows(self) -> int:
        """Of the drafter: sequences that keep what is known of them at the same time."""
        return len(self._holders) + self._drafter.num_free_rows

    @property
    def step_cost(self) -> DraftStepCost | None:
        """Of a draft step without prompts; None before the first."""
        return self._times.cost

    @property
    def max_sequences(self) -> int | None:
        """In the next draft step, at most; None = all that wait."""
        return self._limit.max_sequences if self._max_batch == "auto" else self._max_batch

    def update(self, sequence: DraftSequence) -> None:
        """Take in what the sequence owes now. One that waits already keeps its place in the line;
        one whose target has not said all that it needs is not in it.

        Effects: a sequence that can never grow again gives its row back.
        """
        self._settled = ()
        if not sequence.room:
            self._free(sequence)
        if self._is_due(sequence):
            self._waiting[sequence.key] = sequence
        else:
            self._waiting.pop(sequence.key, None)
        if sequence.in_verification is not None and sequence.ahead_choice.mode != "off":
            self._preparing[sequence.key] = sequence
        else:
            self._preparing.pop(sequence.key, None)

    def remove(self, sequence: DraftSequence) -> None:
        """Forget the sequence and free its row."""
        self._settled = ()
        self._free(sequence)
        self._waiting.pop(sequence.key, None)
        self._preparing.pop(sequence.key, None)

    def run_step(self, now: float) -> tuple[DraftStep, list[DraftSequence]]:
        """Choose the next draft step and forward it.

        Returns: the draft step and the sequences in it, in order. They stay in flight until `land`.
        Raises: whatever the drafter raises; the sequences are then still in flight.
        """
        draft_step, self._round_robin = self._choose_step()
        if not draft_step.portions:
            raise OurBug(f"nothing was chosen for a draft step, of {list(self._waiting)}")
        for key in draft_step.evicted:
            self._free(self._holders[key])
        growths = [self._begin(portion, draft_step, now) for portion in draft_step.portions]
        self._drafter.grow(growths)
        for sequence in self._in_flight:
            sequence.is_read |= sequence.tree.is_rooted
        if not self._settled and not draft_step.has_prefill:
            self._settled = self._who_goes_on()
        return draft_step, self._in_flight

    def run_ahead(self, is_obsolete: Callable[[], bool] | None = None) -> int:
        """Grow trees whose proposals are in verification by one draft step, for the proposals after those.

        Args:
            is_obsolete: whether, by what has arrived meanwhile, nothing of the draft step is of use any more.
        Returns: the nodes forwarded; 0 if there is nothing to prepare, and nothing was forwarded then. Their sequences
            stay in flight until `land`.
        Raises: as run_step; ForwardAborted if the draft step was in vain.
        """
        growths: list[Growth] = []
        num_each, num_more = divmod(self._width.choose(len(self._preparing)), len(self._preparing))
        for key, sequence in list(self._preparing.items()):
            share = num_each + (len(growths) < num_more)
            if not share:
                break
            del self._preparing[key]
            nodes = sequence.to_prepare(min(share, self._drafter.num_preparable(sequence)))
            if nodes:
                growths.append(Growth(sequence, len(nodes), nodes))
                self._in_flight.append(sequence)
                self._preparing[key] = sequence  # behind those that wait for another draft step
        self._ahead = growths
        if growths:
            self._drafter.grow(growths, is_obsolete)
        return sum(growth.num_tokens for growth in growths)

    def is_added_to(self, sequence: DraftSequence, verdict: Verdict) -> bool:
        """Whether the draft step that runs ahead adds to the sequence's tree, and still does after the verdict."""
        return any(growth.sequence is sequence and _is_of_use(growth, verdict) for growth in self._ahead)

    def is_obsolete(self, spoken: Mapping[TagKey, Open | Verdict | Close]) -> bool:
        """Whether nothing of the draft step that runs ahead is of use once these messages are handled."""
        return not any(_is_of_use(growth, spoken.get(growth.sequence.key)) for growth in self._ahead)

    def note_time(self, draft_step: DraftStep, seconds: float) -> None:
        """A draft step took so long: what shares a draft step, and what is read of prompts beside it, follows that."""
        self._times.add(draft_step, seconds)
        if draft_step.has_prefill:
            return
        self._width.add(sum([portion.num_tokens for portion in draft_step.portions]), seconds)
        before = self._limit.max_sequences
        self._limit.add(len(draft_step.portions), seconds)
        if before != self._limit.max_sequences:
            self._settled = ()

    def note_time_ahead(self, num_nodes: int, seconds: float) -> None:
        """A draft step ahead, of so many nodes, took so long: how wide others are follows that."""
        self._width.add(num_nodes, seconds)

    def land(self) -> list[DraftSequence]:
        """End the draft step in flight. Returns: its sequences."""
        landed, self._in_flight, self._ahead = self._in_flight, [], []
        return landed

    def check_integrity(self, sequences: Iterable[DraftSequence]) -> None:
        """Raises: OurBug unless the line and the rows are those of exactly these sequences."""
        sequences = list(sequences)
        self._drafter.check_integrity(sequences)
        if self._waiting != {sequence.key: sequence for sequence in sequences if self._is_due(sequence)}:
            raise OurBug(f"the buffer holds {list(self._waiting)}, which is not who waits")
        if self._holders != {sequence.key: sequence for sequence in sequences if sequence.row is not None}:
            raise OurBug(f"rows are known of {list(self._holders)}, which is not who holds one")
        if any(sequence.in_verification is None for sequence in self._preparing.values()):
            raise OurBug(f"{list(self._preparing)} are prepared for verdicts, and not all will get one")
        if self._waiting and self._choose_step() != self._choose(self._snapshot()):
            raise OurBug(f"{self._choose_step()} is not the draft step that the scheduler would choose")

    def _is_due(self, sequence: DraftSequence) -> bool:
        return sequence.request is not None and self._drafter.can_grow(sequence)

    def _choose_step(self) -> tuple[DraftStep, RoundRobin]:
        """The scheduler's choice, found without it where it is plain: all that wait fit, or the last draft step goes
        on.
        """
        everyone = self._everyone()
        if everyone is not None:
            return everyone, self._round_robin
        if not self._settled:
            return self._choose(self._snapshot())
        draft_step = DraftStep(
            tuple(Portion(each.key, self._drafter.num_missing(each), False) for each in self._settled)
        )
        if not self._is_fair:
            return draft_step, self._round_robin
        taken = zip(self._settled, draft_step.portions, strict=True)
        return draft_step, self._round_robin.charged(portion for sequence, portion in taken if not sequence.is_urgent)

    def _everyone(self) -> DraftStep | None:
        """All that wait, if each holds a row and none reads a prompt: then nobody takes anything from anybody."""
        most = self.max_sequences
        if most is not None and len(self._waiting) > most:
            return None
        portions: list[Portion] = []
        for sequence in self._waiting.values():
            num_missing = self._drafter.num_missing(sequence)
            if sequence.row is None or _is_prefill(sequence, num_missing):
                return None
            portions.append(Portion(sequence.key, num_missing, False, not sequence.tree.is_rooted))
        return DraftStep(tuple(portions))

    def _who_goes_on(self) -> Sequence[DraftSequence]:
        """After a draft step without prompts that not all fit in: those who will be in the next one, if nothing
        happens.

        Returns: the sequences in flight, in the order of the next draft step; () if others may come before one of them.
        """
        # one that was to take a prompt over may have lost it to one that was leased its source before
        if not all(sequence.tree.is_rooted for sequence in self._in_flight):
            return ()
        if len(self._in_flight) != self.max_sequences or len(self._in_flight) == len(self._waiting):
            return ()  # there is room for more, or all fit
        order = list(self._waiting.values())
        if self._is_fair:  # who comes before all turns, in this order
            begun = [sequence for sequence in order if sequence.is_begun and not sequence.is_urgent]
            order = [sequence for sequence in order if sequence.is_urgent] + begun
        order = order[: self.max_sequences]
        in_flight = {sequence.key for sequence in self._in_flight}
        return order if in_flight == {sequence.key for sequence in order} else ()

    def _choose(self, snapshot: DraftStepSnapshot) -> tuple[DraftStep, RoundRobin]:
        """By turns, if it matters: who takes nothing from anybody owes nothing."""
        if self._is_fair and snapshot.is_contended:
            return choose_fairly(snapshot, self._round_robin)
        return choose_step(snapshot), self._round_robin

    def _snapshot(self) -> DraftStepSnapshot:
        num_free = self._drafter.num_free_rows
        num_seeking = sum(sequence.row is None for sequence in self._waiting.values())
        # who does not wait matters only when rows are short; there may be many of them
        victims = self._holders.values() if num_seeking > num_free else ()
        return DraftStepSnapshot(
            waiting=tuple(self._view(sequence) for sequence in self._waiting.values()),
            idle=tuple(self._view(sequence) for sequence in victims if sequence.key not in self._waiting),
            num_free_rows=num_free,
            prefill_chunk=self._prefill_chunk,
            chunk_beside=self._times.chunk_beside(self._prefill_chunk),
            max_sequences=self.max_sequences,
        )

    def _view(self, sequence: DraftSequence) -> SequenceView:
        num_missing = self._drafter.num_missing(sequence)
        is_prefill = _is_prefill(sequence, num_missing)
        return SequenceView(
            sequence.key,
            sequence.row is not None,
            num_missing,
            is_prefill,
            sequence.last_used_s,
            is_delayed=sequence.request is not None and sequence.request.has_prefill,
            is_begun=sequence.is_begun,
            is_urgent=sequence.is_urgent,
            next_block=sequence.next_block(len(sequence.token_ids) - num_missing) if is_prefill else None,
            is_past=not sequence.tree.is_rooted,
        )

    def _begin(self, portion: Portion, draft_step: DraftStep, now: float) -> Growth:
        sequence = self._waiting[portion.key]
        self._in_flight.append(sequence)
        if sequence.row is None:
            self._drafter.lease(sequence)
            self._holders[sequence.key] = sequence
        sequence.begin(now, draft_step.has_prefill)
        return Growth(sequence, portion.num_tokens)

    def _free(self, sequence: DraftSequence) -> None:
        sequence.num_wasted = sequence.num_ahead
        sequence.is_read = False
        self._drafter.free(sequence)
        self._holders.pop(sequence.key, None)


def _is_prefill(sequence: DraftSequence, num_missing: int) -> bool:
    """Whether what it misses is more than a verdict leaves."""
    return num_missing > (MOST_COMMITTED if sequence.is_read else SHORT_PAST)


def _is_of_use(growth: Growth, message: Open | Verdict | Close | None) -> bool:
    """Whether what is prepared outlives the message, if there is one."""
    if isinstance(message, Verdict):
        return growth.sequence.tree.are_kept(growth.prepared, message.token_ids)
    return message is None
