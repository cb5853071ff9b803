"""The handshake of the draft link, as a table that both ends follow.

A target greets the hub on its public port and is welcomed to a port of its own; there it pings until it is answered.
Whatever goes wrong leads back to DISCONNECTED, and from there every link is a fresh one.
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
    Message,
    Ping,
    Pong,
    Refused,
    TargetToHub,
    Welcome,
)

FAULT_INTERVAL_S: Final = 1.0  # a peer that keeps breaking the protocol is told so this often

M = TypeVar("M", bound=Message)


class LinkState(StrEnum):
    """How far the two ends have come."""

    DISCONNECTED = "disconnected"
    GREETING = "greeting"  # Hello is said, on the public port
    ATTACHING = "attaching"  # welcomed; the target's own port is not yet heard to work
    CONNECTED = "connected"


_ANY_TIME: Final[Mapping[type[Message], LinkState]] = {Goodbye: LinkState.DISCONNECTED}

LINK_TRANSITIONS: Final[Mapping[LinkState, Mapping[type[Message], LinkState]]] = {
    LinkState.DISCONNECTED: {Hello: LinkState.GREETING},
    LinkState.GREETING: {
        **_ANY_TIME,
        Hello: LinkState.GREETING,  # said again until it is answered
        Welcome: LinkState.ATTACHING,
        Refused: LinkState.DISCONNECTED,
        Fault: LinkState.DISCONNECTED,
    },
    LinkState.ATTACHING: {
        **_ANY_TIME,
        Hello: LinkState.ATTACHING,  # crossed its Welcome, which is then said again
        Welcome: LinkState.ATTACHING,
        Ping: LinkState.ATTACHING,
        Pong: LinkState.CONNECTED,
    },
    LinkState.CONNECTED: {
        Welcome: LinkState.CONNECTED,
        **dict.fromkeys(get_args(TargetToHub | HubToTarget), LinkState.CONNECTED),
        **_ANY_TIME,
    },
}  # besides messages: a dropped connection or an expired lease leads from everywhere to DISCONNECTED


class LinkProtocol:
    """One end's view of the handshake. Both ends run this class."""

    def __init__(self) -> None:
        self.state = LinkState.DISCONNECTED

    def send(self, message: M) -> M:
        """Account for a message about to be sent. Raises: LocalProtocolError, changing nothing, if not allowed."""
        self.state = self._following(message, LocalProtocolError)
        return message

    def receive(self, message: M) -> M:
        """Account for a message of the peer. Raises: PeerProtocolError, changing nothing, if not allowed."""
        self.state = self._following(message, PeerProtocolError)
        return message

    def lose(self) -> None:
        """The connection dropped, the lease expired, or nobody answered."""
        self.state = LinkState.DISCONNECTED

    def _following(self, message: Message, error: type[LocalProtocolError | PeerProtocolError]) -> LinkState:
        following = LINK_TRANSITIONS[self.state].get(type(message))
        if following is None:
            raise error(f"{type(message).__name__} is not allowed while the link is {self.state}")
        return following
