"""Whatever a hub sends, a vLLM server is hardly slower than without one, and its tokens are its own: virtual time."""

from __future__ import annotations

from functools import cache

import pytest
from hostile_hubs import HOSTILE, Clock, GoodHub, linked_to
from structlog.testing import capture_logs
from toy import VOCAB_SIZE, next_of
from toy_vllm import ToyVllm

from starspec.integrations.vllm.drafting import StepDrafter
from starspec.integrations.vllm.hub_client import HubClient, account_of
from starspec.integrations.vllm.settings import VllmSettings
from starspec.policy.deadline import StepTimeDeadline

NUM_TOKENS = 450
STEP_TOKEN_S = 0.005  # what each token adds to a step
MOST = 1.2  # times plain decoding,
FIRST_S = 1.0  # after this


class ServedVllm(ToyVllm):
    """With a hub behind a real link instead of the toy one; None = no hub answers."""

    def __init__(self, hub: type[GoodHub] | None, *, adaptive: bool) -> None:
        super().__init__(token_s=STEP_TOKEN_S, fallback="none", adaptive=adaptive)
        if hub is None:
            self.hub.kill()
            return
        clock = Clock()
        clock.now = self.clock.now
        self.clock = clock  # type: ignore[assignment] # it has the same attribute
        self.hub.clock = clock  # type: ignore[assignment]
        self.deadline = StepTimeDeadline(None)
        link = linked_to(hub(clock), clock)
        settings = VllmSettings(fallback="none", adaptive=adaptive)
        self.client = HubClient(link, self.deadline, VOCAB_SIZE, 0.0, clock, account_of(settings))
        self.drafter = StepDrafter(self.client, self.deadline, settings, 4, 512, clock)


def seconds_of(hub: type[GoodHub] | None, *, adaptive: bool = True) -> float:
    vllm = ServedVllm(hub, adaptive=adaptive)
    prompt, started_s = [1, 2, 3], vllm.clock.now
    request = vllm.submit(prompt, NUM_TOKENS)
    vllm.run(1000)
    path = list(prompt)
    for _ in range(NUM_TOKENS):
        path.append(next_of(path))
    assert request.token_ids == path
    return vllm.clock.now - started_s


@cache
def plain_s() -> float:
    return seconds_of(None)


LENGTHS = pytest.mark.parametrize("adaptive", [True, False], ids=["lengths that adapt", "fixed lengths"])


@LENGTHS
def test_a_good_hub_makes_it_faster(adaptive: bool) -> None:
    assert seconds_of(GoodHub, adaptive=adaptive) < 0.8 * plain_s()


@LENGTHS
@pytest.mark.parametrize("hub", HOSTILE, ids=lambda hub: hub.__name__)
def test_no_hub_makes_vllm_much_slower(hub: type[GoodHub], adaptive: bool) -> None:
    with capture_logs() as logs:
        seconds = seconds_of(hub, adaptive=adaptive)
    assert seconds - FIRST_S <= MOST * plain_s()
    assert len(logs) <= 2 * seconds
