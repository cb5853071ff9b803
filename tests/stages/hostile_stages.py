"""Stages that are hostile or mad, in a pipe in virtual time. Each is honest until it is told to go mad."""

from __future__ import annotations

import contextlib
import math
import random
import time
from collections.abc import Sequence

import msgspec
from memory_pipe import MemoryPipe
from msgspec.structs import replace
from toy_stages import VOCAB

from starspec.errors import LocalProtocolError, PeerProtocolError
from starspec.ids import PipeEpoch
from starspec.models.runner import Stage
from starspec.stages.frames import Frame
from starspec.stages.worker import StageWorker
from starspec.wire.codec import MAX_TRAVERSAL_BYTES, Decoder, encode
from starspec.wire.messages import (
    Alive,
    Attach,
    Attached,
    Beat,
    CoordinatorToStage,
    Gap,
    Identity,
    Landing,
    Outdated,
    Refused,
    StageToCoordinator,
    StageWork,
    VerdictOf,
)
from starspec.wire.stage_session import highest_epoch

HEARD_S = 1e-3  # what it takes a coordinator to hear one message of a flood
NUM_SPAM = 4  # messages of a flood at once
NOISE = "\x1b[2J\r\n" * 150_000
FOREVER = 2**52 - 1
DECODER: Decoder[StageToCoordinator] = Decoder(StageToCoordinator, max_frame_bytes=MAX_TRAVERSAL_BYTES)
Answer = Frame | Landing | Gap | None


class RawFrame(Frame):
    """Three frames of any content."""

    @property
    def parts(self) -> list[bytes | memoryview]:
        return [self.judges, self.judges, self.hidden]


class MadPipe(MemoryPipe):
    """Args: kind: of the madness of one stage. at: which one."""

    def __init__(self, runners: Sequence[Stage], kind: type[MadStage], at: int) -> None:
        super().__init__(runners, lambda: 0.01)
        self.mad = kind(runners[at], self, at)
        self.workers[at] = self.mad

    def go_mad(self) -> None:
        self.mad.is_mad = True

    @property
    def epoch(self) -> PipeEpoch:
        """That of the first stage, which is never mad."""
        return self.workers[0].session.pipe_epoch

    def receive(self, timeout_s: float) -> list[tuple[int, StageToCoordinator]]:
        if self.mad.is_mad:
            self.mad.spam()
        self.now += HEARD_S * len(self._answers)
        while self._events and self._events[0][0] <= self.now:
            self._step()
        return super().receive(timeout_s)

    def _answer(self, stage: int, message: StageToCoordinator) -> None:
        with contextlib.suppress(PeerProtocolError, LocalProtocolError):  # as ZmqPipe does
            super()._answer(stage, message)

    def tell(self, stage: int, frame: bytes, delay_s: float = 0.0) -> None:
        """A frame for the coordinator, as ZmqPipe hands it over."""
        try:
            message = DECODER.decode(frame)
        except PeerProtocolError:
            return
        if delay_s:
            self.later(delay_s, stage, message)
        else:
            self._answers.append((stage, message))

    def later(self, delay_s: float, stage: int, message: StageToCoordinator) -> None:
        arrives_s = self.now + delay_s
        link = ("late", stage, id(message))
        self._arrivals[link] = arrives_s
        self._at(link, lambda: self._answers.append((stage, message)))


class MadStage(StageWorker):
    """The kinds derive from it. This one is honest."""

    def __init__(self, runner: Stage, pipe: MadPipe, index: int) -> None:
        super().__init__(runner, pipe.clock)
        self.is_mad = False
        self.dice = random.Random(3)
        self.pipe, self.index = pipe, index

    @property
    def epoch(self) -> PipeEpoch:
        return self.session.pipe_epoch

    def say(self, message: StageToCoordinator, delay_s: float = 0.0) -> None:
        self.pipe.tell(self.index, encode(message, 2**30), delay_s)

    def say_raw(self, message: dict[str, object]) -> None:
        self.pipe.tell(self.index, msgspec.msgpack.encode(message))

    def control(self, message: CoordinatorToStage) -> Attached | Outdated | Refused | Alive | Gap | Identity | None:
        answer = super().control(message)
        return self.answer(message, answer) if self.is_mad else answer

    def take(self, parts: Sequence[bytes | memoryview], wait_s: float = 0.0) -> Answer:
        answer = super().take(parts, wait_s)
        return self.computed(answer) if self.is_mad else answer

    def answer(self, message: CoordinatorToStage, honest):  # type: ignore[no-untyped-def]
        """What it says to a control message."""
        return honest

    def computed(self, honest: Answer) -> Answer:
        """What becomes of a traversal."""
        return self.landed(honest) if isinstance(honest, Landing) else honest

    def landed(self, honest: Landing) -> Answer:
        return honest

    def spam(self) -> None:
        """What it sends all the time."""


