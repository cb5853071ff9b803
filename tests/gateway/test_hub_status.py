"""The gateway knows the hub when it answers, and does not mind when it does not."""

from __future__ import annotations

import asyncio
import time

import pytest
import zmq.asyncio
from structlog.testing import capture_logs

from starspec.errors import PeerLost, PeerProtocolError
from starspec.gateway.hub_status import INTERVAL_S, TIMEOUT_S, HubStatusClient, HubStatusPoller
from starspec.stats import HubStats
from starspec.wire.codec import encode
from starspec.wire.messages import HubStatus


async def test_a_silent_hub_leaves_no_stale_status() -> None:
    answers: list[HubStatus | PeerLost] = [HubStatus("tiny", HubStats()), PeerLost("silent"), PeerLost("silent")]

    async def ask() -> HubStatus:
        answer = answers.pop(0)
        if isinstance(answer, PeerLost):
            raise answer
        return answer

    watch = HubStatusPoller(ask)
    await watch.refresh()
    assert watch.status is not None
    await watch.refresh()
    await watch.refresh()
    assert watch.status is None


async def test_the_log_says_that_a_hub_is_silent_and_that_it_answers_again() -> None:
    answers = iter([True, False, False, True, True])

    async def ask() -> HubStatus:
        if not next(answers):
            raise PeerLost("silent")
        return HubStatus("tiny", HubStats())

    watch = HubStatusPoller(ask)
    with capture_logs() as logs:
        for _ in range(5):
            await watch.refresh()
    assert [entry["event"] for entry in logs] == ["the hub does not answer", "the hub answers again"]


async def test_an_address_that_is_not_a_hubs_is_told_once_although_no_hub_was_there_before() -> None:
    async def ask() -> HubStatus:
        raise PeerProtocolError("it is a target")

    watch = HubStatusPoller(ask)
    with capture_logs() as logs:
        for _ in range(3):
            await watch.refresh()
    assert [(entry["log_level"], entry["why"]) for entry in logs] == [("warning", "it is a target")]


async def test_whoever_wants_to_know_is_told_of_each_change_when_it_is_whole() -> None:
    answers = iter([False, True, True, False, False, True])
    told: list[tuple[str, bool]] = []

    async def ask() -> HubStatus:
        if not next(answers):
            raise PeerLost("silent")
        return HubStatus("tiny", HubStats())

    watch = HubStatusPoller(ask)
    watch.on_change(lambda: told.append((watch.state, watch.status is not None)))
    for _ in range(6):
        await watch.refresh()
    assert told == [("connected", True), ("lost", False), ("connected", True)]


async def test_a_hung_hub_is_lost_within_the_time_of_a_poll_and_an_answer() -> None:
    """The kernel takes connections to a process that hangs, so only time tells."""
    hub = zmq.asyncio.Context.instance().socket(zmq.ROUTER)
    client = HubStatusClient(f"tcp://127.0.0.1:{hub.bind_to_random_port('tcp://127.0.0.1')}")
    poller, is_lost = HubStatusPoller(client), asyncio.Event()
    polling = asyncio.create_task(poller.run())
    try:
        async with asyncio.timeout(20):
            peer, _ = await hub.recv_multipart()
            poller.on_change(lambda: is_lost.set() if poller.state == "lost" else None)
            await hub.send_multipart([peer, encode(HubStatus("tiny", HubStats()))])
            answered_s = time.monotonic()
            await is_lost.wait()
            assert INTERVAL_S + TIMEOUT_S <= time.monotonic() - answered_s < 2.0
    finally:
        polling.cancel()
        client.close()
        hub.close(linger=0)


async def test_a_hub_that_is_gone_is_lost_before_the_time_of_an_answer_is_over() -> None:
    hub = zmq.asyncio.Context.instance().socket(zmq.ROUTER)
    client = HubStatusClient(f"tcp://127.0.0.1:{hub.bind_to_random_port('tcp://127.0.0.1')}", timeout_s=60.0)
    try:
        async with asyncio.timeout(20):
            asking = asyncio.create_task(client())
            await hub.recv_multipart()  # and says nothing
            hub.close(linger=0)
            with pytest.raises(PeerLost, match="nobody listens"):
                await asking
            with pytest.raises(PeerLost, match="nobody listens"):
                await client()
    finally:
        client.close()
