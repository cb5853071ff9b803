"""A peer that speaks ZMTP by hand, and so can do what ZeroMQ's own sockets do not."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable

PATIENCE_S = 20.0
PONG = b"\x04PONG"
READY = b"\x05READY"


def handshake(kind: bytes = b"DEALER", identity: bytes = b"") -> bytes:
    """What a peer without keys sends before its first message: the greeting, and READY."""
    properties = b"".join(
        bytes([len(name)]) + name + struct.pack(">I", len(value)) + value
        for name, value in ((b"Socket-Type", kind), (b"Identity", identity))
    )
    ready = READY + properties
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
    return greeting + b"\x04" + bytes([len(ready)]) + ready


class HandMade:
    """A ZMTP 3.0 connection without keys that can begin a multipart and not end it, which ZeroMQ's own cannot.

    Args:
        connection: to a ZeroMQ socket.
        kind: of socket that it pretends to be.
    """

    def __init__(self, connection: socket.socket, kind: bytes = b"DEALER", identity: bytes = b"") -> None:
        self.socket = connection
        connection.settimeout(PATIENCE_S)
        connection.sendall(handshake(kind, identity))
        self._read(64)  # the other end's greeting
        assert self.receive().startswith(READY)

    @classmethod
    def to(cls, port: int, identity: bytes = b"") -> HandMade:
        """A connection to a listening socket."""
        return cls(socket.create_connection(("127.0.0.1", port), PATIENCE_S), identity=identity)

    def __enter__(self) -> HandMade:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, frame: bytes) -> None:
        """Send a short frame, which is a whole multipart."""
        self.socket.sendall(b"\x00" + bytes([len(frame)]) + frame)

    def receive(self) -> bytes:
        """The next short frame, or answer to a heartbeat."""
        while True:
            flags, num_bytes = self._read(2)
            frame = self._read(num_bytes)
            if not flags & 4 or frame.startswith((PONG, READY)):
                return frame

    def _read(self, num_bytes: int) -> bytes:
        data = b""
        while len(data) < num_bytes:
            part = self.socket.recv(num_bytes - len(data))
            if not part:
                raise ConnectionError("the other end closed")
            data += part
        return data

    def send_until_cut(self, frame: bytes, num_bytes: int, meanwhile: Callable[[], None] = lambda: None) -> bool:
        """Send one endless multipart. Returns: whether the connection ended before so many bytes had left."""
        part, num_sent = b"\x03" + struct.pack(">Q", len(frame)) + frame, 0
        try:
            while num_sent < num_bytes:
                self.socket.sendall(part)
                num_sent += len(part)
                meanwhile()
        except ConnectionError:
            return True
        return False
