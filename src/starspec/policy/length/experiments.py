"""What rounds try out, so that a length policy learns what it cannot know otherwise.

Probes              Sequences whose drafts do not pay get a short draft now and then: it may pay by now.
Plain rounds        A round goes without drafts now and then. Rounds with drafts tell only an upper bound of its time.
Deferred prompts    A prompt is sent to the hub only after a round of as many sequences was measured. Otherwise the cost
                    of its prefill could not be told.

Rounds are counted, so there is no clock.
"""

from __future__ import annotations

from typing import Final

from starspec.policy.length.costs import Costs

PROBE_EVERY: Final = 16  # rounds; all sequences probe in the same rounds, since each round with a probe waits
MAX_PROBE_EVERY: Final = 64  # rounds; probes become as rare as this while no sequence's drafts pay
PROBE_ROUNDS: Final = 2  # in a row: a hub that has to prefill first may take longer than a round
PROBE_TOKENS: Final = 2
PLAIN_EVERY: Final = 64  # rounds; so often a round is measured without drafts, for each number of sequences
PLAIN_PAUSE: Final = 16  # rounds between two such measurements, whatever the numbers of sequences
MAX_DEFERRED: Final = 4  # rounds in a row


class ProbeSchedule:
    """Which rounds are for probes of idle sequences."""

    def __init__(self) -> None:
        self._pause = PROBE_EVERY
        self._begin = PROBE_EVERY
        self._was_tried = False

    def includes(self, round_number: int, *, is_drafting: bool, has_new: bool = False) -> bool:
        """Whether idle sequences may probe in this round. Ask once for each round, in order.

        Args:
            is_drafting: some sequences' drafts pay, so that probes of others cost no wait of their own.
            has_new: some sequences are new, so that it is not known whether their drafts pay.
        """
        if is_drafting:
            self._pause, self._begin = PROBE_EVERY, round_number + PROBE_EVERY
            return True
        if round_number >= self._begin + PROBE_ROUNDS:
            self._pause = min(2 * self._pause, MAX_PROBE_EVERY) if self._was_tried else PROBE_EVERY
            self._begin, self._was_tried = round_number + self._pause, False
        if has_new:
            self._pause, self._begin = PROBE_EVERY, min(self._begin, round_number + PROBE_EVERY)
        return round_number >= self._begin

    def note_tried(self) -> None:
        """A probe was drafted, so its verdict will tell something."""
        self._was_tried = True


class Experiments:
    """The experiments of one target, from round to round."""

    def __init__(self) -> None:
        self._num_rounds = 0
        self._probes = ProbeSchedule()  # of the drafter that serves
        self._is_probing = False  # probes are all that this round asks for
        self._plain_from = PLAIN_PAUSE  # round that may be the next plain one
        self._num_deferred = 0  # rounds in a row

    def begin_round(self, probes: ProbeSchedule | None = None) -> None:
        """Call once for each round, before all others.

        Args:
            probes: of the drafter that serves in this round; None = the one of the last round.
        """
        self._probes = probes or self._probes
        self._is_probing = False
        self._num_rounds += 1

    def allows_probes(self, *, is_drafting: bool, has_new: bool) -> bool:
        """As `ProbeSchedule.includes`. Ask once for each round that is not plain."""
        return self._probes.includes(self._num_rounds, is_drafting=is_drafting, has_new=has_new)

    def note_probing(self) -> None:
        """This round asks for probes, and for nothing else."""
        self._is_probing = True

    def note_drafts(self) -> None:
        """At least one draft that this round asked for has come."""
        if self._is_probing:
            self._probes.note_tried()

    def is_plain_due(self, num_sequences: int, costs: Costs) -> bool:
        """Whether this round goes without drafts, although they seem to pay. Effects: if so, it counts as measured."""
        if costs.prefill.is_going_on:  # nothing is measured beside it
            return False
        is_due = self._num_rounds >= self._plain_from and not costs.steps.is_known(num_sequences, PLAIN_EVERY)
        if is_due:
            self._plain_from = self._num_rounds + PLAIN_PAUSE
        return is_due

    def has_to_defer(self, num_sequences: int, costs: Costs) -> bool:
        """Whether prompts have to wait for the measurement of a round. Effects: it counts rounds in a row."""
        if costs.prefill.is_going_on:  # nothing is measured beside it
            return False
        has_to = not costs.steps.covers(num_sequences) and self._num_deferred < MAX_DEFERRED
        self._num_deferred = self._num_deferred + 1 if has_to else 0
        return has_to
