"""Ports of the targets' own, out of a range that others use too."""

from __future__ import annotations

import socket
from contextlib import ExitStack, suppress

import zmq

from starspec.wire.messages import Refused
from starspec.wire.transports.public_port import Ports


def test_the_data_ports_come_from_the_range_and_end_with_it(star) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        taken = probe.getsockname()[1]
        probe.listen()
        hub = star.hub(data_ports=(taken, taken))
        answer = star.raw(hub.endpoint).greet()
    assert isinstance(answer, Refused)
    assert answer.code == "full"
    assert f"every port from {taken} to {taken} is taken" in answer.reason
    target = star.connected(hub.endpoint)
    assert target.welcome is not None
    assert target.welcome.port == taken


def test_a_long_row_of_ports_in_use_hides_no_free_one_behind_it() -> None:
    first, last = 20_000, 20_000 + 300
    with ExitStack() as stack:
        context = stack.enter_context(zmq.Context())
        for port in range(first, last):
            taken = stack.enter_context(socket.socket())
            with suppress(OSError):  # somebody has it already
                taken.bind(("127.0.0.1", port))
                taken.listen()
        found, port = Ports(context, "127.0.0.1", None, (first, last + 300)).open_data_port()
        found.close(linger=0)
        assert port >= last
