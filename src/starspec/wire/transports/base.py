"""The interface of the draft link's two ends, independent of the transport.

Implementations: `zmq_hub.py` and `zmq_target.py` between processes, `memory.py` within one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from starspec.ids import LinkId, TargetId
from starspec.policy.peer_limits import TOKEN_BYTES, backlog_of
from starspec.wire.messages import Features, Hello, HubStatus, HubToTarget, Open, Refused, TargetToHub, Verdict, Welcome

Admit = Callable[[Hello, int], Welcome | Refused]
"""(hello, number of links now) -> the answer to the hello. The transport fills in `link_id` and `port` of a Welcome.

Called on the transport's own thread, so it must be pure or take a lock.
"""

Report = Callable[[], HubStatus]
"""Returns the answer to `Ask` on the hub's public port. Called on the transport's own thread."""


@dataclass(frozen=True, slots=True)
class Joined:
    """A target has attached. Its link starts without tags."""

    hello: Hello


@dataclass(frozen=True, slots=True)
class Left:
    """A target is gone. The hub must free every tag of the link; no message of the link follows."""

    reason: str


@dataclass(frozen=True, slots=True)
class Arrival:
    """One message or event at the hub."""

    link_id: LinkId
    target_id: TargetId
    message: TargetToHub | Joined | Left
    arrived_at: float  # seconds on the transport's clock

    @property
    def backlog(self) -> int:
        """What it counts for while it waits for the hub, as `policy/peer_limits.py` says."""
        match self.message:
            case Open(token_ids=token_ids) | Verdict(token_ids=token_ids):
                return backlog_of(TOKEN_BYTES * len(token_ids))
            case Features(data=data):
                return backlog_of(len(data))
        return backlog_of(0)


@dataclass(slots=True)
class HubTransportStats:
    """Counts of what the transport did not pass on, since the start."""

    num_frames_rejected: int = 0  # multiparts that broke the protocol
    num_leases_expired: int = 0
    num_refused: int = 0  # handshakes
    num_dropped: int = 0  # messages to targets that are gone or do not read


class HubTransport(Protocol):
    """The hub's end: many targets."""

    @property
    def stats(self) -> HubTransportStats: ...

    def receive(self, timeout_s: float) -> list[Arrival]:
        """Return everything that has arrived, in order. Waits up to `timeout_s` for the first; 0 = not at all.

        A link's first arrival is `Joined`, its last is `Left`.
        """
        ...

    def receive_ahead(self) -> list[Arrival]:
        """As `receive(0.0)`, while a draft step runs ahead: what it returns waits to be handled.

        It counts as waiting until the next `receive`, so that a target cannot fill the hub's memory meanwhile.
        """
        ...

    def send(self, replies: Mapping[LinkId, Sequence[HubToTarget]]) -> None:
        """Send messages without waiting. The messages of one link travel together.

        Messages to a target that is gone are dropped and counted.
        """
        ...

    def close(self) -> None:
        """Send `Goodbye` to all targets and close the sockets. Idempotent."""
        ...


class TargetTransport(Protocol):
    """A target's end: one hub. Used by one thread. It connects and reconnects whenever it is called."""

    @property
    def is_connected(self) -> bool:
        """Whether the hub has answered on this target's own port and is not known to be gone."""
        ...

    @property
    def num_connects(self) -> int:
        """Links begun so far. When the count changes, the hub holds no tag any more: `TagSession.lose`, then `Open`."""
        ...

    @property
    def welcome(self) -> Welcome | None:
        """The terms of the present link; None while not connected."""
        ...

    def receive(self, timeout_s: float) -> list[HubToTarget]:
        """Return what the hub has sent. Waits up to `timeout_s` for the first message; not at all while not connected.

        This call also drives the connection: call it at least every 250 ms. Malformed frames are dropped and counted.
        """
        ...

    def send(self, messages: Sequence[TargetToHub]) -> None:
        """Send messages without waiting. They travel together. They are dropped while not connected."""
        ...

    def close(self) -> None:
        """Send `Goodbye` and close the sockets. Idempotent."""
        ...
