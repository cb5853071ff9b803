"""The handshake of the draft link, as one state table for both ends.

A target sends `Hello` to the hub's public port. The hub answers `Welcome`, which names a port for this target alone.
The target sends `Ping` there until the hub answers. Any failure leads back to DISCONNECTED; the next attempt starts a
new link.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, TypeVar, get_args

from starspec.errors import LocalProtocolError, PeerProtocolError
from starspec.wire.messages import (
    Fault,
    Goodbye,
    Hello,
    HubToTarget,
    LongOpen,
    Message,
    Open,
    Ping,
    Pong,
    Refused,
    TargetToHub,
    Welcome,
)

FAULT_INTERVAL_S: Final = 1.0  # at most one `Fault` in this time to a peer that keeps breaking the protocol

M = TypeVar("M", bound=Message)


class LinkState(StrEnum):
    """How far the handshake has come."""

    DISCONNECTED = "disconnected"
    GREETING = "greeting"  # Hello is sent, on the public port
    ATTACHING = "attaching"  # Welcome has come; nothing has come through the target's own port yet
    CONNECTED = "connected"


_ANY_TIME: Final[Mapping[type[Message], LinkState]] = {Goodbye: LinkState.DISCONNECTED}

LINK_TRANSITIONS: Final[Mapping[LinkState, Mapping[type[Message], LinkState]]] = {
    LinkState.DISCONNECTED: {Hello: LinkState.GREETING},
    LinkState.GREETING: {
        **_ANY_TIME,
        Hello: LinkState.GREETING,  # repeated until it is answered
        Welcome: LinkState.ATTACHING,
        Refused: LinkState.DISCONNECTED,
        Fault: LinkState.DISCONNECTED,
    },
    LinkState.ATTACHING: {
        **_ANY_TIME,
        Hello: LinkState.ATTACHING,  # crossed its Welcome, which is then sent again
        Welcome: LinkState.ATTACHING,
        Ping: LinkState.ATTACHING,
        Pong: LinkState.CONNECTED,
    },
    LinkState.CONNECTED: {
        Welcome: LinkState.CONNECTED,
        **dict.fromkeys(get_args(TargetToHub | HubToTarget), LinkState.CONNECTED),
        **_ANY_TIME,
    },
}  # a lost connection or an expired lease also leads to DISCONNECTED, from every state


class LinkProtocol:
    """The state of the handshake at one end. Target and hub run the same class."""

    def __init__(self) -> None:
        self.state = LinkState.DISCONNECTED

    def send(self, message: M) -> M:
        """Record a message that this end sends. Raises: LocalProtocolError, changing nothing, if it is not allowed."""
        self.state = self._following(message, LocalProtocolError)
        return message

    def receive(self, message: M) -> M:
        """Record a message from the peer. Raises: PeerProtocolError, changing nothing, if it is not allowed."""
        self.state = self._following(message, PeerProtocolError)
        return message

    def lose(self) -> None:
        """The connection broke, the lease expired, or the peer did not answer."""
        self.state = LinkState.DISCONNECTED

    def _following(self, message: Message, error: type[LocalProtocolError | PeerProtocolError]) -> LinkState:
        kind = Open if isinstance(message, LongOpen) else type(message)
        following = LINK_TRANSITIONS[self.state].get(kind)
        if following is None:
            raise error(f"{type(message).__name__} is not allowed while the link is {self.state}")
        return following
