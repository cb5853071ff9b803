"""The draft link within one process: the same interface and codec, without sockets and threads.

Hub and targets run on one thread. A target that waits in `receive` lets the hub work meanwhile. The clock is a
parameter, and the channels can have faults (`faulty_channel.py`).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from starspec.ids import LinkId
from starspec.wire.codec import Decoder
from starspec.wire.messages import Goodbye, Hello, HubToTarget, Ping, Pong, Refused, TargetToHub, Welcome
from starspec.wire.transports.base import Admit, Arrival, HubTransportStats, Joined, Left
from starspec.wire.transports.faulty_channel import Channel, Faults, VirtualClock

MAX_HUB_STEPS: Final = 100_000  # within one `receive`, so that a hub that always has work cannot block a target


@dataclass(slots=True)
class _Link:
    """One attached target."""

    hello: Hello
    to_hub: Channel[TargetToHub]
    to_target: Channel[HubToTarget]


class MemoryHub:
    """The hub's end. Implements HubTransport.

    Args:
        admit: as for every hub transport.
        clock: seconds; a VirtualClock advances while a target waits.
        faults: of the channels in both directions.
        is_coded: False skips encoding and decoding, for speed.
    """

    def __init__(
        self,
        admit: Admit,
        clock: Callable[[], float] = time.monotonic,
        faults: Faults | None = None,
        is_coded: bool = True,
    ) -> None:
        self._admit = admit
        self._faults = faults
        self._is_coded = is_coded
        self._links: dict[LinkId, _Link] = {}
        self._arrivals: list[Arrival] = []
        self._numbers = itertools.count(1)
        self.clock = clock
        self.is_down = False
        self.stats = HubTransportStats()

    def receive(self, timeout_s: float = 0.0) -> list[Arrival]:  # noqa: ARG002
        """As HubTransport, but never waits: nothing else could run meanwhile."""
        for link_id in list(self._links):
            self._collect(link_id)
        arrivals, self._arrivals = self._arrivals, []
        return sorted(arrivals, key=lambda arrival: arrival.arrived_at)  # stable: Joined stays first, Left last

    def receive_ahead(self) -> list[Arrival]:
        return self.receive()

    def send(self, replies: Mapping[LinkId, Sequence[HubToTarget]]) -> None:
        for link_id, messages in replies.items():
            link = self._links.get(link_id)
            if link is None:
                self.stats.num_dropped += len(messages)
                continue
            for message in messages:
                link.to_target.put(message, self.clock())

    def close(self) -> None:
        self.fail()

    def connect(self, hello: Hello, step_hub: Callable[[], bool]) -> MemoryTarget:
        """A target's end of a new link, connected if the hub admits it.

        Args:
            step_hub: runs one step of the hub; returns whether it had anything to do.
        """
        return MemoryTarget(self, hello, step_hub)

    def fail(self) -> None:
        """Simulate the death of the hub's process: links and messages on their way are lost without notice."""
        self.is_down = True
        self._links.clear()
        self._arrivals.clear()

    def restore(self) -> None:
        """Start to listen again. Targets reconnect with their next call."""
        self.is_down = False

    def greet(self, hello: Hello) -> Welcome | Refused:
        """The handshake of one target."""
        answer = self._admit(hello, len(self._links))
        if isinstance(answer, Refused):
            self.stats.num_refused += 1
            return answer
        number = next(self._numbers)
        link_id = LinkId(f"memory-{number}")
        to_hub = self._channel(TargetToHub, 2 * number, hello.vocab_size)
        self._links[link_id] = _Link(hello, to_hub, self._channel(HubToTarget, 2 * number + 1, None))
        self._arrivals.append(Arrival(link_id, hello.target_id, Joined(hello), self.clock()))
        return msgspec.structs.replace(answer, link_id=link_id, port=0)

    def leave(self, link_id: LinkId, reason: str) -> None:
        """End a link, as a target's Goodbye or an expired lease does."""
        link = self._links.pop(link_id, None)
        if link is not None:
            self._arrivals.append(Arrival(link_id, link.hello.target_id, Left(reason), self.clock()))

    def link(self, link_id: LinkId) -> _Link | None:
        """The channels of a link; None once it is gone."""
        return self._links.get(link_id)

    def _collect(self, link_id: LinkId) -> None:
        link = self._links[link_id]
        for arrived_s, message in link.to_hub.take(self.clock()):
            if isinstance(message, Goodbye):
                self.leave(link_id, message.reason or "said goodbye")
                return
            if isinstance(message, Ping):
                link.to_target.put(Pong(message.sequence), self.clock())
            self._arrivals.append(Arrival(link_id, link.hello.target_id, message, arrived_s))
        self.stats.num_frames_rejected += link.to_hub.num_rejected
        link.to_hub.num_rejected = 0

    def _channel(self, union: Any, salt: int, vocab_size: int | None) -> Channel[Any]:
        return Channel(Decoder(union, vocab_size) if self._is_coded else None, self._faults, salt)


class MemoryTarget:
    """A target's end. Implements TargetTransport."""

    def __init__(self, hub: MemoryHub, hello: Hello, step_hub: Callable[[], bool]) -> None:
        self._hub = hub
        self._hello = hello
        self._step_hub = step_hub
        self._is_closed = False
        self.welcome: Welcome | None = None
        self.num_connects = 0
        self._keep_connected()

    @property
    def is_connected(self) -> bool:
        return self._link() is not None

    def receive(self, timeout_s: float) -> list[HubToTarget]:
        """As TargetTransport. The hub runs until a message comes, it has nothing to do, or time is over."""
        if not self._keep_connected():
            return []
        deadline_s = self._hub.clock() + timeout_s
        for _ in range(MAX_HUB_STEPS):
            messages = self._take()
            if messages or not (self._step_hub() or self._wait_for_delivery(deadline_s)):
                return messages
            if self._hub.clock() >= deadline_s:
                break
        return self._take()

    def send(self, messages: Sequence[TargetToHub]) -> None:
        link = self._link()
        if link is None:
            return
        for message in messages:
            link.to_hub.put(message, self._hub.clock())

    def close(self) -> None:
        if self.welcome is not None:
            self._hub.leave(self.welcome.link_id, "closed")
        self.welcome = None
        self._is_closed = True

    def _link(self) -> _Link | None:
        return None if self.welcome is None else self._hub.link(self.welcome.link_id)

    def _keep_connected(self) -> bool:
        """Reconnect if the link is gone and a hub listens. Returns: whether there is a link."""
        if self._link() is not None:
            return True
        self.welcome = None
        if self._is_closed or self._hub.is_down:
            return False
        answer = self._hub.greet(self._hello)
        if isinstance(answer, Refused):
            return False
        self.welcome = answer
        self.num_connects += 1
        return True

    def _take(self) -> list[HubToTarget]:
        link = self._link()
        return [] if link is None else [message for _, message in link.to_target.take(self._hub.clock())]

    def _wait_for_delivery(self, deadline_s: float) -> bool:
        """Let time pass until something on the wire arrives; False if nothing will by the deadline."""
        link = self._link()
        moments = [] if link is None else [link.to_hub.next_at_s, link.to_target.next_at_s]
        next_at_s = min((at_s for at_s in moments if at_s is not None), default=None)
        if next_at_s is None or next_at_s > deadline_s:
            return False
        wait_s = next_at_s - self._hub.clock()
        if isinstance(self._hub.clock, VirtualClock):
            self._hub.clock.advance(wait_s)
        elif wait_s > 0:
            time.sleep(wait_s)
        return True