class EditsVerdicts(MadStage):
    def landed(self, honest: Landing) -> Answer:
        return replace(honest, verdicts=[self.edit(each) for each in honest.verdicts])

    def edit(self, verdict: VerdictOf) -> VerdictOf:
        raise NotImplementedError


# ---------------------------------------------------------------- what the last one may land


class UnaskedLandings(MadStage):
    def spam(self) -> None:
        for number in range(NUM_SPAM):
            self.say(Landing(self.pipe.epoch, self.session.next_number + number, []))


class DuplicateLandings(MadStage):
    def landed(self, honest: Landing) -> Answer:
        self.say(honest)
        return honest


class TooManyVerdicts(MadStage):
    def landed(self, honest: Landing) -> Answer:
        return replace(honest, verdicts=[*honest.verdicts, VerdictOf([1])])


class TooFewVerdicts(MadStage):
    def landed(self, honest: Landing) -> Answer:
        return replace(honest, verdicts=honest.verdicts[1:])


class OutOfVocabulary(EditsVerdicts):
    def edit(self, verdict: VerdictOf) -> VerdictOf:
        return replace(verdict, token_ids=[*verdict.token_ids[:-1], self.dice.choice((VOCAB, 2**31 - 1))])


class NoTokens(EditsVerdicts):
    """As if every window stood on refused tokens: a request that believes it never ends."""

    def edit(self, verdict: VerdictOf) -> VerdictOf:
        return VerdictOf()


class FailsAll(EditsVerdicts):
    """Says of every window that its law has failed."""

    def edit(self, verdict: VerdictOf) -> VerdictOf:
        return VerdictOf(error=NOISE[:2000])


class OtherPaths(EditsVerdicts):
    def edit(self, verdict: VerdictOf) -> VerdictOf:
        return VerdictOf([1, 2, 3], (0, 2))


class NodesThatAreNotThere(EditsVerdicts):
    def edit(self, verdict: VerdictOf) -> VerdictOf:
        return VerdictOf([1] * 65, tuple(range(64)))


class OtherTokensThanTheDraft(EditsVerdicts):
    def edit(self, verdict: VerdictOf) -> VerdictOf:
        drafted = [(each + 1) % VOCAB for each in verdict.token_ids[:-1]]
        return replace(verdict, token_ids=[*drafted, *verdict.token_ids[-1:]])


class RelaxedOfStrict(EditsVerdicts):
    def edit(self, verdict: VerdictOf) -> VerdictOf:
        return VerdictOf([1, 2], (0,), relaxed=(0,) * 64)


class UnaskedLogprobs(EditsVerdicts):
    def edit(self, verdict: VerdictOf) -> VerdictOf:
        return replace(verdict, logprobs=[(-1.0, [(2**31 - 1, -1.0)] * 1000) for _ in verdict.token_ids])


class UnaskedDivergences(EditsVerdicts):
    def edit(self, verdict: VerdictOf) -> VerdictOf:
        return replace(verdict, divergences=(5.0,) * 65)


class NotANumber(EditsVerdicts):
    def edit(self, verdict: VerdictOf) -> VerdictOf:
        return replace(verdict, divergences=(math.nan, math.inf))


class LargestNumbers(MadStage):
    """That a decoder lets through."""

    def landed(self, honest: Landing) -> Answer:
        return replace(
            honest, work=(*honest.work[:-1], replace(honest.work[-1], compute_s=1e9, wait_s=1e9, num_bytes=2**28))
        )


class AbsurdNumbers(MadStage):
    def landed(self, honest: Landing) -> Answer:
        seconds = self.dice.choice((math.nan, math.inf, -math.inf, -1.0, 1e308))
        num_bytes = self.dice.choice((2**53 - 1, 2**63))
        return replace(honest, work=(*honest.work[:-1], StageWork(seconds, seconds, num_bytes, num_bytes, 2, 3)))


class NoTimeAtAll(MadStage):
    """As if no stage computed: what is planned from it must be finite."""

    seconds = (0.0, 5e-324)

    def landed(self, honest: Landing) -> Answer:
        nothing_s = self.dice.choice(self.seconds)
        return replace(
            honest, work=tuple(StageWork(nothing_s, 1e9, 0, 0, each.start, each.end) for each in honest.work)
        )


class VeryMuchWork(MadStage):
    def landed(self, honest: Landing) -> Answer:
        self.say(replace(honest, work=honest.work * 1000))
        return None


