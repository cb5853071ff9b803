"""A connection to a stage: from its coordinator, or from the stage before it."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

import zmq

from starspec.errors import ConfigError
from starspec.wire.codec import MAX_TRAVERSAL_BYTES
from starspec.wire.keys import Keys, require_keys
from starspec.wire.transports.sockets import (
    GIVEN_UP_S,
    HANDSHAKE_FAILED,
    HANDSHAKE_MS,
    LOST,
    REFUSED_KEY_RETRY_S,
    Context,
    Socket,
    host_of,
    make_socket,
)
from starspec.wire.transports.target_sockets import TargetSocket

BEATS_IN_SILENCE: Final = 4  # heartbeats that a stage may leave unanswered before the connection ends
MAX_BROKEN: Final = 4  # handshakes that may break off while a stage starts
READY: Final = zmq.EVENT_HANDSHAKE_SUCCEEDED


class StageConnection:
    """Connects to one stage, which may not listen yet, and connects again when that breaks.

    What is sent while it is not connected is dropped. A stage that sends far more than any answer is left alone for a
    while: who reads says with `leave` that it does.

    Args:
        endpoint: of the stage, tcp://host:port.
        keys: of this process; None = the link has none.
        is_insecure: allow a host that is not loopback without keys.
        silence_s: a connection over which nothing comes for longer is made anew; None = it may be silent.
        what: the subject of sentences, such as "the target".
    Raises: ConfigError if the endpoint is malformed, if keys are missing, or the stages' public one is, and if the
        system refuses.
    """

    def __init__(
        self, context: Context, endpoint: str, keys: Keys | None, is_insecure: bool, silence_s: float | None, what: str
    ) -> None:
        require_keys(host_of(endpoint, "the stage"), keys, is_insecure, f"{what} would connect to the stage at")
        self.endpoint = endpoint
        self.has_broken = False  # it was connected, and then was not
        self._what = what
        self._is_connected = self._was_connected = False
        self._num_broken = 0  # handshakes, since it was connected
        self._again_s = math.inf  # when it connects again: ZeroMQ does not after a refused key, or what is not ZMTP
        self._keys = keys
        self._stage_key = b"" if keys is None else keys.public_key_of("stage")
        self._connect = partial(_connecting, context, endpoint, keys, silence_s)
        try:
            self._socket: TargetSocket | None = self._connect(self._stage_key)  # None: it is left alone
        except zmq.ZMQError as error:
            raise ConfigError(f"the stage at {endpoint} cannot be connected: {error.strerror}") from error

    @property
    def is_ready(self) -> bool:
        """Whether what is sent now goes to the stage."""
        return self._is_connected and self._socket is not None and self._socket.can_send

    @property
    def is_left(self) -> bool:
        """Whether it is left alone."""
        return self._socket is None

    @property
    def floods(self) -> bool:
        """Whether it sends what is never whole."""
        return self._socket is not None and self._socket.has_cut

    @property
    def sockets(self) -> Sequence[Socket]:
        """What to wait for."""
        return () if self._socket is None else self._socket.sockets

    def leave(self) -> None:
        """End the connection, with all that came and is not read, until `come_back`."""
        self.close()
        self._socket, self.has_broken = None, self.has_broken or self._is_connected
        self._is_connected, self._again_s = False, math.inf

    def come_back(self) -> None:
        """Start to connect again, with the stages' key of now. If the system refuses, it stays left alone."""
        self._take_newer_key()
        with contextlib.suppress(zmq.ZMQError):
            self._socket = self._connect(self._stage_key)

    def check(self) -> str | None:
        """Note what has become of the connection.

        Returns: why it cannot be made again, as far as is known now.
        Raises: ConfigError if it never was made, and cannot be, for a reason that waiting does not change.
        """
        if time.monotonic() >= self._again_s:
            self.leave()
            self.come_back()
        why: str | None = None
        for event, value in () if self._socket is None else self._socket.events():
            why = self._note(event, value) or why
            if why is not None and not self._was_connected:
                raise ConfigError(why)
        return why

    def take_break(self) -> bool:
        """Whether it has broken since the last call."""
        has_broken, self.has_broken = self.has_broken, False
        return has_broken

    def send(self, frames: Sequence[bytes | memoryview]) -> bool:
        """Send without waiting. Returns: False if it is not connected, or if the stage does not read."""
        return self._socket is not None and self._socket.send(frames)

    def read(self) -> Iterator[list[bytes]]:
        """The multiparts that have arrived."""
        return iter(()) if self._socket is None else self._socket.read()

    def close(self, linger_ms: int = 0) -> None:
        """Close the connection. What was sent has `linger_ms` to leave."""
        if self._socket is not None:
            self._socket.close(linger_ms)

    def _note(self, event: int, value: int) -> str | None:
        """Returns: why the connection cannot be made, as far as this event tells."""
        if event & (zmq.EVENT_DISCONNECTED | HANDSHAKE_FAILED):
            self._again_s = time.monotonic() + GIVEN_UP_S
        if event == READY:
            self._is_connected = self._was_connected = True
            self._num_broken, self._again_s = 0, math.inf
        elif event & LOST and self._is_connected:
            self._is_connected, self.has_broken = False, True
        elif event & HANDSHAKE_FAILED:
            self._num_broken += 1
            if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                self._again_s = time.monotonic() + REFUSED_KEY_RETRY_S
            elif self._take_newer_key():
                self._again_s = time.monotonic()
            return self._why_failed(event, value)
        return None

    def _take_newer_key(self) -> bool:
        """Returns: whether the stages have another key by now."""
        key = None if self._keys is None else self._keys.newer_key_of("stage", self._stage_key)
        self._stage_key = self._stage_key if key is None else key
        return key is not None

    def _why_failed(self, event: int, value: int) -> str | None:
        """None: it may be a stage that is starting, or stopping."""
        if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            remedy = "copy this role's .public file to its folder of keys"
            return f"the stage at {self.endpoint} does not know the key of {self._what} ({value}): {remedy}"
        if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
            return f"{self.endpoint} does not speak as {self._what} does: keys on one side only, or not a stage"
        if self._num_broken < MAX_BROKEN:
            return None
        return (
            f"the stage at {self.endpoint} breaks off the handshake: does stage.public of {self._what} belong to "
            "another stage, are keys on one side only, is it a server of another kind, or is the link so slow that a "
            f"handshake takes more than {HANDSHAKE_MS / 1000:g} s?"
        )


def _connecting(
    context: Context, endpoint: str, keys: Keys | None, silence_s: float | None, stage_key: bytes
) -> TargetSocket:
    """Raises: zmq.ZMQError."""
    socket = make_socket(context, zmq.DEALER, MAX_TRAVERSAL_BYTES)
    try:
        _set_times(socket, silence_s)
        if keys is not None:
            keys.secure_client(socket, stage_key)
    except BaseException:
        socket.close(0)
        raise
    return TargetSocket.connecting(socket, endpoint, LOST | HANDSHAKE_FAILED | READY)


def _set_times(socket: Socket, silence_s: float | None) -> None:
    socket.reconnect_ivl, socket.reconnect_ivl_max = 50, 250
    if silence_s is None:
        socket.heartbeat_ivl = 0  # none: the kernel's KEEPALIVE remains
        return
    silence_ms = int(1000 * silence_s)
    socket.heartbeat_ivl = max(1, silence_ms // BEATS_IN_SILENCE)
    socket.heartbeat_timeout = socket.heartbeat_ttl = silence_ms
