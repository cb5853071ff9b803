"""What is owed to one tag, and how its target bears to wait for it. No I/O and no clock of its own.

A late proposal is waited for once. Rounds go on without it, and nothing more is told of its tag while it may be of
use. Who is late behind prompts that the hub has to read, or behind what it was told in a pause, is let off; who is late
again and again is asked ever more rarely (`patience.py`). Targets of ours and vLLM's wait by these rules alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from starspec.policy.patience import Patience, Reading


@dataclass(slots=True, eq=False, kw_only=True)
class Waiting:
    """The target's side of one tag, as far as time goes."""

    is_awaited: bool = False  # the next round waits for a proposal
    is_opening: bool = False  # `Open` is not answered yet: the hub may have a long prompt to read
    is_behind: bool = False  # nor is a `Verdict`, and a round has waited for it ...
    is_excused: bool = False  # ... while the hub had to read first
    has_to_catch_up: bool = False  # the hub was told of tokens without a question, and may not have read them yet
    reading: Reading = field(default_factory=Reading)
    patience: Patience = field(default_factory=Patience)

    def has_to_be_answered(self, *, may_be_of_use: bool) -> bool:
        """Whether nothing more is told before the hub has answered: it reads, or its answer may be of use."""
        return self.is_opening or (self.is_behind and (self.is_excused or may_be_of_use))

    def begin_opening(self, now: float) -> None:
        """An `Open` goes out."""
        self.is_opening = True
        self.reading.begin(now)

    def pass_by(self) -> None:
        """Go on without an answer, which is still to come."""
        self.is_awaited, self.is_behind = False, not self.is_opening

    def miss(self, now: float, has_prompts_to_read: bool) -> bool:
        """What was awaited did not come in time. Rounds go on, and the tag joins when the hub answers.

        If that goes on, stop paying the deadline for it.

        Args:
            has_prompts_to_read: the hub has some of this target's, which excuses one delay. So does a pause: what it
                was told meanwhile it has to read.

        Returns: whether the hub is to blame.
        """
        self.pass_by()
        if self.is_opening:
            return False
        if self.has_to_catch_up:
            self.is_excused = True
            self.reading.begin_catching_up(now)
        elif has_prompts_to_read and self.patience.forgive():
            self.is_excused = True
            self.reading.begin(now)
        else:
            self.patience.note_miss(now)
        return not self.is_excused

    def take_answer(self, now: float, *, is_hopeless: bool) -> None:
        """What was told is answered. If it was waited for, it is in time; but to wait for a hopeless one is in vain.

        Args:
            is_hopeless: as `Proposal.is_hopeless`; each would cost a round its way to the hub and back.
        """
        if self.is_awaited and is_hopeless:
            self.patience.note_miss(now)
        elif self.is_awaited:
            self.patience.note_in_time()
        self.settle()
        self.reading.end()

    def settle(self) -> None:
        """What was told is answered, or never will be."""
        self.is_awaited = self.is_opening = self.is_behind = self.is_excused = self.has_to_catch_up = False

    def forget_delays(self) -> None:
        """The hub that is found next has kept nobody waiting yet."""
        self.patience, self.reading = Patience(), Reading()


def miss_all(
    late: Sequence[Waiting], everybody: Iterable[Waiting], with_hub: Patience, now: float, *, is_for_all: bool
) -> None:
    """A round's deadline has passed: each that is late misses, and the hub is to blame if nobody was answered.

    Args:
        everybody: all tags of the target.
        with_hub: the patience with the hub, whoever is late. One round in which all are excused is forgiven.
        is_for_all: whether all that was awaited is late.
    """
    has_prompts_to_read = any(each.is_opening for each in everybody)
    missed = [each for each in late if each.miss(now, has_prompts_to_read)]
    is_blamed = bool(missed) or (any(each.is_excused for each in late) and not with_hub.forgive())
    if is_blamed and is_for_all:
        with_hub.note_miss(now)