class HugeLandings(MadStage):
    """As large as a socket lets through, with fields that nobody knows, or with lists of them."""

    def landed(self, honest: Landing) -> Answer:
        self.say_raw({"type": "landing", "pipe_epoch": self.epoch, "number": honest.number, "verdicts": [0] * 10**5})
        more = "x" * (MAX_TRAVERSAL_BYTES - 99)
        self.say_raw({"type": "alive", "pipe_epoch": self.epoch, "sent_s": 0.0, "more": more})
        return None


class LeavesStagesOut(MadStage):
    """As if a stage before it had been skipped."""

    def landed(self, honest: Landing) -> Answer:
        return replace(honest, work=honest.work[1:])


class WrongEpochs(MadStage):
    def landed(self, honest: Landing) -> Answer:
        return replace(honest, pipe_epoch=self.dice.choice((1, self.epoch + 1, 2**53 - 1)))


class WrongNumbers(MadStage):
    def landed(self, honest: Landing) -> Answer:
        return replace(honest, number=self.dice.choice((honest.number + 1, max(1, honest.number - 1), 2**53 - 1)))


class LandsNothing(MadStage):
    def landed(self, honest: Landing) -> Answer:
        return None


class LandsEveryOther(MadStage):
    def landed(self, honest: Landing) -> Answer:
        return honest if honest.number % 2 else None


class LandsMinutesLater(MadStage):
    def landed(self, honest: Landing) -> Answer:
        self.say(honest, delay_s=180.0)
        return None


class BusyForEver(MadStage):
    """It says that it computes, and never lands anything."""

    def answer(self, message: CoordinatorToStage, honest):  # type: ignore[no-untyped-def]
        return replace(honest, is_busy=True) if isinstance(honest, Alive) else honest

    def landed(self, honest: Landing) -> Answer:
        return None


# ---------------------------------------------------------------- what any of them may say


class Silent(MadStage):
    def answer(self, message: CoordinatorToStage, honest):  # type: ignore[no-untyped-def]
        return None

    def computed(self, honest: Answer) -> Answer:
        return None


class FloodsAlive(MadStage):
    def spam(self) -> None:
        for epoch in (self.epoch, self.pipe.epoch, PipeEpoch(2**53 - 1)):
            self.say(Alive(epoch, self.dice.choice((0.0, 1e9, self.pipe.now)), is_busy=True))


class FloodsGaps(MadStage):
    def spam(self) -> None:
        self.say(Gap(self.epoch, 1, NOISE[:2000]))


class GapsForTraversals(MadStage):
    def computed(self, honest: Answer) -> Answer:
        return Gap(self.epoch, 2**53 - 1, NOISE)


class Refuses(MadStage):
    def spam(self) -> None:
        self.say(Refused("full", NOISE[:2000], 0.0))


class RefusesToBeAttached(MadStage):
    def answer(self, message: CoordinatorToStage, honest):  # type: ignore[no-untyped-def]
        return Refused("invalid", NOISE[:999_000]) if isinstance(message, Attach) else honest

    def computed(self, honest: Answer) -> Answer:
        return Gap(self.epoch, 1, "no")


class AttachedUnasked(MadStage):
    """As something else, and in epochs that nobody has begun."""

    def spam(self) -> None:
        what = self._attached()
        self.say(replace(what, pipe_epoch=PipeEpoch(self.epoch + 1)))
        self.say(replace(what, start=0, end=1, fingerprint="other", num_rows=2**20))
        self.say(replace(what, pipe_epoch=PipeEpoch(FOREVER)))


class AttachedAsAnother(MadStage):
    """Once it is attached anew."""

    def answer(self, message: CoordinatorToStage, honest):  # type: ignore[no-untyped-def]
        if not isinstance(honest, Attached):
            return honest
        change = self.dice.choice(({"fingerprint": "other"}, {"start": 7, "end": 3}, {"num_rows": 1}, {"max_len": 0}))
        return replace(honest, **change)

    def computed(self, honest: Answer) -> Answer:
        return Gap(self.epoch, 1, "no")


class OutdatedForEver(MadStage):
    """Whatever it is asked, it knows a later epoch: one that can be, or the highest number."""

    highest = False

    def answer(self, message: CoordinatorToStage, honest):  # type: ignore[no-untyped-def]
        return Outdated(self.newer(message), self.session.stage_id) if isinstance(message, Attach | Beat) else honest

    def newer(self, message: Attach | Beat) -> PipeEpoch:
        return PipeEpoch(message.pipe_epoch + 5)

    def computed(self, honest: Answer) -> Answer:
        return Gap(self.epoch, 1, "no")


