"""Draft steps that run ahead: trees grow for the next proposal while the last one is in verification."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from starspec.errors import ForwardAborted, OurBug
from starspec.hub.drafter import Drafter, StepInput
from starspec.hub.sequence import DraftSequence
from starspec.ids import LinkId
from starspec.policy.draft_batch import TagKey
from starspec.policy.run_ahead_width import AheadWidth, share
from starspec.wire.messages import Close, Open, TargetToHub, Verdict


class AheadSteps:
    """Prepares sequences whose proposals are in verification, in turns, while no sequence waits for a draft step."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self._width = AheadWidth()
        self._preparing: dict[TagKey, DraftSequence] = {}  # in verification, and perhaps with more to prepare
        self._in_flight: list[StepInput] = []
        self._since_s = float("-inf")  # start of the last draft step
        self._last: Sequence[DraftSequence] = ()  # sequences of the last draft step that has ended
        self._last_until_s = float("-inf")

    @property
    def can_run(self) -> bool:
        """Whether `run` may find something to do."""
        return bool(self._preparing)

    @property
    def in_flight(self) -> list[DraftSequence]:
        """Sequences of the draft step in flight."""
        return [each.sequence for each in self._in_flight]

    def update(self, sequence: DraftSequence) -> None:
        """Note whether the sequence is in verification now."""
        if sequence.round.in_verification is not None and sequence.round.runs_ahead:
            self._preparing[sequence.key] = sequence
        else:
            self._preparing.pop(sequence.key, None)

    def remove(self, sequence: DraftSequence) -> None:
        """Forget the sequence."""
        self._preparing.pop(sequence.key, None)

    def run(
        self, now: float, must_wait: Callable[[LinkId], bool], is_obsolete: Callable[[], bool] | None = None
    ) -> int:
        """Grow trees by one draft step, for the proposals after those in verification.

        Args:
            must_wait: whether nothing is to be prepared for a target.
            is_obsolete: whether messages that arrived meanwhile have made the whole draft step useless.
        Returns: the nodes forwarded; 0 if the draft step was aborted, or if there was nothing to prepare. Its sequences
            are in flight until `end`.
        Raises: whatever the drafter raises; the sequences are then still in flight.
        """
        self._since_s = now
        self._in_flight = self._choose(must_wait)
        if not self._in_flight:
            return 0
        try:
            self._drafter.grow(self._in_flight, is_obsolete)
        except ForwardAborted:
            return 0
        return sum(each.num_tokens for each in self._in_flight)

    def end(self, num_nodes: int, now: float) -> int:
        """End the draft step in flight, which forwarded so many nodes. Returns: how many sequences were in it."""
        if num_nodes:
            self._width.add(num_nodes, now - self._since_s)
        sequences = self.abandon()
        if sequences:
            self._last, self._last_until_s = sequences, now
        return len(sequences)

    def abandon(self) -> list[DraftSequence]:
        """End the draft step in flight without a trace. Returns: its sequences."""
        ended, self._in_flight = self.in_flight, []
        return ended

    def note_time(self, num_nodes: int, seconds: float) -> None:
        """A draft step that did not run ahead took so long. Later draft steps ahead get their width from such times."""
        self._width.add(num_nodes, seconds)

    def running_s(self, sequence: DraftSequence, verdict: Verdict, now: float) -> float:
        """Seconds since the start of the running draft step, if it drafts nodes that the verdict keeps; else 0."""
        is_useful = any(each.sequence is sequence and _outlives(each, verdict) for each in self._in_flight)
        return now - self._since_s if is_useful else 0.0

    def is_obsolete(self, arrived: Iterable[tuple[LinkId, TargetToHub]]) -> bool:
        """Whether the draft step in flight is useless for all its sequences once these messages are handled."""
        epochs = {each.sequence.key: each.sequence.session.epoch for each in self._in_flight}
        newest: dict[TagKey, Open | Verdict | Close] = {}
        for link_id, message in arrived:
            if isinstance(message, Open | Verdict | Close):
                key = TagKey(link_id, message.tag)
                if key in epochs and message.epoch > epochs[key]:  # else it is stale
                    newest[key] = message
        return not any(_outlives(each, newest.get(each.sequence.key)) for each in self._in_flight)

    def charge_wait(self, waiting: DraftSequence, arrived_s: float) -> None:
        """A request had to wait for the end of the last draft step: charge the wait to the other sequences in it."""
        waited_s = self._last_until_s - arrived_s
        for sequence in self._last if waited_s > 0.0 else ():
            if sequence is not waiting:  # the wait already makes its own round longer
                sequence.charge(waited_s / len(self._last))

    def check_integrity(self) -> None:
        """Raises: OurBug unless all sequences that are prepared are in verification."""
        if any(sequence.round.in_verification is None for sequence in self._preparing.values()):
            raise OurBug(f"{list(self._preparing)} are prepared for verdicts, and not all will get one")

    def _choose(self, must_wait: Callable[[LinkId], bool]) -> list[StepInput]:
        """Share the nodes of one draft step among the sequences. Effects: those with nodes move to the back.

        The others are not prepared again before their next verdict.
        """
        inputs: list[StepInput] = []
        preparing = list(self._preparing.items())
        num_nodes = self._width.choose(len(preparing))
        for key, sequence in preparing:
            most = share(num_nodes, len(preparing), len(inputs))
            if not most:
                break
            del self._preparing[key]
            if must_wait(key.link_id):
                continue
            nodes = sequence.to_prepare(min(most, self._drafter.num_preparable(sequence)))
            if nodes:
                inputs.append(StepInput(sequence, len(nodes), nodes))
                self._preparing[key] = sequence
        return inputs


def _outlives(step_input: StepInput, message: Open | Verdict | Close | None) -> bool:
    """Whether the nodes of one sequence are still of use after this message, if there is one."""
    if isinstance(message, Verdict):
        return step_input.sequence.tree.are_kept(step_input.prepared, message.token_ids)
    return message is None
