"""What the gateway tells of itself: ready or not, and how each target and the hub are."""

from __future__ import annotations

import asyncio
from typing import Any

from starspec.errors import PeerLost
from starspec.stats import HubStats
from starspec.wire.messages import HubStatus


async def health_when(gateway: Any, holds: Any) -> dict[str, Any]:
    """The health report, as soon as it is as wanted."""
    async with asyncio.timeout(20):
        while not holds(report := (await gateway.http.get("/health")).json()):
            pass
    return dict(report)


async def test_health_tells_the_state_of_each_target_and_of_its_hub(start_gateway: Any) -> None:
    gateway = await start_gateway(num_targets=2)
    one, other = gateway.targets
    one.hub_state, other.hub_state = "connected", "lost"
    report = await health_when(gateway, lambda report: all(each["hub"] for each in report["targets"]))
    assert (report["status"], report["num_targets"], report["hub"]) == ("degraded", 2, None)
    states = [(each["name"], each["state"], each["hub"]["state"], each["hub"]["for_s"]) for each in report["targets"]]
    assert states == [("t0", "ready", "connected", 1.5), ("t1", "ready", "lost", 1.5)]
    assert "toy://" not in str(report)  # whoever has no key learns no address
    other.hub_state = "connected"
    await health_when(gateway, lambda report: report["status"] == "ok")
    other.is_answering = False
    report = (await gateway.http.get("/health")).json()
    assert (report["status"], report["num_targets"]) == ("degraded", 1)
    assert [each["state"] for each in report["targets"]] == ["ready", "silent"]
    one.lose()
    report = await health_when(gateway, lambda report: report["status"] == "unavailable")
    assert [each["state"] for each in report["targets"]] == ["unreachable", "silent"]


async def test_ready_is_who_can_answer_and_a_ping_is_empty(gateway: Any) -> None:
    for path, status in (("/ping", 200), ("/health/ready", 200), ("/v1/models", 200)):
        assert (await gateway.http.get(path)).status_code == status
    assert (await gateway.http.get("/ping")).content == b""
    assert (await gateway.http.post("/ping")).status_code == 200
    gateway.target.is_answering = False
    for path in ("/ping", "/health/ready", "/health", "/v1/models"):
        assert (await gateway.http.get(path)).status_code == 503
    gateway.target.is_answering = True
    assert (await gateway.http.get("/health/ready")).status_code == 200


async def test_a_target_that_waits_for_its_stages_is_not_ready_and_gets_no_requests(start_gateway: Any) -> None:
    gateway = await start_gateway(num_targets=2)
    for each in gateway.targets:
        each.lacks_stages = True
    report = await health_when(gateway, lambda report: report["status"] == "unavailable")
    assert [each["state"] for each in report["targets"]] == ["starting", "starting"]
    assert (await gateway.http.get("/health/ready")).status_code == 503
    assert (await gateway.post("/v1/completions", prompt="hi", max_tokens=4)).status_code == 503
    gateway.targets[1].lacks_stages = False
    report = await health_when(gateway, lambda report: report["num_targets"] == 1)
    assert (await gateway.post("/v1/completions", prompt="hi", max_tokens=4)).status_code == 200
    assert not gateway.targets[0].submitted


async def test_health_tells_whether_the_hub_answers(start_gateway: Any) -> None:
    is_there = asyncio.Event()

    async def fetch() -> HubStatus:
        if not is_there.is_set():
            raise PeerLost("silent")
        return HubStatus("tiny", HubStats())

    gateway = await start_gateway(fetch_hub_status=fetch)
    report = (await gateway.http.get("/health")).json()
    assert (report["status"], report["hub"]["state"]) == ("degraded", "connecting")
    is_there.set()
    await health_when(gateway, lambda report: report["hub"]["state"] == "connected")
    is_there.clear()
    await health_when(gateway, lambda report: report["hub"]["state"] == "lost")
