"""One process that is a stage of a pipe, or a spare, as the coordinator knows it, and how long it is waited for."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Final

from starspec.ids import PipeEpoch, StageId
from starspec.policy.stage_liveness import BEATS, FIRST_ROUND_TRIP_S, StageLiveness
from starspec.stages.pipe import Pipe
from starspec.wire.messages import Attached

NO_EPOCH: Final = PipeEpoch(0)
MAX_FAULTS: Final = 3  # of a stage; then others are chosen before it ...
FORGIVEN_S: Final = 60.0  # ... until there was no fault for so long


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimes:
    """How long a coordinator waits, in seconds."""

    seen_within_s: float = 2.0  # a dead or paused stage is seen so soon
    wait_s: float = 30.0  # for a stage in place of it; then requests end

    @property
    def beat_s(self) -> float:
        return self.seen_within_s / BEATS


USUAL_TIMES: Final = StageTimes()


@dataclass(slots=True)
class Member:
    """A process that is a stage of the pipe, or a spare."""

    name: str  # its endpoint
    what: Attached | None = None  # as it was when it was last attached; None = it never was
    liveness: StageLiveness | None = None  # None = not attached: it was found dead, or it is not known yet
    is_there: bool = False  # it was heard since it was found dead
    stage_id: StageId | None = None  # of the process, as it said since then
    why_unfit: str | None = None  # why it can take no position, although it answers
    asked_s: float = -inf  # when it was last sent an `Attach`
    last_round_trip_s: float = FIRST_ROUND_TRIP_S  # the last one that was known before it left
    known_epoch: PipeEpoch = NO_EPOCH  # the highest that it told
    expected: int = 1  # number of the traversal that it expects, as it told last
    num_faults: int = 0  # of late
    fault_s: float = -inf  # when the last one was

    @property
    def round_trip_s(self) -> float:
        return self.last_round_trip_s if self.liveness is None else self.liveness.round_trip_s

    def blame(self, now: float) -> None:
        """What was wrong was its fault, or perhaps."""
        self.num_faults = 1 if now - self.fault_s > FORGIVEN_S else self.num_faults + 1
        self.fault_s = now

    def is_faulty(self, now: float) -> bool:
        return self.num_faults >= MAX_FAULTS and now - self.fault_s <= FORGIVEN_S

    def begin(self, what: Attached, seen_within_s: float, now: float) -> None:
        """It is attached."""
        self.what, self.is_there, self.known_epoch = what, True, what.pipe_epoch
        self.stage_id, self.expected, self.liveness = what.stage_id, 1, StageLiveness(seen_within_s, now)

    def leave(self) -> None:
        """It is not attached any more; whether it is there is another question."""
        if self.liveness is not None:
            self.last_round_trip_s, self.liveness = self.liveness.round_trip_s, None

    def lose(self) -> None:
        """It is gone."""
        self.leave()
        self.is_there, self.stage_id = False, None

    def is_same_as(self, other: Member) -> bool:
        """Whether two names lead to one process, as far as both have said who they are."""
        return self.stage_id is not None and self.stage_id == other.stage_id

    def fits(self, wanted: Attached, pipe: Pipe) -> bool:
        """Whether it can be the stage that `wanted` was."""
        return self.why_not(wanted, pipe) is None

    def why_not(self, wanted: Attached, pipe: Pipe) -> str | None:
        """Why it cannot be the stage that `wanted` was; None if it can."""
        if self.what is None:
            return "it has not said what it is"
        why = pipe.why_no_place(self.what)
        if why is None and (self.what.start, self.what.end) != (wanted.start, wanted.end):
            return f"it has layers {self.what.start}:{self.what.end}, not {wanted.start}:{wanted.end}"
        return why
