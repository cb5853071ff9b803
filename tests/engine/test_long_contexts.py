"""A context longer than a message holds is decoded without the hub, and nobody waits for what cannot come."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from structlog.testing import capture_logs
from toy_hub import STEP_S, Star, ToyHub

from starspec.errors import LocalProtocolError
from starspec.policy.patience import FIRST_PREFILL_WAIT_S
from starspec.wire import codec
from starspec.wire.messages import TargetToHub

LONG, SHORT = [*range(1, 17)] * 4, [3, 1, 4]


class NarrowHub(ToyHub):
    """As a real transport does, it drops what is too large."""

    num_dropped = 0

    def send(self, messages: Sequence[TargetToHub]) -> None:
        super().send([message for message in messages if self._passes(message)])

    def _passes(self, message: TargetToHub) -> bool:
        try:
            codec.encode(message)
        except LocalProtocolError:
            self.num_dropped += 1
            return False
        return True


class NarrowStar(Star):
    hub: NarrowHub

    def make_hub(self) -> NarrowHub:
        return NarrowHub(self.clock)


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "MAX_FRAME_BYTES", 316)  # an Open of 50 tokens or so


def test_a_context_that_is_too_long_is_said_so_once_and_never_waited_for() -> None:
    star = NarrowStar()
    star.submit("long", LONG, 20)
    with capture_logs() as logs:
        for _ in range(18):
            star.step()
            star.clock.now += FIRST_PREFILL_WAIT_S  # time enough to say it again
        star.finish()
    assert [each["num_tokens"] for each in logs] == [len(LONG)]
    assert star.longest_gap_s == pytest.approx(STEP_S)
    assert star.hub.num_dropped == 0


def test_others_are_drafted_beside_one_that_is_too_long() -> None:
    star = NarrowStar()
    star.submit("long", LONG, 30)
    star.submit("short", SHORT, 21)
    star.finish()
    assert star.stats.acceptance.num_accepted_tokens == 16


def test_one_that_has_become_too_long_is_told_no_more_once_the_hub_has_lost_it() -> None:
    star = NarrowStar()
    star.submit("a", LONG[:40], 50)
    while len(star.got["a"]) < 25:
        star.step()
    before = star.stats.acceptance.num_accepted_tokens
    assert before > 15, "what was opened in time is drafted on"
    star.hub.kill()
    star.step()
    star.hub.revive()
    with capture_logs() as logs:
        star.finish()
    assert len(logs) == 1
    assert star.stats.acceptance.num_accepted_tokens == before
    assert star.hub.num_dropped == 0
