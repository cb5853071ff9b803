"""A target's talk with its hub: what is heard, how long it is waited for, and when the hub counts as lost.

What the hub is told, and of what, is up to who listens: `engine/remote_drafts.py` for sequences of our own engine,
`integrations/vllm/hub_client.py` for requests of vLLM.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from typing import Protocol, assert_never

import structlog

from starspec.policy.liveness import PING_INTERVAL_S, HubLiveness
from starspec.policy.patience import Patience
from starspec.policy.waiting import Waiting, miss_all
from starspec.wire.messages import Fault, Goodbye, HubToTarget, Ping, Pong, Proposal, Reopen
from starspec.wire.transports.base import TargetTransport

log = structlog.get_logger()


class HubListener(Protocol):
    """Whose tags they are."""

    def take(self, message: Proposal | Reopen) -> None:
        """The hub, which is not lost, says something of a tag."""
        ...

    def lose(self) -> None:
        """The hub is silent or gone, and all tags with it: wait for nothing until it is heard again."""
        ...

    def find(self) -> None:
        """The hub is heard (again): it can be told of every tag, by an `Open`."""
        ...


class HubConnection:
    """Not safe to use from two threads at once.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, transport: TargetTransport, listener: HubListener, clock: Callable[[], float]) -> None:
        self._transport = transport
        self._listener = listener
        self._clock = clock
        self._liveness = HubLiveness(clock())
        self._num_connects = 0
        self._ping_numbers = itertools.count(1)
        self._next_ping_s = 0.0
        self.patience = Patience()  # with the hub, whoever is late
        self.plain_tokens_per_s = 0.0  # told with each ping: the target's speed without drafts; 0 = not known
        self.is_waiting = False  # in `wait`: what arrives now has just arrived

    @property
    def is_lost(self) -> bool:
        """Whether it is of no use to speak to the hub, or to wait for it."""
        return self._liveness.is_lost

    @property
    def num_found(self) -> int:
        """How often the hub was found."""
        return self._liveness.num_found

    @property
    def lost_s(self) -> float:
        """Seconds without a usable hub so far."""
        return self._liveness.lost_s(self._clock())

    def receive(self, timeout_s: float) -> bool:
        """Take in what has come, or wait so long for the first message. Effects: calls the listener.

        Returns: whether anything was heard.
        """
        messages = self._transport.receive(timeout_s)
        for message in messages:
            self._handle(message)
        self.notice_connection()
        return bool(messages)

    def notice_connection(self) -> None:
        """A session that ended took every tag with it, as does a hub that hangs; one that began can have them all.

        Effects: calls the listener; nothing is received.
        """
        if not self._transport.is_connected:
            if not self.is_lost:
                self._lose()
        elif self._transport.num_connects != self._num_connects:
            self._num_connects = self._transport.num_connects
            if not self.is_lost:
                self._lose()
            self._find()
        elif self._liveness.hangs(self._clock()):
            self._lose()

    def wait(
        self, awaited: Sequence[Waiting], everybody: Collection[Waiting], timeout_s: float
    ) -> Sequence[Waiting] | None:
        """Receive until all that is awaited is here, or the time is up, or the hub is lost.

        A hub from which nothing at all was heard is pinged, and lost if it does not answer that either; not if all that
        is late is being opened, since it may be reading prompts.

        Args:
            everybody: all tags of the target.
        Returns: who is late, and has to do without; None if nobody waits, since the hub is known to read.
        Effects: calls the listener.
        """
        if any(each.is_excused for each in everybody):
            for each in awaited:
                each.pass_by()
            return None
        is_heard = self._receive_until(self._clock() + timeout_s, awaited)
        late = [each for each in awaited if each.is_awaited]
        if late:
            now = self._clock()
            miss_all(late, everybody, self.patience, now, is_for_all=len(late) == len(awaited))
            if not is_heard and not all(each.is_opening for each in late):
                self._liveness.doubt(now)
                self._ping(now)
        return late

    def ping_if_due(self) -> None:
        """So that the hub knows that the target lives, and is found when it is back."""
        now = self._clock()
        if self._transport.is_connected and now >= self._next_ping_s:
            self._ping(now)

    def _receive_until(self, deadline_s: float, awaited: Sequence[Waiting]) -> bool:
        """Returns: whether anything was heard."""
        is_heard = False
        self.is_waiting = True
        while not self.is_lost and any(each.is_awaited for each in awaited):
            left_s = deadline_s - self._clock()
            if left_s <= 0:
                break
            is_heard |= self.receive(left_s)
        self.is_waiting = False
        return is_heard

    def _ping(self, now: float) -> None:
        self._next_ping_s = now + PING_INTERVAL_S
        self._transport.send([Ping(next(self._ping_numbers), self.plain_tokens_per_s)])

    def _handle(self, message: HubToTarget) -> None:
        if self.is_lost:
            if self._liveness.may_be_found(self._clock()):
                self._find()
            return
        self._liveness.hear()
        match message:
            case Proposal() | Reopen():
                self._listener.take(message)
            case Fault(reason=reason):
                log.warning("the hub dropped a message of ours", reason=reason)
            case Pong() | Goodbye():
                pass  # words, no more; after the last one the transport ends the connection
            case _:
                assert_never(message)

    def _lose(self) -> None:
        self._liveness.lose(self._clock())
        self.patience = Patience()  # the one that is found next has kept nobody waiting yet
        self._listener.lose()

    def _find(self) -> None:
        self._liveness.find(self._clock())
        self._listener.find()