class KnowsTheLastEpoch(OutdatedForEver):
    def newer(self, message: Attach | Beat) -> PipeEpoch:
        return PipeEpoch(FOREVER)


class KnowsTheEpochOfNow(OutdatedForEver):
    """Almost the highest that stages with this clock take."""

    def newer(self, message: Attach | Beat) -> PipeEpoch:
        return PipeEpoch(highest_epoch(time.time() - 1.0))


class Garbage(MadStage):
    def spam(self) -> None:
        self.pipe.tell(self.index, self.dice.randbytes(200))
        self.say_raw({"type": "landing", "number": [[[[]]]]})

    def computed(self, honest: Answer) -> Answer:
        return RawFrame(honest.traversal, b"\xc1" * 200, b"") if isinstance(honest, Frame) else None


# ---------------------------------------------------------------- what one that is not the last may pass on


class PassesOn(MadStage):
    def computed(self, honest: Answer) -> Answer:
        return self.edit(honest) if isinstance(honest, Frame) else honest

    def edit(self, frame: Frame) -> Frame | None:
        raise NotImplementedError


class FewerStates(PassesOn):
    def edit(self, frame: Frame) -> Frame:
        return frame._replace(hidden=bytes(frame.hidden)[:-1])


class StatesOfAnotherDtype(PassesOn):
    def edit(self, frame: Frame) -> Frame:
        return frame._replace(hidden=bytes(frame.hidden)[::2])


class StatesThatAreNoNumbers(PassesOn):
    def edit(self, frame: Frame) -> Frame:
        return frame._replace(hidden=b"\xff" * len(frame.hidden))


class SkipsTraversals(PassesOn):
    def edit(self, frame: Frame) -> Frame | None:
        return frame if frame.traversal.number % 3 else None


class OtherEpochs(PassesOn):
    def edit(self, frame: Frame) -> Frame:
        return frame._replace(traversal=replace(frame.traversal, pipe_epoch=PipeEpoch(2**53 - 1)))


class OtherRows(PassesOn):
    def edit(self, frame: Frame) -> Frame:
        windows = [replace(each, row=each.row + 1000) for each in frame.traversal.windows]
        return frame._replace(traversal=replace(frame.traversal, windows=windows))


class OtherPositions(PassesOn):
    def edit(self, frame: Frame) -> Frame:
        windows = [replace(each, base=each.base + 1, path=()) for each in frame.traversal.windows]
        return frame._replace(traversal=replace(frame.traversal, windows=windows))


class FreesRows(PassesOn):
    def edit(self, frame: Frame) -> Frame:
        return frame._replace(traversal=replace(frame.traversal, changes=[*frame.traversal.changes] * 2))


class DropsWindows(PassesOn):
    """Without being told to: the last stage then says nothing about them."""

    def edit(self, frame: Frame) -> Frame:
        windows = [replace(each, is_dropped=True) for each in frame.traversal.windows]
        return frame._replace(traversal=replace(frame.traversal, windows=windows), hidden=b"")


class NoJudges(PassesOn):
    def edit(self, frame: Frame) -> Frame:
        return frame._replace(judges=b"\x80")


LANDING: list[type[MadStage]] = [
    UnaskedLandings,
    DuplicateLandings,
    TooManyVerdicts,
    TooFewVerdicts,
    OutOfVocabulary,
    NoTokens,
    OtherPaths,
    NodesThatAreNotThere,
    OtherTokensThanTheDraft,
    RelaxedOfStrict,
    UnaskedLogprobs,
    UnaskedDivergences,
    NotANumber,
    LargestNumbers,
    AbsurdNumbers,
    NoTimeAtAll,
    VeryMuchWork,
    LeavesStagesOut,
    HugeLandings,
    WrongEpochs,
    WrongNumbers,
    LandsNothing,
    LandsEveryOther,
    LandsMinutesLater,
    BusyForEver,
]
TALKING: list[type[MadStage]] = [
    Silent,
    FloodsAlive,
    FloodsGaps,
    GapsForTraversals,
    Refuses,
    RefusesToBeAttached,
    AttachedUnasked,
    AttachedAsAnother,
    OutdatedForEver,
    KnowsTheLastEpoch,
    KnowsTheEpochOfNow,
    Garbage,
]
PASSING: list[type[MadStage]] = [
    FewerStates,
    StatesOfAnotherDtype,
    StatesThatAreNoNumbers,
    SkipsTraversals,
    OtherEpochs,
    OtherRows,
    OtherPositions,
    FreesRows,
    DropsWindows,
    NoJudges,
]
