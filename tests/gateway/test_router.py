"""Routing, and what becomes of requests whose target is lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from starspec.config import MIN_SERVING_LEASE_S, TargetConfig
from starspec.errors import CapacityError, ConfigError, PeerLost, PeerProtocolError, RequestError, StarspecError
from starspec.gateway import open_request
from starspec.gateway.generation import Generation
from starspec.gateway.generation_request import GenerationRequest, ReplyOptions
from starspec.gateway.routed_target import ASK_INTERVAL_S, RoutedTarget
from starspec.gateway.router import Router
from starspec.gateway.target_set import Assignments, TargetSet
from starspec.ids import RequestId, TargetId
from starspec.log_limit import LINES, LogLimit
from starspec.policy.routing import MAX_TARGETS, QUIET_S
from starspec.policy.target_health import PAUSE_S, SILENCE_S, UNREACHED_S, TargetHealth
from starspec.sampling.spec import SamplingSpec
from starspec.stats import HubStats
from starspec.wire.messages import (
    PROTOCOL_VERSION,
    Ask,
    EngineOutput,
    HubStatus,
    PromptLogprob,
    Refused,
    Rejected,
    RequestSpec,
    TokenLogprob,
    Verified,
)
from starspec.wire.serving_news import Unreadable

SPEC = RequestSpec(prompt_token_ids=[1, 2, 3], sampling=SamplingSpec())


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def generation_request(num_answers: int = 1, *, is_stream: bool = False) -> GenerationRequest:
    return GenerationRequest(
        specs=(SPEC,) * num_answers,
        num_prompts=1,
        prompt_param="prompt",
        options=ReplyOptions(is_stream=is_stream),
    )


def streamed(num_answers: int = 1) -> GenerationRequest:
    return generation_request(num_answers, is_stream=True)


async def connected(router: Router, num_targets: int) -> None:
    await until(lambda: len(router.statuses) >= num_targets)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 (the router has no event for this: nobody waits)
            await asyncio.sleep(0)


@pytest.fixture
def targets(make_target: Callable[[str], Any]) -> list[Any]:
    made = [make_target(name) for name in ("a", "b", "c")]
    for target in made:
        target.script = None
    return made


async def test_requests_spread_over_idle_targets_in_turn(targets: list[Any]) -> None:
    async with Router(targets) as router:
        await connected(router, 3)
        async with Generation(router, generation_request(6), "r"):
            assert [len(target.open) for target in targets] == [2, 2, 2]


async def test_the_least_loaded_target_is_picked_whoever_loads_the_others(targets: list[Any]) -> None:
    targets[0].num_busy, targets[1].num_busy, targets[2].num_busy = 5, 1, 3
    async with Router(targets) as router:
        await connected(router, 3)
        async with Generation(router, generation_request(4), "r"):
            assert [len(target.open) for target in targets] == [0, 3, 1]


async def test_of_equals_the_one_longest_without_a_request_is_picked(targets: list[Any]) -> None:
    async with Router(targets) as router:
        await connected(router, 3)
        picked = []
        for turn in range(4):
            async with Generation(router, generation_request(), f"r{turn}"):
                picked += [index for index, target in enumerate(targets) if target.open]
        assert picked == [0, 1, 2, 0]


async def test_a_lost_target_is_skipped_until_it_tells_its_status_again(targets: list[Any]) -> None:
    async with Router(targets) as router:
        await connected(router, 3)
        targets[0].lose()
        async with Generation(router, generation_request(4), "r"):
            assert [len(target.open) for target in targets] == [0, 2, 2]
        targets[0].restore()
        await connected(router, 3)
        async with Generation(router, generation_request(3), "s"):
            assert len(targets[0].open) == 1


async def test_a_target_that_drains_gets_no_request_that_it_would_refuse(targets: list[Any]) -> None:
    targets[0].is_stopping = targets[1].is_stopping = True
    async with Router(targets) as router:
        await connected(router, 3)
        async with Generation(router, generation_request(4), "r"):
            assert [len(target.open) for target in targets] == [0, 0, 4]


async def test_losing_a_target_fails_its_own_requests_and_no_others(targets: list[Any]) -> None:
    async with Router(targets[:2]) as router:
        await connected(router, 2)
        async with (
            Generation(router, streamed(), "x") as first,
            Generation(router, streamed(), "y") as second,
        ):
            targets[0].emit(RequestId("x-0"), "seen")
            assert (await first.next(20)).output.text == "seen"
            targets[0].lose()
            with pytest.raises(PeerLost, match="connection closed"):
                await first.next(20)
            targets[1].emit(RequestId("y-0"), "fine", finish="stop")
            assert (await second.next(20)).output.text == "fine"
            assert second.is_finished


@pytest.mark.parametrize(
    "more",
    [
        {"token_ids": [1] * 9},
        {"text": "x" * 101},
        {"logprobs": [TokenLogprob(1, -0.5, [])]},
        {"prompt_logprobs": [PromptLogprob(1, -0.5, 1, [])]},
        {"token_ids": [1], "verified": Verified([])},
        {"token_ids": [1], "stop_reason": "s" * 5000},
        {},
    ],
    ids=lambda more: " and ".join(more) or "nothing",
)
async def test_an_answer_that_is_more_than_was_asked_for_ends(
    targets: list[Any], monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    monkeypatch.setattr(open_request, "MAX_TOKENS", 4)
    monkeypatch.setattr(open_request, "MORE_TOKENS", 4)
    monkeypatch.setattr(open_request, "MAX_TEXT", 100)
    target = targets[0]
    async with Router([target]) as router:
        await connected(router, 1)
        async with Generation(router, streamed(), "r") as generation:
            target.emit(RequestId("r-0"), "fine")
            assert (await generation.next(20)).output.text == "fine"
            target.say(EngineOutput(**{"request_id": RequestId("r-0"), "token_ids": [], "text": "", **more}))
            with pytest.raises(PeerProtocolError, match="the target answered more than it was asked for"):
                await generation.next(20)
            await target.until(lambda: target.aborted)
    assert target.aborted == ["r-0"]


async def test_an_answer_that_makes_no_sense_comes_from_another_target_unless_its_client_has_seen_some(
    targets: list[Any],
) -> None:
    async with Router(targets[:2]) as router:
        await connected(router, 2)
        async with Generation(router, streamed(2), "r") as generation:
            targets[0].say(Unreadable(RequestId("r-0"), "no message"))
            await targets[1].until(lambda: "r-0.2" in targets[1].open)
            targets[1].emit(RequestId("r-1"), "seen")
            assert (await generation.next(20)).output.text == "seen"
            targets[1].say(Unreadable(RequestId("r-1"), "no message"))
            with pytest.raises(PeerProtocolError, match="the target answered what cannot be read"):
                await generation.next(20)
        assert ("r-0" in targets[0].aborted, "r-1" in targets[1].aborted) == (True, True)
        targets[0].say(Unreadable(RequestId("r-0"), "of a request that has ended"))
        targets[0].say(Refused("invalid", "heard behind it"))
        await until(lambda: router.targets[0]._refusal != "")
        assert [each.num_broken_answers for each in router.targets] == [1, 1]


async def test_an_answer_whose_client_has_seen_nothing_goes_to_another_target_with_the_same_seed(
    targets: list[Any],
) -> None:
    async with Router(targets[:2]) as router:
        await connected(router, 2)
        async with Generation(router, streamed(), "r") as generation:
            targets[0].lose()
            await targets[1].until(lambda: targets[1].open)
            assert targets[1].submitted["r-0.2"] == targets[0].submitted["r-0"]  # the seed is a part of it
            targets[1].emit(RequestId("r-0.2"), "all of it", finish="stop")
            assert (await generation.next(20)).output.text == "all of it"
            assert generation.is_finished


async def test_an_answer_in_one_piece_starts_anew_at_another_target(targets: list[Any]) -> None:
    async with Router(targets[:2]) as router:
        await connected(router, 2)
        async with Generation(router, generation_request(), "r") as generation:
            targets[0].emit(RequestId("r-0"), "half")
            targets[0].lose()
            await targets[1].until(lambda: targets[1].open)
            targets[1].emit(RequestId("r-0.2"), "half")
            targets[1].emit(RequestId("r-0.2"), " and half", finish="stop")
            parts = [await generation.next(20) for _ in range(3)]
        assert [(part.output.text, part.starts_anew) for part in parts] == [
            ("half", False),
            ("half", True),
            (" and half", False),
        ]


async def test_of_several_streamed_answers_those_not_begun_move(targets: list[Any]) -> None:
    async with Router(targets) as router:
        await connected(router, 3)
        async with Generation(router, streamed(2), "r") as generation:
            targets[0].emit(RequestId("r-0"), "seen")
            assert (await generation.next(20)).output.text == "seen"
            targets[1].lose()
            await targets[2].until(lambda: targets[2].open)
            assert list(targets[2].open) == ["r-1.2"]


async def test_an_answer_that_ends_its_targets_does_not_end_them_all(make_target: Callable[[str], Any]) -> None:
    targets = [make_target(str(number)) for number in range(MAX_TARGETS + 1)]
    for target in targets:
        target.script = None
    async with Router(targets) as router:
        await connected(router, len(targets))
        async with Generation(router, generation_request(), "r") as generation:
            for target in targets[:MAX_TARGETS]:
                await target.until(lambda target=target: target.open)
                target.lose()
            with pytest.raises(PeerLost):
                await generation.next(20)
        assert not targets[MAX_TARGETS].submitted


async def test_an_answer_that_a_target_has_no_room_for_is_tried_at_another(targets: list[Any]) -> None:
    targets[0].refusal = Rejected(RequestId(""), "the queue is full", None, 503)
    async with Router(targets[:2]) as router:
        await connected(router, 2)
        async with Generation(router, streamed(), "r"):
            await targets[1].until(lambda: targets[1].open)


async def test_one_lost_answer_fails_the_request_and_aborts_its_other_answers(targets: list[Any]) -> None:
    async with Router(targets[:2]) as router:
        await connected(router, 2)
        async with Generation(router, streamed(2), "r") as generation:
            targets[0].emit(RequestId("r-0"), "seen")
            await generation.next(20)
            targets[0].lose()
            with pytest.raises(PeerLost):
                await generation.next(20)
        assert targets[1].aborted == ["r-1"]


async def test_a_silent_target_gets_no_requests_and_those_that_wait_there_go_elsewhere(targets: list[Any]) -> None:
    clock = Clock()
    router = Router(targets[:2], clock)
    async with router:
        await connected(router, 2)
        silent = router.targets[0]
        async with Generation(router, streamed(3), "r") as generation:
            targets[0].emit(RequestId("r-0"), "seen")
            assert (await generation.next(20)).output.text == "seen"
            targets[0].is_answering = False
            with capture_logs() as logs:
                silent.check()
                silent.check()
            assert [each["event"] for each in logs] == ["a target does not answer: it gets no requests until it does"]
            router.relieve()
            assert list(targets[1].open) == ["r-1", "r-2.2"]
            assert targets[0].aborted == ["r-2"]
            async with Generation(router, generation_request(2), "s"):
                assert list(targets[1].open) == ["r-1", "r-2.2", "s-0", "s-1"]
            clock.now_s += 5.0
            assert (silent.state, silent.state_s) == (TargetHealth.SILENT, 5.0)
            targets[0].is_answering = True
            assert silent.can_answer
            targets[0].emit(RequestId("r-0"), "seen too")  # it was kept: a target that goes on loses nothing
            assert (await generation.next(20)).output.text == "seen too"


async def test_requests_stay_at_a_silent_target_while_there_is_no_other(targets: list[Any]) -> None:
    async with Router(targets[:1]) as router:
        await connected(router, 1)
        async with Generation(router, streamed(), "r") as generation:
            targets[0].is_answering = False
            router.relieve()
            assert list(targets[0].open) == ["r-0"]
            with pytest.raises(CapacityError):
                async with Generation(router, streamed(), "s"):
                    pass
            targets[0].is_answering = True
            targets[0].emit(RequestId("r-0"), "late", finish="stop")
            assert (await generation.next(20)).output.text == "late"


async def test_a_target_in_a_long_step_comes_after_the_others(targets: list[Any]) -> None:
    clock = Clock()
    router = Router(targets[:2], clock)
    async with router:
        await connected(router, 2)
        targets[1].num_busy = 7
        clock.now_s += QUIET_S + 0.1
        targets[1].send(Ask(PROTOCOL_VERSION))
        await until(lambda: not router.targets[1].snapshot().is_quiet)
        assert router.pick(1) is router.targets[1]
        targets[0].send(Ask(PROTOCOL_VERSION))
        await until(lambda: not router.targets[0].snapshot().is_quiet)
        assert router.pick(1) is router.targets[0]


async def test_without_a_target_a_request_is_refused_for_now(targets: list[Any]) -> None:
    async with Router(targets[:1]) as router:
        await connected(router, 1)
        targets[0].lose()
        with pytest.raises(CapacityError) as refused:
            async with Generation(router, generation_request(), "r"):
                pass
        assert refused.value.retry_after_s > 0


async def test_a_queue_is_known_before_the_target_tells_of_it(targets: list[Any]) -> None:
    """Its status comes twice a second; whoever found the queue full meanwhile was told to come back after a second."""
    targets[0].num_busy = 3
    async with Router(targets[:1]) as router:
        await connected(router, 1)
        async with Generation(router, generation_request(4), "r"):
            assert router.targets[0].num_waiting == 0
            async with Generation(router, generation_request(6), "s"):
                assert router.targets[0].num_waiting == 3 + 4 + 6 - 8
        targets[0].lose()
        await until(lambda: not router.targets[0].is_live)
        assert router.targets[0].num_waiting == 0


async def test_how_much_the_targets_hold_is_known_while_all_of_them_are_there(targets: list[Any]) -> None:
    for target, most in zip(targets[:2], (3, 4), strict=True):
        target.max_num_requests = most
    async with Router(targets[:2]) as router:
        await connected(router, 2)
        assert router.max_num_requests == 7
        with pytest.raises(RequestError, match="8 answers, more than the 7"):
            async with Generation(router, generation_request(8), "r"):
                pass
        async with Generation(router, generation_request(7), "r"):
            assert sum(routed.num_open for routed in router.targets) == 7
        targets[0].lose()
        async with asyncio.timeout(20):
            while router.max_num_requests is not None:  # noqa: ASYNC110 (as above)
                await asyncio.sleep(0)
        async with Generation(
            router, generation_request(8), "s"
        ):  # the other may be back in a second: a target decides
            assert router.targets[1].num_open == 8


async def test_answers_already_submitted_are_aborted_when_a_later_one_finds_no_target(targets: list[Any]) -> None:
    long = RequestSpec(prompt_token_ids=[1] * 1000, sampling=SamplingSpec())
    mixed = GenerationRequest(specs=(SPEC, long), num_prompts=2, prompt_param="prompt", options=ReplyOptions())
    async with Router(targets[:1]) as router:
        await connected(router, 1)
        with pytest.raises(CapacityError):
            async with Generation(router, mixed, "r"):
                pass
        assert targets[0].aborted == ["r-0"]


async def test_a_request_that_is_larger_than_a_message_may_be_is_refused_for_good(targets: list[Any]) -> None:
    large = RequestSpec(prompt_token_ids=[1, 2, 3], sampling=SamplingSpec(), prediction=[100_000] * 300_000)
    mixed = GenerationRequest(specs=(SPEC, large), num_prompts=2, prompt_param="prompt", options=ReplyOptions())
    async with Router(targets[:1]) as router:
        await connected(router, 1)
        with pytest.raises(RequestError, match="too large") as refused:
            async with Generation(router, mixed, "r"):
                pass
        assert refused.value.status == 413
        assert targets[0].aborted == ["r-0"]
        assert router.targets[0].num_open == 0


async def test_a_target_that_cannot_be_reached_is_complained_about_late_and_once(targets: list[Any]) -> None:
    clock = Clock()
    (routed,) = Router(targets[:1], clock).targets
    targets[0].lose()
    with capture_logs() as logs:
        while clock.now_s < UNREACHED_S:
            clock.now_s += ASK_INTERVAL_S
            routed.check()
        assert not logs
        for _ in range(3):
            clock.now_s += ASK_INTERVAL_S
            routed.check()
    assert ["could not be reached for 60 s" in each["event"] for each in logs] == [True]


async def test_a_hub_in_the_place_of_a_target_is_told_at_once(targets: list[Any]) -> None:
    (routed,) = Router(targets[:1]).targets
    with capture_logs() as logs:
        listening = asyncio.create_task(routed.listen())
        for _ in range(3):
            targets[0].say(HubStatus("tiny", HubStats()))
        await until(lambda: routed.state is not TargetHealth.STARTING)
        await until(targets[0]._outbox.empty)
        listening.cancel()
    assert routed.state is TargetHealth.REFUSING
    assert [each["why"] for each in logs] == ["a hub listens at this address, and no target"]


async def test_a_target_that_loads_for_long_is_starting_and_no_alarm(targets: list[Any]) -> None:
    clock = Clock()
    (routed,) = Router(targets[:1], clock).targets
    with capture_logs() as logs:
        while clock.now_s < 20 * max(UNREACHED_S, SILENCE_S):
            clock.now_s += ASK_INTERVAL_S
            routed.check()
    assert (routed.state, routed.can_answer, logs) == (TargetHealth.STARTING, False, [])


async def test_a_target_whose_reasons_and_states_alternate_does_not_fill_the_log(targets: list[Any]) -> None:
    async with Router(targets[:1], Clock()) as router:
        await connected(router, 1)
        (routed,) = router.targets
        with capture_logs() as logs:
            for number in range(3 * LINES):
                targets[0].lose()
                targets[0].restore()
                await until(lambda: routed.status is None)
                targets[0]._outbox.put_nowait(Refused("version", f"reason {number}"))
                targets[0].send(Ask(PROTOCOL_VERSION))
                await until(lambda: routed.status is not None)
        counts = Counter(each["event"] for each in logs)
        assert counts.pop("target connected") == LINES - 1  # the first was before
        assert counts == {"target lost": LINES, "a target refuses this gateway": LINES}


async def test_requests_that_move_do_not_fill_the_log(targets: list[Any]) -> None:
    targets[0].refusal = Rejected(RequestId(""), "the queue is full", None, 503)
    async with Router(targets[:2], Clock()) as router:
        await connected(router, 2)
        with capture_logs() as logs:
            async with Generation(router, streamed(6 * LINES), "r"):
                await until(lambda: len(targets[1].open) == 6 * LINES)
        assert [each["event"] for each in logs] == ["a request goes to another target"] * LINES


async def test_a_target_that_hangs_is_lost(targets: list[Any]) -> None:
    clock = Clock()
    router = Router(targets[:1], clock)
    (routed,) = router.targets
    async with router:
        await connected(router, 1)
        events: list[EngineOutput | StarspecError] = []
        routed.submit(RequestId("r"), SPEC, events.append)
        clock.now_s += PAUSE_S  # the gateway itself was not asleep: it looks in between
        routed.check()
        assert not events
        while clock.now_s <= SILENCE_S:
            clock.now_s += PAUSE_S
            routed.check()
        assert [type(event) for event in events] == [PeerLost]
        assert targets[0].aborted == ["r"]  # it may only have been slow
        assert (routed.state, routed.is_live) == (TargetHealth.SILENT, False)
        targets[0].send(Ask(PROTOCOL_VERSION))
        await connected(router, 1)
        assert routed.can_answer


async def test_a_gateway_that_was_paused_gives_its_requests_up(targets: list[Any]) -> None:
    clock = Clock()
    router = Router(targets[:1], clock)
    (routed,) = router.targets
    async with router:
        await connected(router, 1)
        events: list[EngineOutput | StarspecError] = []
        routed.submit(RequestId("r"), SPEC, events.append)
        clock.now_s += PAUSE_S + 1
        routed.check()
        assert "suspended" in str(events[0])


def test_a_gateway_asks_several_times_within_the_shortest_lease_that_a_target_may_give() -> None:
    with pytest.raises(ConfigError, match="lease_s must be at least 2"):
        TargetConfig(lease_s=1.9)
    assert TargetConfig(lease_s=MIN_SERVING_LEASE_S).lease_s >= 4 * ASK_INTERVAL_S


async def test_what_comes_after_an_abort_is_dropped(targets: list[Any]) -> None:
    async with Router(targets[:1]) as router:
        await connected(router, 1)
        (routed,) = router.targets
        events: asyncio.Queue[EngineOutput | StarspecError] = asyncio.Queue()
        routed.submit(RequestId("r"), SPEC, events.put_nowait)
        routed.abort(RequestId("r"))
        routed.abort(RequestId("r"))
        targets[0].emit(RequestId("r"), "too late", finish="stop")
        routed.submit(RequestId("s"), SPEC, events.put_nowait)
        targets[0].emit(RequestId("s"), "in time", finish="stop")
        assert (await asyncio.wait_for(events.get(), 20)).text == "in time"
        assert events.empty()
        assert targets[0].aborted == ["r"]
        assert routed.num_open == 0


ENDPOINTS = ("tcp://a:1", "tcp://b:2", "tcp://c:3")
TOLD = st.none() | st.lists(st.sampled_from(("t0", " at ", *ENDPOINTS)), max_size=5).map("".join)


def names_of(*told: str | None) -> list[str]:
    """What targets at the endpoints are called. None = it has told no name."""
    targets = []
    for endpoint, name in zip(ENDPOINTS, told, strict=True):
        link: Any = SimpleNamespace(endpoint=endpoint)
        targets.append(RoutedTarget(link, Clock()))
        targets[-1].name = None if name is None else TargetId(name)
    return TargetSet(lambda: targets, Assignments(LogLimit(Clock()))).names


@pytest.mark.parametrize(
    ("told", "names"),
    [
        (("t0", "t1", None), ["t0", "t1", "tcp://c:3"]),
        (("t0", "t0", "t1"), ["t0 at tcp://a:1", "t0 at tcp://b:2", "t1"]),
        (
            ("t0", "t0", "t0 at tcp://b:2"),
            ["t0 at tcp://a:1", "t0 at tcp://b:2", "t0 at tcp://b:2 at tcp://c:3"],
        ),
        ((None, "tcp://a:1", "t1"), ["tcp://a:1", "tcp://a:1 at tcp://b:2", "t1"]),
    ],
)
def test_a_target_is_called_as_it_says_unless_that_could_be_another_one(
    told: tuple[str | None, ...], names: list[str]
) -> None:
    assert names_of(*told) == names


@given(st.tuples(TOLD, TOLD, TOLD))
def test_no_two_targets_have_one_name_whatever_they_tell(told: tuple[str | None, ...]) -> None:
    assert len({*names_of(*told)}) == len(ENDPOINTS)


async def test_leaving_the_router_aborts_what_is_open_and_closes_the_links(targets: list[Any]) -> None:
    async with Router(targets[:1]) as router:
        await connected(router, 1)
        router.targets[0].submit(RequestId("r"), SPEC, lambda event: None)
    assert targets[0].aborted == ["r"]
    assert targets[0].is_closed
