"""A connection to a stage: from its coordinator, or from the stage before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import zmq

from starspec.errors import ConfigError, PeerLost
from starspec.wire.codec import MAX_TRAVERSAL_BYTES
from starspec.wire.keys import Keys, require_keys
from starspec.wire.transports.sockets import HANDSHAKE_FAILED, LOST, Context, Socket, connect, host_of, make_socket
from starspec.wire.transports.target_sockets import TargetSocket

BEATS_IN_SILENCE: Final = 4  # heartbeats that a stage may leave unanswered before it counts as gone
MAX_BROKEN: Final = 4  # handshakes that may break off while a stage starts
READY: Final = zmq.EVENT_HANDSHAKE_SUCCEEDED


class StageConnection:
    """Connects to one stage, which may not listen yet. What is sent before waits. A connection that broke stays broken.

    A stage that was killed or stopped, or whose machine is out of reach, is noticed by ZeroMQ's heartbeats, however
    long it computes: a thread of ZeroMQ's answers them. A slow link delays the answers, and each is waited for as long.

    Args:
        endpoint: of the stage, tcp://host:port.
        keys: of this process; None = the link has none.
        is_insecure: allow a host that is not loopback without keys.
        silence_s: a stage that answers nothing for longer is gone.
        what: the subject of sentences, such as "the target".
    Raises: ConfigError if the endpoint is malformed, keys are missing, or the stages' public one is.
    """

    def __init__(
        self, context: Context, endpoint: str, keys: Keys | None, is_insecure: bool, silence_s: float, what: str
    ) -> None:
        require_keys(host_of(endpoint, "the stage"), keys, is_insecure, f"{what} would connect to the stage at")
        self.endpoint = endpoint
        self.is_ready = False
        self._what = what
        self._num_broken = 0
        self._problem: ConfigError | PeerLost | None = None
        socket = make_socket(context, zmq.DEALER, MAX_TRAVERSAL_BYTES)
        try:
            _set_times(socket, silence_s)
            if keys is not None:
                keys.secure_client(socket, keys.public_key_of("stage"))
        except BaseException:
            socket.close(0)
            raise
        self._socket = TargetSocket(socket, LOST | HANDSHAKE_FAILED | READY, int(endpoint.rpartition(":")[2]))
        connect(socket, endpoint)

    @property
    def sockets(self) -> Sequence[Socket]:
        """What to wait for."""
        return self._socket.sockets

    def check(self) -> None:
        """Note what has become of the connection.

        Raises: PeerLost if it broke; ConfigError if it cannot be made, for a reason that waiting does not change.
        """
        for event, value in self._socket.events():
            self._note(event, value)
        if self._socket.has_cut:
            self._problem = PeerLost(f"the stage at {self.endpoint} sends a message that never ends")
        if self._problem is not None:
            raise self._problem

    def send(self, frames: Sequence[bytes | memoryview]) -> None:
        """Send without waiting. Raises: PeerLost if the stage does not read."""
        if not self._socket.send(frames):
            self._problem = PeerLost(f"the stage at {self.endpoint} does not read what it is sent")
            raise self._problem

    def read(self) -> Iterator[list[bytes]]:
        """The multiparts that have arrived."""
        return self._socket.read()

    def close(self, linger_ms: int = 0) -> None:
        """Close the connection. What was sent has `linger_ms` to leave."""
        self._socket.close(linger_ms)

    def _note(self, event: int, value: int) -> None:
        if event == READY:
            self.is_ready = True
        elif event & LOST and self.is_ready:
            self._problem = self._problem or PeerLost(f"the stage at {self.endpoint} is gone")
        elif event & HANDSHAKE_FAILED:
            self._num_broken += 1
            self._problem = self._problem or self._why_failed(event, value)

    def _why_failed(self, event: int, value: int) -> ConfigError | None:
        """None: it may be a stage that is starting, or stopping."""
        if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            remedy = "copy this role's .public file to its folder of keys"
            return ConfigError(
                f"the stage at {self.endpoint} does not know the key of {self._what} ({value}): {remedy}"
            )
        if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
            return ConfigError(
                f"{self.endpoint} does not speak as {self._what} does: keys on one side only, or not a stage"
            )
        if self._num_broken < MAX_BROKEN:
            return None
        return ConfigError(
            f"the stage at {self.endpoint} breaks off the handshake: does stage.public of {self._what} belong to "
            "another stage, or is it a server of another kind?"
        )


def _set_times(socket: Socket, silence_s: float) -> None:
    socket.immediate = False  # what is sent while the stage still starts waits for it
    socket.reconnect_ivl, socket.reconnect_ivl_max = 50, 250
    silence_ms = int(1000 * silence_s)
    socket.heartbeat_ivl = max(1, silence_ms // BEATS_IN_SILENCE)
    socket.heartbeat_timeout = socket.heartbeat_ttl = silence_ms
