"""Polls hub and targets of this machine for their statuses, without waiting for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import zmq

from starspec.errors import PeerProtocolError
from starspec.observe.metrics import StatusSnapshot
from starspec.wire.codec import MAX_FRAME_BYTES, Decoder, encode
from starspec.wire.messages import (
    PROTOCOL_VERSION,
    Ask,
    HubPublicReply,
    HubStatus,
    Message,
    TargetStatus,
    TargetToGateway,
)
from starspec.wire.transports.sockets import connect, make_socket

ASK_INTERVAL_S: Final = 0.5
SILENCE_S: Final = 3.0  # a process that has been silent for so long has no status


class StatusWatch:
    """The latest statuses of a star's processes.

    Args:
        targets: serving ports, tcp://host:port.
        hub: public port; None = there is no hub.
        clock: seconds, monotonic.
    """

    def __init__(self, targets: Sequence[str], hub: str | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._targets = [_PolledProcess(self._context, endpoint, TargetToGateway) for endpoint in targets]
        self._hub = None if hub is None else _PolledProcess(self._context, hub, HubPublicReply)
        self._processes = [*self._targets, *([] if self._hub is None else [self._hub])]

    @property
    def snapshot(self) -> StatusSnapshot:
        """The statuses now, without those of silent processes."""
        now = self._clock()
        statuses = [each.status_at(now) for each in self._targets]
        hub = None if self._hub is None else self._hub.status_at(now)
        return StatusSnapshot(
            tuple(status for status in statuses if isinstance(status, TargetStatus)),
            hub if isinstance(hub, HubStatus) else None,
        )

    def poll(self) -> None:
        """Read the answers that have arrived, and ask again if it is time."""
        now = self._clock()
        for process in self._processes:
            process.poll(now)

    def close(self) -> None:
        """Close the sockets. Idempotent."""
        for process in self._processes:
            process.close()
        self._context.term()


class _PolledProcess:
    """One process and its last status."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, answers: Any) -> None:
        self._socket = make_socket(context, zmq.DEALER, MAX_FRAME_BYTES)
        self._decoder: Decoder[Message] = Decoder(answers)
        self._status: Message | None = None
        self._heard_s = self._asked_s = float("-inf")
        connect(self._socket, endpoint)

    def status_at(self, now: float) -> Message | None:
        """The last status; None if the process has been silent for SILENCE_S."""
        return self._status if now - self._heard_s < SILENCE_S else None

    def poll(self, now: float) -> None:
        try:
            while True:
                self._status, self._heard_s = self._decoder.decode(self._socket.recv(zmq.NOBLOCK)), now
        except (zmq.Again, PeerProtocolError):
            pass
        if now - self._asked_s >= ASK_INTERVAL_S:
            try:
                self._socket.send(encode(Ask(PROTOCOL_VERSION)), zmq.NOBLOCK)
                self._asked_s = now
            except zmq.Again:  # not connected: the process is starting, or gone
                pass

    def close(self) -> None:
        self._socket.close(linger=0)
