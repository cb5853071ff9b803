"""A server that answers with what it is sent, and clients that reach it through a lab."""

from __future__ import annotations

import contextlib
import socket
import threading

TIMEOUT_S = 30.0


class EchoServer:
    """Sends back what it gets, until the client ends."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._listening.getsockname()[1]}"
        self.is_reading = threading.Event()  # cleared: connections are accepted, and nothing is read
        self.is_reading.set()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(TIMEOUT_S)
            while self.is_reading.wait(TIMEOUT_S) and (data := connection.recv(1 << 16)):
                connection.sendall(data)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


def connect(endpoint: str) -> socket.socket:
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    connection = socket.create_connection((host, int(port)), TIMEOUT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def read(connection: socket.socket, num_bytes: int) -> bytes:
    """So many bytes, or fewer if the other end has ended."""
    found = bytearray()
    while len(found) < num_bytes and (data := connection.recv(min(1 << 16, num_bytes - len(found)))):
        found += data
    return bytes(found)
