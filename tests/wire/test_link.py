"""The handshake's table: what may follow what, at both ends alike."""

from __future__ import annotations

from typing import get_args

import pytest

from starspec.errors import LocalProtocolError, PeerProtocolError
from starspec.ids import Epoch, LinkId, Tag, TargetId
from starspec.wire.link import LINK_TRANSITIONS, LinkProtocol, LinkState
from starspec.wire.messages import (
    PROTOCOL_VERSION,
    Goodbye,
    Hello,
    HubToTarget,
    Ping,
    Pong,
    Refused,
    Reopen,
    TargetToHub,
    Verdict,
    Welcome,
)

HELLO = Hello(PROTOCOL_VERSION, TargetId("t"), 100, "f")
WELCOME = Welcome(PROTOCOL_VERSION, LinkId("s"), 1, "d", 4, 10.0)
VERDICT = Verdict(Tag(1), Epoch(2), 3, [1], 4)


def both_after(*messages) -> tuple[LinkProtocol, LinkProtocol]:
    here, there = LinkProtocol(), LinkProtocol()
    for message in messages:
        there.receive(here.send(message))
        assert here.state is there.state
    return here, there


def test_a_handshake_connects_both_ends() -> None:
    here, there = both_after(HELLO, HELLO, WELCOME, HELLO, WELCOME, Ping(0), Ping(0), Pong(0), VERDICT, Ping(1))
    assert here.state is there.state is LinkState.CONNECTED


@pytest.mark.parametrize("ending", [Goodbye(), None], ids=["goodbye", "lost"])
def test_after_an_ending_only_a_new_hello_is_allowed(ending: Goodbye | None) -> None:
    here, _ = both_after(HELLO, WELCOME, Ping(0), Pong(0))
    here.lose() if ending is None else here.send(ending)
    assert here.state is LinkState.DISCONNECTED
    with pytest.raises(LocalProtocolError, match="Verdict is not allowed while the link is disconnected"):
        here.send(VERDICT)
    here.send(HELLO)
    assert here.state is LinkState.GREETING


def test_a_refusal_ends_the_greeting() -> None:
    here, _ = both_after(HELLO, Refused("full", "no"))
    assert here.state is LinkState.DISCONNECTED


@pytest.mark.parametrize("early", [VERDICT, Reopen(Tag(1), Epoch(1))])
def test_traffic_before_the_first_pong_raises_and_changes_nothing(early) -> None:
    here, there = both_after(HELLO, WELCOME)
    with pytest.raises(LocalProtocolError):
        here.send(early)
    with pytest.raises(PeerProtocolError):
        there.receive(early)
    assert here.state is there.state is LinkState.ATTACHING


def test_every_state_can_be_reached_and_left() -> None:
    arrows = {(state, to) for state, row in LINK_TRANSITIONS.items() for to in row.values() if to is not state}
    assert {to for _, to in arrows} == {state for state, _ in arrows} == set(LinkState)


@pytest.mark.parametrize(
    "kind", sorted({*get_args(TargetToHub), *get_args(HubToTarget)} - {Goodbye}, key=lambda kind: kind.__name__)
)
def test_whatever_may_be_said_on_a_targets_own_port_leaves_a_connected_link_connected(kind: type) -> None:
    assert LINK_TRANSITIONS[LinkState.CONNECTED][kind] is LinkState.CONNECTED
