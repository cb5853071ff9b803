"""A bare ZeroMQ echo between two processes: the smallest possible round trip on this machine."""

from __future__ import annotations

import time
from multiprocessing.connection import Connection

import zmq

TIMEOUT_MS = 10_000


class CurvePair:
    """Fresh keys for one echo."""

    def __init__(self) -> None:
        self.server_public, self.server_secret = zmq.curve_keypair()
        self.client_public, self.client_secret = zmq.curve_keypair()


def run_echo(parent: Connection, curve: CurvePair | None) -> None:
    """Echo every message until the parent says anything. Sends: the port."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    if curve is not None:
        socket.curve_server = True
        socket.curve_publickey, socket.curve_secretkey = curve.server_public, curve.server_secret
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    parent.send(port)
    poller = zmq.Poller()
    poller.register(socket, zmq.POLLIN)
    poller.register(parent.fileno(), zmq.POLLIN)
    try:
        while not parent.poll():
            if dict(poller.poll()).get(socket):
                socket.send_multipart(socket.recv_multipart())
    finally:
        socket.close(linger=0)
        context.term()


def measure_echo(
    port: int, num_bytes: int, curve: CurvePair | None, num_repeats: int, pause_s: float = 0.0
) -> list[float]:
    """Seconds of each round trip of `num_bytes`, with a pause before each.

    Raises: zmq.Again if the echo does not answer.
    """
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.rcvtimeo = TIMEOUT_MS
    if curve is not None:
        socket.curve_serverkey = curve.server_public
        socket.curve_publickey, socket.curve_secretkey = curve.client_public, curve.client_secret
    socket.connect(f"tcp://127.0.0.1:{port}")
    payload = bytes(num_bytes)
    try:
        times = []
        for _ in range(num_repeats):
            time.sleep(pause_s)
            started_s = time.perf_counter()
            socket.send(payload)
            socket.recv()
            times.append(time.perf_counter() - started_s)
        return times
    finally:
        socket.close(linger=0)
        context.term()


def run_caller(parent: Connection, port: int, num_bytes: int, num_repeats: int, pause_s: float) -> None:
    """Call an echo as often as a target calls its hub.

    Sends: True once it runs; after the parent's word, a list of round trips in seconds.
    """
    parent.send(True)
    parent.recv()
    parent.send(measure_echo(port, num_bytes, None, num_repeats, pause_s))
