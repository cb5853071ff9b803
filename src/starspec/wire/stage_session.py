"""The protocol of a stage, as state machines without I/O: one of the stage, and one of each of its cache rows.

A target that is cut into stages is a *pipe*. Windows travel through all stages in the order of their launches, so each
stage sees the same order. Four rules keep the stages consistent.

1. **A pipe lives in epochs.** `Attach` begins a pipe epoch, with all rows empty. Whatever is older is dropped.
2. **Traversals are numbered.** One that does not follow breaks the stage until the next `Attach`: the stage answers
   `Gap`, and computes nothing on rows that it may not know.
3. **A row is told absolutely.** Each window states how many positions are committed before it (`base`, and the `path`
   behind it). So keeping, committing and taking back are one operation, which travels with the next window. A stage
   can take back what it has, and never guesses what it has not: a `base` behind all that it wrote breaks it.
4. **A row has numbered occupants.** Frees and leases travel in order with the windows, and each window names its
   occupant's lease. Within a lease, windows of an earlier row epoch stand on refused tokens and may be dropped.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from starspec.config.stages import HiddenDtype
from starspec.errors import PeerProtocolError
from starspec.ids import PipeEpoch, RowEpoch, RowLease, StageId
from starspec.wire.messages import Alive, Attach, Beat, Detach, Gap, Outdated, Refused, Retract, RowChange, Traversal
from starspec.wire.messages.base import PROTOCOL_VERSION
from starspec.wire.messages.stage_link import WindowHead

FIRST_EPOCHS: Final = 2**30  # where the clock is not set
EPOCHS_PER_S: Final = 1024
NOT_IN_PIPE: Final = "the stage is not in this pipe"  # so reasons begin that answer beats of another pipe epoch


def highest_epoch(unix_s: float) -> int:
    """The highest pipe epoch that stages and coordinators take for one at this time.

    Epochs only rise, so one near the highest number would shut all later ones out. Coordinators raise them one by one,
    far more slowly than this bound rises.
    """
    return FIRST_EPOCHS + int(unix_s * EPOCHS_PER_S)


class StageState(StrEnum):
    """What a stage knows about its pipe."""

    DETACHED = "detached"  # it belongs to no pipe, and all rows are free
    ATTACHED = "attached"  # it computes traversals
    BROKEN = "broken"  # it missed a traversal, and waits for a new pipe epoch


class StageEvent(StrEnum):
    """What happens to a stage. The value is its label in the diagram."""

    ATTACH = "Attach"
    TRAVERSAL = "Traversal"
    GAP = "Traversal that does not follow"
    DETACH = "Detach"
    LEASE_END = "(coordinator is silent)"


_FROM_ANY_PIPE: Final[Mapping[StageEvent, StageState]] = {
    StageEvent.ATTACH: StageState.ATTACHED,
    StageEvent.GAP: StageState.BROKEN,
    StageEvent.DETACH: StageState.DETACHED,
    StageEvent.LEASE_END: StageState.DETACHED,
}
STAGE_TRANSITIONS: Final[Mapping[StageState, Mapping[StageEvent, StageState]]] = {
    StageState.DETACHED: {StageEvent.ATTACH: StageState.ATTACHED, StageEvent.GAP: StageState.DETACHED},
    StageState.ATTACHED: {**_FROM_ANY_PIPE, StageEvent.TRAVERSAL: StageState.ATTACHED},
    StageState.BROKEN: _FROM_ANY_PIPE,
}


class StageSession:
    """The state of one stage."""

    def __init__(self) -> None:
        self.state = StageState.DETACHED
        self.stage_id = StageId(secrets.token_hex(8))
        self.pipe_epoch = PipeEpoch(0)  # the highest that was ever known
        self.next_number = 1  # of the traversal that follows
        self.hidden_dtype: HiddenDtype = "model"  # of hidden states on their way
        self.next = ""  # endpoint of the stage behind; "" = there is none
        self.num_stale = 0  # frames of older pipe epochs, and repeated ones
        self.owner = ""  # the target of the pipe
        self._lease_s = 0.0
        self._heard_s = 0.0

    @property
    def lease_end_s(self) -> float:
        """When the stage leaves its pipe if the coordinator stays silent; infinite without a pipe."""
        return float("inf") if self.state is StageState.DETACHED else self._heard_s + self._lease_s

    def attach(self, message: Attach, now: float) -> Refused | Outdated | None:
        """Enter a pipe epoch. Returns: None if it began, so all rows must be freed; otherwise the answer to send."""
        if message.protocol_version != PROTOCOL_VERSION:
            return Refused.for_version(message.protocol_version, "this stage")
        if self.state is not StageState.DETACHED and message.target_id != self.owner and now < self.lease_end_s:
            reason = f"the stage belongs to target {self.owner}"
            return Refused("full", reason, self.lease_end_s - now)
        if message.pipe_epoch <= self.pipe_epoch:
            return Outdated(self.pipe_epoch, self.stage_id)
        self._apply(StageEvent.ATTACH)
        self.pipe_epoch, self.next_number, self.next = message.pipe_epoch, 1, message.next
        self.hidden_dtype = message.hidden_dtype
        self.owner, self._lease_s, self._heard_s = message.target_id, message.lease_s, now
        return None

    def hear(self, message: Beat | Retract | Detach, now: float) -> bool:
        """Note what the coordinator says. Returns: whether it is of the current pipe epoch; otherwise drop it."""
        if message.pipe_epoch != self.pipe_epoch or self.state is StageState.DETACHED:
            self.num_stale += 1
            return False
        self._heard_s = max(now, self._heard_s)
        if isinstance(message, Detach):
            self._apply(StageEvent.DETACH)
        return True

    def answer(self, beat: Beat, now: float, *, is_busy: bool) -> Alive | Gap:
        """The answer to a beat. It may be asked for while the stage computes.

        Args:
            is_busy: whether it does, or a long traversal arrives.
        """
        if not self.hear(beat, now) or self.state is not StageState.ATTACHED:
            return Gap(beat.pipe_epoch, self.next_number, f"{NOT_IN_PIPE}, or not any more")
        return Alive(beat.pipe_epoch, beat.sent_s, is_busy, self.next_number)

    def end_lease(self, now: float) -> bool:
        """Leave the pipe if its coordinator was silent for too long. Returns: whether; then all rows must be freed."""
        if now < self.lease_end_s:
            return False
        self._apply(StageEvent.LEASE_END)
        return True

    def take(self, traversal: Traversal) -> Gap | None:
        """Note a traversal.

        Returns: None if it is to be computed; the answer to send if it does not follow.
        Raises: StaleTraversal if it is to be dropped, because it is older than the pipe or was here before.
        """
        is_here = traversal.pipe_epoch == self.pipe_epoch
        if traversal.pipe_epoch < self.pipe_epoch or (is_here and traversal.number < self.next_number):
            self.num_stale += 1
            raise StaleTraversal
        follows = is_here and traversal.number == self.next_number and self.state is StageState.ATTACHED
        if not follows:
            reason = f"traversal {traversal.number} of pipe epoch {traversal.pipe_epoch} does not follow"
            return self.break_off(traversal.pipe_epoch, reason)
        self._apply(StageEvent.TRAVERSAL)
        self.next_number += 1
        return None

    def break_off(self, pipe_epoch: PipeEpoch, reason: str) -> Gap:
        """Compute nothing until the next pipe epoch.

        Args:
            pipe_epoch: of the traversal that cannot be computed.
        Returns: the answer to send.
        """
        self._apply(StageEvent.GAP)
        return Gap(pipe_epoch, self.next_number, reason)

    def _apply(self, event: StageEvent) -> None:
        self.state = STAGE_TRANSITIONS[self.state][event]


class StaleTraversal(Exception):
    """A traversal that is to be dropped without an answer."""


class RowState(StrEnum):
    """What a stage knows about a cache row."""

    FREE = "free"
    HELD = "held"


class RowEvent(StrEnum):
    """What happens to a row. The value is its label in the diagram."""

    LEASE = "lease"
    WINDOW = "window"
    STALE = "window of an earlier row epoch"
    RETRACT = "Retract"
    FREE = "free"


ROW_TRANSITIONS: Final[Mapping[RowState, Mapping[RowEvent, RowState]]] = {
    RowState.FREE: {RowEvent.LEASE: RowState.HELD},
    RowState.HELD: {
        RowEvent.WINDOW: RowState.HELD,
        RowEvent.STALE: RowState.HELD,
        RowEvent.RETRACT: RowState.HELD,
        RowEvent.FREE: RowState.FREE,
    },
}


class RowSession:
    """The state of one row at one stage: its occupant, and how much of the row is known.

        positions   0 ........ length ............ written
                    committed         of the last forward, not committed yet

    Every method raises PeerProtocolError if the table or a number forbids the event; nothing has changed then.
    """

    def __init__(self, row: int) -> None:
        self.row = row
        self.state = RowState.FREE
        self.lease = RowLease(0)
        self.epoch = RowEpoch(0)
        self.length = 0
        self.written = 0
        self.is_chain = True  # the last forward

    def change(self, change: RowChange) -> None:
        """The row gets an occupant, or loses it."""
        is_lease = change.kind == "lease"
        if not (change.lease > self.lease if is_lease else change.lease == self.lease):
            raise PeerProtocolError(f"{change.kind} {change.lease} of row {self.row}, whose lease is {self.lease}")
        self._apply(RowEvent.LEASE if is_lease else RowEvent.FREE)
        self.lease, self.epoch, self.length, self.written = change.lease, RowEpoch(0), 0, 0

    def retract(self, retract: Retract) -> None:
        """Drop windows of earlier row epochs. A hint for another occupant says nothing."""
        if retract.lease == self.lease and self.state is RowState.HELD:
            self._apply(RowEvent.RETRACT)
            self.epoch = max(self.epoch, retract.epoch)

    def is_stale(self, window: WindowHead) -> bool:
        """Whether a window stands on refused tokens. Raises: PeerProtocolError if the row has another occupant."""
        if window.lease != self.lease or self.state is RowState.FREE:
            raise PeerProtocolError(f"a window of lease {window.lease} on row {self.row}, whose lease is {self.lease}")
        is_stale = window.epoch < self.epoch
        self._apply(RowEvent.STALE if is_stale else RowEvent.WINDOW)
        return is_stale

    def move(self, window: WindowHead) -> None:
        """The row becomes what the window says: `base` positions, then those of `path`, then its new tokens.

        Only the newest forward has a path. Of a chain, `base` may also include its first tokens.
        """
        base, path = window.base, window.path
        if path:
            is_known = base == self.length and base + path[-1] < self.written
        else:
            is_known = base <= (self.written if self.is_chain else self.length)
        if not is_known:
            found = f"has {self.length} positions and {self.written - self.length} behind them"
            raise PeerProtocolError(
                f"a window stands on {base} positions and path {path} of row {self.row}, which {found}"
            )
        self.epoch = max(self.epoch, window.epoch)
        self.length = base + len(path)
        self.written, self.is_chain = self.length + window.num_tokens, window.parents is None

    def _apply(self, event: RowEvent) -> None:
        following = ROW_TRANSITIONS[self.state].get(event)
        if following is None:
            raise PeerProtocolError(f"{event} is not allowed while row {self.row} is {self.state}")
        self.state = following
