"""Finds out who is at the names that are not attached, and tells which of them can take no position. No I/O.

A process is first asked who it is. If it is attached under another name, it is not attached under this one, too: that
would take it out of the pipe.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from starspec.ids import PipeEpoch
from starspec.stages.member import Member
from starspec.stages.pipe import Pipe, same_stage
from starspec.wire.messages import Attach, Attached, Identify

PROBE_S: Final = 0.5  # between two attempts to find a process that is gone


class Probes:
    """Probes of the members of one pipe, which are numbered.

    Args:
        pipe: whose positions they may take.
    """

    def __init__(self, pipe: Pipe, members: Sequence[Member]) -> None:
        self._pipe = pipe
        self._members = members
        self._left_out: list[str] = []

    def left_out(self) -> list[str]:
        """Why processes can take no position, of those that have come, gone or changed since the last call."""
        found, self._left_out = self._left_out, []
        return found

    def is_due(self, index: int, now: float) -> bool:
        return now - self._members[index].asked_s >= PROBE_S

    def twin_of(self, index: int, attached: Collection[int]) -> str | None:
        """A sentence about a member whose process is attached under another name; None if it is not.

        Args:
            attached: the members that are attached, or are being attached.
        """
        member = self._members[index]
        twins = [self._members[each] for each in attached if each != index and member.is_same_as(self._members[each])]
        return same_stage(twins[0].name, member.name) if twins else None

    def message(self, index: int, twin: str | None, epoch: PipeEpoch, now: float) -> Identify | Attach:
        """What is sent to a member that is not attached.

        Args:
            twin: as `twin_of` says.
            epoch: at least.
        Effects: a twin is left out.
        """
        member = self._members[index]
        member.asked_s = now
        if twin is not None:
            self.leave_out(index, twin)
        if member.stage_id is None or twin is not None:
            return Identify()
        return self._pipe.attaching(PipeEpoch(max(epoch, member.known_epoch + 1)), "")

    def judge(self, index: int, what: Attached, wanted: Attached | None) -> None:
        """A member is attached. Whether it fits its position in an attempt is another question.

        Args:
            wanted: the stage that it was before it was lost; None = it has no position, or is being attached there.
        """
        member, why = self._members[index], self._pipe.why_no_place(what)
        if why is not None:
            self.leave_out(index, f"stage {member.name} fits no place: {why}")
        elif wanted is not None and (why := member.why_not(wanted, self._pipe)) is not None:
            self.leave_out(index, f"stage {member.name} is not what it was before: {why}")
        else:
            member.why_unfit = None

    def leave_out(self, index: int, why: str) -> None:
        """A member answers, and can take no position. It is told once, until it changes."""
        member = self._members[index]
        if member.why_unfit != why:
            member.why_unfit = why
            self._left_out.append(why)

    def miss(self, index: int, why: str) -> None:
        """A member without a position is gone."""
        self._members[index].why_unfit = None
        self._left_out.append(why)
