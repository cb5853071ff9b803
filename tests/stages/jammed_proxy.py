"""A proxy that stops what is large, and lets all else pass: as a path does that drops long packets."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

LARGE_BYTES: Final = 50_000  # that a connection has carried to the server: handshakes and signs of life are fewer
CHUNK_BYTES: Final = 65536


class JammedProxy:
    """Carries connections to one server, in threads. A context manager.

    Args:
        to: the server's endpoint.
    """

    def __init__(self, to: str) -> None:
        host, _, port = to.removeprefix("tcp://").rpartition(":")
        self._to = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = [self._listener]
        self._jams = threading.Event()
        self._is_for_ever = False
        self.num_jammed = 0  # connections over which nothing passes any more

    @property
    def endpoint(self) -> str:
        return f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"

    def jam(self, *, is_for_ever: bool) -> None:
        """Stop the next large connection that sends something. Args: is_for_ever: those that come later, too."""
        self._is_for_ever = is_for_ever
        self._jams.set()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)  # its threads end
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._to)
            except OSError:
                return
            self._sockets += [client, server]
            threading.Thread(target=self._carry, args=(client, server, True), daemon=True).start()
            threading.Thread(target=self._carry, args=(server, client, False), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket, is_forth: bool) -> None:
        num_bytes = 0
        try:
            while data := source.recv(CHUNK_BYTES):
                num_bytes += len(data)
                if is_forth and num_bytes > LARGE_BYTES and self._jams.is_set():
                    self._jam()
                    return  # both connections stay open
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def _jam(self) -> None:
        self.num_jammed += 1
        if not self._is_for_ever:
            self._jams.clear()
