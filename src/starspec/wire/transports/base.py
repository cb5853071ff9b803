"""The two ends of the draft link as hub and target see them, whatever carries the frames.

Implementations: `zmq_hub.py` and `zmq_target.py` between processes, `memory.py` inside one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from starspec.ids import LinkId, TargetId
from starspec.wire.messages import Hello, HubStatus, HubToTarget, Refused, TargetToHub, Welcome

Admit = Callable[[Hello, int], Welcome | Refused]
"""(hello, links held now) -> answer. The transport fills in `link_id` and `port` of a Welcome.

Called on the transport's own thread: a pure function of its arguments, or one that locks.
"""

Report = Callable[[], HubStatus]
"""Answers `Ask` on the hub's public port. Called on the transport's own thread."""


@dataclass(frozen=True, slots=True)
class Joined:
    """A target has attached: its link starts, without tags."""

    hello: Hello


@dataclass(frozen=True, slots=True)
class Left:
    """A target is gone: every tag of its link is to be freed. No message of the link follows."""

    reason: str


@dataclass(frozen=True, slots=True)
class Arrival:
    """One message or event at the hub."""

    link_id: LinkId
    target_id: TargetId
    message: TargetToHub | Joined | Left
    arrived_at: float  # seconds on the transport's clock, time.monotonic between processes


@dataclass(slots=True)
class HubTransportStats:
    """What the transport kept away from the hub. Counts since the start."""

    num_frames_rejected: int = 0  # multiparts that broke the protocol
    num_leases_expired: int = 0
    num_refused: int = 0  # handshakes
    num_dropped: int = 0  # messages for targets that are gone or do not read


class HubTransport(Protocol):
    """The hub's end: many targets."""

    @property
    def stats(self) -> HubTransportStats: ...

    def receive(self, timeout_s: float) -> list[Arrival]:
        """Everything that has arrived, in order of arrival; waits up to `timeout_s` (0 = not at all) for the first.

        A link's first arrival is `Joined`, its last is `Left`.
        """
        ...

    def send(self, replies: Mapping[LinkId, Sequence[HubToTarget]]) -> None:
        """Hand messages over without waiting: those of a link travel together. Dropped, and counted, if the target
        is gone."""
        ...

    def close(self) -> None:
        """Say `Goodbye` to all and free the sockets. Idempotent."""
        ...


class TargetTransport(Protocol):
    """A target's end: one hub. Used by one thread; connects, and connects again, whenever it is called."""

    @property
    def is_connected(self) -> bool:
        """Whether the hub has answered on this target's own port and is not known to be gone."""
        ...

    @property
    def num_connects(self) -> int:
        """Links begun. When it changes, the hub holds no tag any more: `TagSession.lose`, then `Open`."""
        ...

    @property
    def welcome(self) -> Welcome | None:
        """The terms of the present link; None while not connected."""
        ...

    def receive(self, timeout_s: float) -> list[HubToTarget]:
        """What the hub has sent; waits up to `timeout_s` for the first, and not at all while not connected.

        Drives the connection: call it at least every 250 ms. Malformed frames are dropped and counted.
        """
        ...

    def send(self, messages: Sequence[TargetToHub]) -> None:
        """Hand messages over without waiting; they travel together. Dropped while not connected."""
        ...

    def close(self) -> None:
        """Say `Goodbye` and free the sockets. Idempotent."""
        ...
