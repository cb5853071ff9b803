"""The dashboard's routes tell what /metrics tells, to whoever may know it, and stop when the gateway stops."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from starspec.errors import PeerLost
from starspec.gateway.dashboard.feed import StarFeed
from starspec.gateway.dashboard.page import FOLDER, PAGE_FILES
from starspec.gateway.hub_status import HubStatusPoller
from starspec.gateway.router import Router
from starspec.observe.metrics import PREFIX
from starspec.stats import HubStats, HubTargetStats, PipeStats, StageStats
from starspec.wire.messages import HubStatus

HUB = HubStatus("tiny", HubStats(load=0.25, num_full=3, num_max=5), {"t0": HubTargetStats(num_tags=2)})  # type: ignore[dict-item]


async def fetch_hub() -> HubStatus:
    return HUB


@asynccontextmanager
async def live(gateway: Any) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
    """The views of the stream of events."""
    async with gateway.http.stream("GET", "/dashboard/events") as response:
        assert response.headers["content-type"].startswith("text/event-stream")

        async def views() -> AsyncIterator[dict[str, Any]]:
            async for line in response.aiter_lines():
                if line:
                    yield json.loads(line.removeprefix("data: "))

        yield views()


async def view_when(gateway: Any, holds: Any) -> dict[str, Any]:
    """The first view of the stream that is as wanted."""
    async with asyncio.timeout(20), live(gateway) as views:
        async for view in views:
            if holds(view):
                return view
    raise AssertionError("the stream has ended")


def has_all(view: dict[str, Any]) -> bool:
    return all(each["status"] for each in [*view["targets"], *view["hubs"]])


async def test_every_number_of_a_target_and_a_hub_is_that_of_metrics(start_gateway: Any) -> None:
    gateway = await start_gateway(num_targets=2, fetch_hub_status=fetch_hub)
    view = await view_when(gateway, has_all)
    await asyncio.sleep(0.3)  # /metrics may be up to a quarter of a second old
    families = text_string_to_metric_families((await gateway.http.get("/metrics")).text)
    samples = [sample for family in families for sample in family.samples]
    places = {each["name"]: each["metrics"] for each in view["targets"]} | {"tiny": view["hubs"][0]["metrics"]}
    at_hub = view["hubs"][0]["targets"]
    num_compared = 0
    for sample in samples:
        name = sample.name.removeprefix(PREFIX).removesuffix("_total")
        who = sample.labels.get("target") or sample.labels.get("draft")
        if who is None or len(sample.labels) > 1:
            continue
        told = (at_hub if name.startswith("hub_target_") else places)[who]
        assert told[name] == sample.value, name
        num_compared += 1
    assert num_compared == sum(map(len, [*places.values(), *at_hub.values()])) > 100


async def test_a_view_has_the_states_of_health_and_the_counts_by_position(start_gateway: Any) -> None:
    gateway = await start_gateway(num_targets=2, fetch_hub_status=fetch_hub)
    gateway.targets[1].hub_state = "lost"
    view = await view_when(gateway, lambda view: has_all(view) and view["targets"][1]["hub"])
    assert [(each["name"], each["state"]) for each in view["targets"]] == [("t0", "ready"), ("t1", "ready")]
    assert view["targets"][1]["hub"]["state"] == "lost"
    assert view["hubs"][0]["state"] == "connected"
    assert view["targets"][0]["status"]["stats"]["acceptance"]["num_accepted_tokens_per_pos"] == [1, 1]
    gateway.targets[0].is_answering = False
    view = await view_when(gateway, lambda view: view["targets"][0]["state"] == "silent")
    assert "t0 does not answer: it gets no requests until it does" in [each["text"] for each in view["events"]]


async def test_a_hub_that_is_lost_or_back_is_told_before_the_next_look(make_target: Any) -> None:
    """So a hung hub is seen within two seconds: half a second to the next question, and one for its answer."""
    answers = iter([HUB, None, HUB])

    async def ask_hub() -> HubStatus:
        if (answer := next(answers)) is None:
            raise PeerLost("silent")
        return answer

    hub = HubStatusPoller(ask_hub)
    feed = StarFeed(Router([make_target("t0")]), hub, ["toy"], shows_text=False)
    feed.look()
    told = []
    for _ in range(3):
        frame = asyncio.create_task(feed.next_frame())
        await asyncio.sleep(0)
        await hub.refresh()
        view = json.loads(await asyncio.wait_for(frame, 20))
        told.append((view["hubs"][0]["state"], view["hubs"][0]["status"] is not None, view["events"][0]["text"]))
    assert told == [
        ("connected", True, "the hub answers"),
        ("lost", False, "the hub does not answer"),
        ("connected", True, "the hub answers"),
    ]


async def test_targets_of_one_name_are_told_apart_as_in_metrics(start_gateway: Any) -> None:
    gateway = await start_gateway(num_targets=3, fetch_hub_status=fetch_hub)
    gateway.targets[2].name = gateway.targets[1].name
    view = await view_when(gateway, lambda view: "at" in view["targets"][2]["name"])
    names = [each["name"] for each in view["targets"]]
    assert names == ["t0", "t1 at toy://t1", "t1 at toy://t2"]
    for _ in names:
        await ask(gateway)
    star = (await gateway.http.get("/dashboard/state")).json()["star"]
    assert {each["target"] for each in star["requests"]} == set(names)
    await asyncio.sleep(0.3)  # /metrics may be up to a quarter of a second old
    families = text_string_to_metric_families((await gateway.http.get("/metrics")).text)
    assert {each.labels["target"] for family in families for each in family.samples if "target" in each.labels} == {
        *names
    }
    gateway.targets[1].is_connected = False
    view = await view_when(gateway, lambda view: view["targets"][1]["state"] == "unreachable")
    assert [each["name"] for each in view["targets"]] == names


async def test_a_view_has_the_stages_of_a_target_with_the_numbers_of_metrics(start_gateway: Any) -> None:
    gateway = await start_gateway()
    stages = [
        StageStats(endpoint="tcp://a:1", layers="0:2", index=0, is_attached=True, compute_s=1.5, wait_s=0.25),
        StageStats(endpoint="tcp://b:1", layers="2:4", index=1, compute_s=2.5),
        StageStats(endpoint="tcp://c:1", layers="2:4", is_attached=True),
    ]
    gateway.target.pipe = PipeStats(stages=stages, num_traversals=4)
    view = await view_when(gateway, lambda view: view["targets"][0]["stages"])
    told = view["targets"][0]["stages"]
    assert [(each["index"], each["layers"], each["endpoint"], each["state"]) for each in told] == [
        (0, "0:2", "tcp://a:1", "attached"),
        (1, "2:4", "tcp://b:1", "lost"),
        (None, "2:4", "tcp://c:1", "spare"),
    ]
    await asyncio.sleep(0.3)  # /metrics may be up to a quarter of a second old
    families = text_string_to_metric_families((await gateway.http.get("/metrics")).text)
    samples = [sample for family in families for sample in family.samples if "stage" in sample.labels]
    for sample in samples:
        name = sample.name.removeprefix(PREFIX).removesuffix("_total")
        assert told[int(sample.labels["stage"])]["metrics"][name] == sample.value, name
    assert len(samples) == sum(len(each["metrics"]) for each in told) > 4


async def test_the_state_comes_with_its_history(start_gateway: Any) -> None:
    gateway = await start_gateway(fetch_hub_status=fetch_hub)
    await view_when(gateway, has_all)
    response = await gateway.http.get("/dashboard/state")
    assert response.headers["cache-control"] == "no-store"
    whole = response.json()
    times = whole["history"]["times_s"]
    assert len(times) >= 1
    columns = [*whole["history"]["targets"][0].values(), *whole["history"]["hubs"][0].values()]
    assert {len(column) for column in columns} == {len(times)}
    assert whole["star"]["models"] == ["toy-model"]


async def ask(gateway: Any) -> None:
    answer = await gateway.post("/v1/completions", model="toy-model", prompt="Hi", seed=1)
    assert answer.status_code == 200


async def test_a_request_that_has_ended_is_listed_with_its_acceptance_and_without_its_text(gateway: Any) -> None:
    await ask(gateway)
    star = (await gateway.http.get("/dashboard/state")).json()["star"]
    (request,) = star["requests"]
    assert (request["target"], request["finish_reason"], request["num_prompt_tokens"]) == ("t0", "stop", 2)
    assert (request["accepted"], request["acceptance_length"]) == ([0, 1, 0, 1, 0], 3.0)
    assert request["text"] is None
    assert star["shows_text"] is False
    assert "lo, w" not in json.dumps(star)


async def test_show_text_shows_the_beginning_of_an_answer(start_gateway: Any) -> None:
    gateway = await start_gateway(show_text=True)
    gateway.target.script = lambda spec: ["a" * 300, "b" * 300]
    await ask(gateway)
    (request,) = (await gateway.http.get("/dashboard/state")).json()["star"]["requests"]
    assert request["text"] == "a" * 300 + "b" * 100


async def test_the_star_is_behind_the_key(start_gateway: Any) -> None:
    gateway = await start_gateway(api_key="secret")
    async with httpx.AsyncClient(base_url=gateway.url, trust_env=False) as stranger:
        for path in ("/dashboard/state", "/dashboard/events"):
            assert (await stranger.get(path)).status_code == 401
    assert (await gateway.http.get("/dashboard/state")).status_code == 200


async def test_the_page_needs_no_key_and_tells_nothing(start_gateway: Any) -> None:
    gateway = await start_gateway(api_key="secret")
    async with httpx.AsyncClient(base_url=gateway.url, trust_env=False) as stranger:
        for path, file in PAGE_FILES.items():
            response = await stranger.get(path)
            assert (response.status_code, response.content) == (200, file.content)
            assert response.headers["content-type"] == file.media_type
            policy = response.headers["content-security-policy"]
            assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
            assert "unsafe" not in policy
        for other in ("/dashboard/", "/dashboard/state/", "/dashboard/../metrics", "/dashboard/%2e%2e/page.py"):
            assert (await stranger.get(other)).status_code == 401


@pytest.mark.parametrize("path", [each for each in PAGE_FILES if not each.endswith(("uplot.js", ".txt"))])
def test_the_page_has_no_inline_code_and_asks_no_other_server(path: str) -> None:
    text = PAGE_FILES[path].content.decode()
    assert not re.search(r"<script(?![^>]*\bsrc=)|\son\w+=|\sstyle=|innerHTML|insertAdjacentHTML|eval\(", text)
    assert set(re.findall(r"https?://[^\s\"']+", text)) <= {"http://www.w3.org/2000/svg"}


def test_every_file_that_the_page_names_is_there() -> None:
    index = PAGE_FILES["/dashboard"].content.decode()
    assert {f"/{each}" for each in re.findall(r'"(dashboard/[^"]+)"', index)} <= PAGE_FILES.keys()
    for script in FOLDER.glob("*.js"):
        imported = re.findall(r'^import .* from "\./(.+)";$', script.read_text(), re.MULTILINE)
        assert {f"/dashboard/{each}" for each in imported} <= PAGE_FILES.keys()


async def test_a_stream_ends_when_the_gateway_stops(gateway: Any) -> None:
    async with asyncio.timeout(20), live(gateway) as views:
        await anext(views)
        gateway.server.stop()
        async for _ in views:
            pass
    await gateway.serving


async def test_many_streams_get_the_same_frame(gateway: Any) -> None:
    async def two_frames() -> list[dict[str, Any]]:
        async with live(gateway) as views:
            return [await anext(views), await anext(views)]

    async with asyncio.timeout(20):
        several = await asyncio.gather(*(two_frames() for _ in range(8)))
    times = {frame["time_s"] for frames in several for frame in frames}
    assert len(times) <= 4  # each look made one frame for all of them


async def test_the_description_of_the_api_leaves_the_dashboard_out(gateway: Any) -> None:
    paths = (await gateway.http.get("/openapi.json")).json()["paths"]
    assert "/v1/completions" in paths
    assert not [path for path in paths if path.startswith("/dashboard")]


def test_the_playground_asks_nothing_with_an_empty_number() -> None:
    """The browser keeps such a form; an empty field would count as 0."""
    numbers = re.findall(r'<input [^>]*type="number"[^>]*>', PAGE_FILES["/dashboard"].content.decode())
    assert len(numbers) == 3
    assert all(" required " in each for each in numbers)
