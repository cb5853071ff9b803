"""Which processes are the stages of a pipe now. No I/O: it says what to send, and hears what has come.

    UP ── a stage is silent, breaks off, or nothing lands ──> DOWN ── all positions are attached again ──> UP
                                                               │ nobody takes a position for `wait_s`
                                                               └──> it has given up, and goes on trying

A *position* is a range of layers. It belongs to the stage that the operator names for it. If that one is gone, a spare
with the same layers of the same model takes it, and the one that comes back is a spare then. All stages are attached
anew for each change, so that they all have empty rows.

If the link between two stages is cut, the next attempt is made without it, if spares allow that (`attempt.py`,
`chain_choice.py`).

A stage may also be mad. One that was at fault again and again is the last choice for its position, and attempts that
fail again and again have pauses between them. What a spare says harms nobody else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from math import fsum, inf
from typing import Final

from starspec.ids import PipeEpoch
from starspec.policy.backoff import Backoff
from starspec.stages.attempt import Attempt
from starspec.stages.chain_choice import ChainChoice
from starspec.stages.member import Member, StageTimes
from starspec.stages.pipe import Pipe, misled, why_misled
from starspec.stages.probes import Probes
from starspec.wire.messages import (
    Alive,
    Attach,
    Attached,
    Beat,
    CoordinatorToStage,
    Detach,
    Gap,
    Identify,
    Identity,
    Outdated,
    Refused,
)
from starspec.wire.stage_news import Broken, FromStage
from starspec.wire.stage_session import NOT_IN_PIPE, highest_epoch

Addressed = tuple[int, CoordinatorToStage]
"""A message, and the member that gets it."""
NUM_FREE_LOSSES: Final = 3  # of the pipe in a row, without a pause before the next attempt
LOSS_PAUSE_S: Final = 0.25
LONGEST_LOSS_PAUSE_S: Final = 2.0
STABLE_S: Final = 10.0  # a pipe that is up for so long has not failed


class Membership:
    """The members of one pipe.

    Args:
        pipe: all stages, attached just now. Later ones are like it.
        spares: names of processes that may take a position. They need not run.
        times: how long to wait.
        now: seconds.
        unix_clock: bounds the epochs that members may say that they know.
    """

    def __init__(
        self,
        pipe: Pipe,
        spares: Sequence[str],
        times: StageTimes,
        now: float,
        unix_clock: Callable[[], float] = time.time,
    ) -> None:
        self.members = [Member(name) for name in (*pipe.names, *spares)]
        self.chain = tuple(range(len(pipe.names)))  # the member in each position
        self.pipe_epoch = pipe.epoch  # of the pipe as it came up last
        self.epoch = PipeEpoch(pipe.epoch + 1)  # the highest that was tried; probes have it, and no traversal has
        self.reason: str | None = None  # why the pipe is down; None = it is up
        self.has_given_up = False
        self._pipe = pipe
        self._times = times
        self._unix_clock = unix_clock
        self._failures = Backoff(LOSS_PAUSE_S, LONGEST_LOSS_PAUSE_S, STABLE_S, NUM_FREE_LOSSES)
        self._again_s = -inf  # when the next attempt may begin
        self._attempt: Attempt | None = None
        self._choice = ChainChoice(pipe, self.members)
        self._probes = Probes(pipe, self.members)
        self._down_s = inf
        self._heard_s = now  # when messages were last taken in
        for member, what in zip(self.members, pipe.stages, strict=False):
            member.begin(what, times.seen_within_s, now)

    @property
    def is_up(self) -> bool:
        return self.reason is None

    @property
    def round_trips_s(self) -> float:
        """Of all stages, one after another."""
        return fsum(self.members[index].round_trip_s for index in self.chain)

    def lose(self, reason: str, now: float, blamed: Iterable[int] = ()) -> None:
        """The pipe is down from now on. Args: blamed: members whose fault it may be."""
        self.blame(blamed, now)
        if self.is_up:
            self.reason, self._down_s = reason, now
            self._again_s = now + self._failures.pause_s(now)

    def lose_idle(self, idle_s: float, now: float) -> None:
        """Nothing lands, and no stage has anything to do. If one lacks what the one before has sent, avoid that link.

        Their connection for signs of life may be whole: it is another one.
        """
        links = pairwise(self.chain)
        stuck = next((each for each in links if self._expected(each[0]) > self._expected(each[1])), None)
        if stuck is None:
            self.lose(f"nothing has landed for {idle_s:.1f} s, and all stages are idle", now, self.chain)
            return
        self._choice.avoid(stuck)
        near, far = (self.members[each].name for each in stuck)
        self.lose(f"what stage {near} has computed has not reached stage {far} for {idle_s:.1f} s", now, stuck)

    def _expected(self, index: int) -> int:
        return self.members[index].expected

    def blame(self, members: Iterable[int], now: float) -> None:
        """Something was wrong, and it may be the fault of these."""
        for index in members:
            self.members[index].blame(now)

    def _beside(self, index: int) -> tuple[int, ...]:
        """A stage of the chain, and those that send it something or get something of it."""
        place = self.chain.index(index)
        return self.chain[max(0, place - 1) : place + 2]

    def end(self) -> list[Addressed]:
        """No request runs any more, or the coordinator ends. Returns: what lets all members free their rows.

        Effects: an attempt ends too, since those that are attached in it are told to leave.
        """
        self._attempt = None
        told: list[Addressed] = []
        for index, member in enumerate(self.members):
            if member.liveness is not None and member.what is not None:
                told.append((index, Detach(member.what.pipe_epoch)))
                member.leave()
        return told

    def hear(self, index: int, message: FromStage, now: float) -> None:
        """Note what a member has sent, or that its connection broke."""
        member = self.members[index]
        if isinstance(message, Broken):
            self._broken(index, message, now)
            return
        member.is_there = True
        if member.liveness is not None:
            member.liveness.note_message(now)
        match message:
            case Attached():
                self._attached(index, message, now)
            case Alive() if member.liveness is not None:
                member.expected = message.number
                member.liveness.note_answer(message.sent_s, now)
            case Alive(pipe_epoch=epoch) if self._attempt is not None and epoch == self._attempt.epoch:
                self._attempt.alive.add(index)
            case Identity(stage_id=stage_id) if member.liveness is None:
                member.stage_id = stage_id
            case Outdated():
                self._outdated(index, message, now)
            case Refused(reason=reason):
                self._refused(index, f"stage {member.name} refuses: {reason}", now)
            case Gap():
                self._broke_off(index, message, now)

    def judge(self, now: float) -> bool:
        """Find the dead, after all that has arrived was heard. Returns: whether the pipe came up, with empty rows."""
        was_away = now - self._heard_s > 2 * self._times.beat_s
        self._heard_s = now
        for index, member in enumerate(self.members):
            if member.liveness is not None and was_away:
                member.liveness.pardon(now)
            elif member.liveness is not None and member.liveness.is_dead(now):
                self._gone(index, f"stage {member.name} does not answer", now)
        self.has_given_up = not self.is_up and (self.has_given_up or now - self._down_s >= self._times.wait_s)
        return self._end_attempt(now)

    def due(self, now: float) -> list[Addressed]:
        """What is to be sent now."""
        messages = [] if self.is_up or self._attempt is not None else self._try(now)
        messages += self._beats_of_attempt(now)
        for index, member in enumerate(self.members):
            if member.liveness is not None and member.what is not None and member.liveness.is_beat_due(now):
                member.liveness.note_beat(now)
                messages.append((index, Beat(member.what.pipe_epoch, now)))
            elif member.liveness is None and not self._is_asked(index) and self._probes.is_due(index, now):
                messages.append((index, self._probe(index, now)))
        return messages

    def _probe(self, index: int, now: float) -> Identify | Attach:
        attached = {at for at, each in enumerate(self.members) if each.liveness is not None or self._is_asked(at)}
        twin = self._probes.twin_of(index, attached)
        if twin is not None and index in self.chain and not self.is_up:
            self.reason = twin
        return self._probes.message(index, twin, self.epoch, now)

    def left_out(self) -> list[str]:
        """As Probes."""
        return self._probes.left_out()

    def _is_asked(self, index: int) -> bool:
        """Whether it is to have a position when the present attempt succeeds."""
        return self._attempt is not None and index in self._attempt.chain

    def _try(self, now: float) -> list[Addressed]:
        """Attach a member for each position, if there are such."""
        chain = self._choice.choose(self.chain, now) if now >= self._again_s else None
        if chain is None:
            return []
        self.epoch = PipeEpoch(max(self.epoch, *(self.members[index].known_epoch + 1 for index in chain)) + 1)
        round_trip_s = max(self.members[index].round_trip_s for index in chain)
        self._attempt = Attempt.begun(self.epoch, chain, self._times.seen_within_s, round_trip_s, now)
        nexts = [*(self.members[index].name for index in chain[1:]), ""]
        for index in chain:
            self.members[index].leave()
            self.members[index].asked_s = now
        return [(index, self._pipe.attaching(self.epoch, after)) for index, after in zip(chain, nexts, strict=True)]

    def _beats_of_attempt(self, now: float) -> list[Addressed]:
        """Whoever lives answers these before it has its connection to the next one."""
        attempt = self._attempt
        if attempt is None or not attempt.is_beat_due(self._times.beat_s, now):
            return []
        return [(index, Beat(attempt.epoch, now)) for index in attempt.missing]

    def _attached(self, index: int, message: Attached, now: float) -> None:
        member, attempt = self.members[index], self._attempt
        if (self.is_up and index in self.chain) or message.pipe_epoch > highest_epoch(self._unix_clock()):
            self.blame([index], now)  # nobody asked, or it cannot be
            return
        if attempt is not None and self._is_asked(index):
            if message.pipe_epoch != attempt.epoch:
                return  # the answer to an earlier one
            attempt.answers.add(index)
        member.begin(message, self._times.seen_within_s, now)
        is_back = index in self.chain and not (self.is_up or self._is_asked(index))
        self._probes.judge(index, message, self._pipe.stages[self.chain.index(index)] if is_back else None)
        if is_back and member.why_unfit is not None:
            self.reason = member.why_unfit

    def _broke_off(self, index: int, gap: Gap, now: float) -> None:
        """A member takes no part any more. If it did in the pipe, others may have sent it nonsense, or be gone.

        One that is only probed ends nothing, and nobody is blamed for it: a probe during an attempt has its epoch.
        """
        member, attempt, epoch = self.members[index], self._attempt, gap.pipe_epoch
        is_attached = member.liveness is not None and member.what is not None and member.what.pipe_epoch == epoch
        if not (is_attached or self._breaks_attempt(index, gap)):
            return
        member.leave()
        what = f"stage {member.name} broke off: {gap.reason}"
        if attempt is not None and epoch == attempt.epoch and self._is_asked(index):
            self.blame([index], now)
            self._fail(what, now)
        elif epoch == self.pipe_epoch and index in self.chain:
            self.lose(what, now, self._beside(index))

    def _breaks_attempt(self, index: int, gap: Gap) -> bool:
        """Whether a member that has not answered the attempt never will.

        A member whose next stage died while it connected says so. A member that has not taken the `Attach` yet also
        answers beats with a Gap, but it will answer the `Attach`.
        """
        attempt = self._attempt
        if attempt is None or gap.pipe_epoch != attempt.epoch or gap.reason.startswith(NOT_IN_PIPE):
            return False
        return index in attempt.missing

    def _outdated(self, index: int, message: Outdated, now: float) -> None:
        """A member knows a higher epoch. What it says counts for attempts with it, and for no others."""
        member, epoch = self.members[index], message.pipe_epoch
        what = f"stage {member.name} knows pipe epoch {epoch}"
        if epoch > highest_epoch(self._unix_clock()):
            self._refused(index, f"{what}, which cannot be", now)
            return
        member.known_epoch, member.stage_id = max(member.known_epoch, epoch), message.stage_id
        if self._attempt is not None and index in self._attempt.chain and epoch >= self._attempt.epoch:
            self.blame([index], now)
            self._fail(what, now)

    def _refused(self, index: int, what: str, now: float) -> None:
        """A member takes no part."""
        member = self.members[index]
        member.lose()
        if self._is_asked(index):
            self.blame([index], now)
            self._fail(what, now)
        elif index in self.chain:
            self.lose(what, now, [index])
        else:
            self._probes.leave_out(index, what)

    def _end_attempt(self, now: float) -> bool:
        """Returns: whether the pipe came up."""
        attempt = self._attempt
        if attempt is None:
            return False
        missing, late = attempt.missing, attempt.late(now)
        if missing and not late:
            return False
        self._attempt = None
        for index in late:
            self._miss(attempt, index, now)
        if missing:
            return False
        if (flaw := self._flaw_of(attempt.chain)) is not None:
            self._fail(flaw, now)
            return False
        for index in set(self.chain) - set(attempt.chain):
            self.members[index].leave()  # a probe attaches it anew: it has rows of the pipe before
        self.chain, self.pipe_epoch = attempt.chain, attempt.epoch
        self.epoch = max(self.epoch, PipeEpoch(attempt.epoch + 1))
        self.reason, self._down_s, self.has_given_up = None, inf, False
        self._failures.note_success(now)
        return True

    def _flaw_of(self, chain: tuple[int, ...]) -> str | None:
        """Why members that are all attached are not this pipe; None if they are.

        Effects: where one sends to another one than it should, the next attempt is made without this link.
        """
        members = [self.members[index] for index in chain]
        for each, wanted in zip(members, self._pipe.stages, strict=True):
            if (why := each.why_not(wanted, self._pipe)) is not None:
                return f"stage {each.name} is not what it was before: {why}"
        stages = [each.what for each in members if each.what is not None]
        place = misled(stages)
        if place is None:
            return None
        self._choice.avoid((chain[place], chain[place + 1]))
        return why_misled([each.name for each in members], stages, place)

    def _miss(self, attempt: Attempt, index: int, now: float) -> None:
        """A member has not answered in time: it is dead, or its link to the next one is cut."""
        link = attempt.link_behind(index)
        if link is None:
            self.members[index].lose()
            self.blame([index], now)
        else:
            self._choice.avoid(link)
            near, far = (self.members[each].name for each in link)
            self.reason = f"stage {near} does not reach stage {far}"

    def _broken(self, index: int, news: Broken, now: float) -> None:
        """The connection to a member broke: for a flood, which is its fault, or else it is gone."""
        name = self.members[index].name
        if news.is_flood:
            self.blame([index], now)
            self._gone(index, f"stage {name} sends far more than it is asked for", now)
        else:
            self._gone(index, f"the connection to stage {name} broke", now)

    def _gone(self, index: int, reason: str, now: float) -> None:
        """What was sent to it may be lost, and others may take its place at once."""
        self.members[index].lose()
        if self._is_asked(index):
            self._fail(reason, now)
        elif index in self.chain:
            self.lose(reason, now)
        else:
            self._probes.miss(index, reason)

    def _fail(self, reason: str, now: float) -> None:
        """The present attempt cannot succeed."""
        self.reason, self._attempt = reason, None
        self._again_s = now + self._failures.pause_s(now)
