"""Reserved ports: usable by their server, by nobody else, known beforehand."""

import socket

import pytest
import zmq

from starspec.errors import ConfigError
from starspec.supervise.ports import PortReservations

HOST = "127.0.0.1"


def test_a_server_can_listen_on_a_reserved_port_again_and_again() -> None:
    with PortReservations() as ports:
        port = ports.reserve(HOST, 0)
        for _ in range(3):
            with socket.create_server((HOST, port)):
                socket.create_connection((HOST, port)).close()


def test_zeromq_can_bind_a_reserved_port() -> None:
    with PortReservations() as ports, zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.bind(f"tcp://{HOST}:{ports.reserve(HOST, 0)}")


def test_nobody_else_is_given_a_reserved_port() -> None:
    with PortReservations() as ports:
        taken = {ports.reserve(HOST, 0) for _ in range(50)}
        assert len(taken) == 50
        for _ in range(50):
            with socket.socket() as other:
                other.bind((HOST, 0))
                assert other.getsockname()[1] not in taken


def test_a_port_in_use_is_said_in_one_sentence() -> None:
    with PortReservations() as ports, socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on {HOST}:{port}: address already in use"):
            ports.reserve(HOST, port)
