"""When a hub counts as lost and as found, and who hears of it, on a clock that only waiting moves."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from starspec.client.connection import HubConnection
from starspec.ids import Epoch, Tag
from starspec.policy.liveness import DOUBT_S, MIN_PAUSE_S, PING_INTERVAL_S
from starspec.policy.patience import MAX_MISSES
from starspec.policy.waiting import Waiting
from starspec.wire.messages import HubToTarget, Ping, Pong, Proposal, Reopen, TargetToHub

ANSWER = Proposal(Tag(1), Epoch(1), 5, [7])


class Scene:
    """A talk with its transport and its listener in one: what the hub says is put into `coming`, with when it comes."""

    def __init__(self) -> None:
        self.now = 100.0
        self.is_connected, self.num_connects = True, 1
        self.coming: list[tuple[float, HubToTarget]] = []
        self.sent: list[TargetToHub] = []
        self.heard: list[str] = []
        self.waiting = Waiting()
        self.talk = HubConnection(self, self, lambda: self.now)  # type: ignore[arg-type] # what a talk uses of a transport
        self.talk.receive(0.0)

    def receive(self, timeout_s: float) -> list[HubToTarget]:
        self.now = min([self.now + timeout_s, *(max(self.now, at_s) for at_s, _ in self.coming)])
        arrived = [message for at_s, message in self.coming if at_s <= self.now]
        self.coming = [each for each in self.coming if each[0] > self.now]
        return arrived

    def send(self, messages: Sequence[TargetToHub]) -> None:
        self.sent += messages

    def take(self, message: Proposal | Reopen) -> None:
        self.heard.append("took")
        self.waiting.settle()

    def lose(self) -> None:
        self.heard.append("lost")
        self.waiting.settle()

    def find(self) -> None:
        self.heard.append("found")

    def wait(self, timeout_s: float = 0.1) -> Sequence[Waiting] | None:
        self.waiting.is_awaited = True
        return self.talk.wait([self.waiting], [self.waiting], timeout_s)


@pytest.fixture
def scene() -> Scene:
    found = Scene()
    assert found.heard == ["found"]
    found.heard.clear()
    return found


def test_waiting_ends_with_the_answer(scene: Scene) -> None:
    scene.coming = [(100.04, ANSWER)]
    assert scene.wait() == []
    assert (scene.heard, scene.now, scene.sent) == (["took"], 100.04, [])


def test_a_late_hub_that_was_heard_is_not_doubted(scene: Scene) -> None:
    scene.coming = [(100.04, Pong(1))]
    assert scene.wait() == [scene.waiting]
    assert scene.sent == []
    scene.now += 2 * DOUBT_S
    scene.talk.receive(0.0)
    assert not scene.talk.is_lost


def test_a_silent_hub_is_pinged_and_lost_unless_it_answers(scene: Scene) -> None:
    assert scene.wait() == [scene.waiting]
    assert [type(each) for each in scene.sent] == [Ping]
    scene.coming = [(scene.now + 0.9 * DOUBT_S, Pong(1))]
    scene.now += 2 * DOUBT_S
    scene.talk.receive(0.0)
    assert not scene.talk.is_lost

    scene.wait()
    scene.now += 2 * DOUBT_S
    scene.talk.receive(0.0)
    assert scene.talk.is_lost
    assert scene.heard == ["lost"]


def test_a_hub_that_reads_a_prompt_in_silence_is_not_doubted(scene: Scene) -> None:
    scene.waiting.begin_opening(scene.now)
    assert scene.wait() == [scene.waiting]
    assert scene.sent == []


def test_a_lost_hub_is_found_by_a_word_after_a_pause_and_what_it_said_is_not_taken(scene: Scene) -> None:
    scene.wait()
    scene.now += 2 * DOUBT_S
    scene.talk.receive(0.0)
    scene.heard.clear()
    scene.coming = [(scene.now, ANSWER)]
    scene.talk.receive(0.0)
    assert scene.heard == []
    scene.now += 2 * MIN_PAUSE_S
    scene.coming = [(scene.now, ANSWER)]
    scene.talk.receive(0.0)
    assert scene.heard == ["found"]
    assert scene.talk.num_found == 2


def test_a_connection_that_ends_loses_the_hub_at_once_and_the_next_one_finds_it(scene: Scene) -> None:
    scene.is_connected = False
    scene.talk.notice_connection()
    scene.now += 3.0
    assert (scene.heard, scene.talk.lost_s) == (["lost"], 3.0)
    scene.is_connected, scene.num_connects = True, 2
    scene.talk.receive(0.0)
    assert (scene.heard, scene.talk.lost_s) == (["lost", "found"], 3.0)


def test_a_connection_that_was_replaced_unseen_lost_every_tag(scene: Scene) -> None:
    scene.num_connects = 2
    scene.talk.receive(0.0)
    assert scene.heard == ["lost", "found"]


def test_nobody_waits_for_a_hub_that_is_known_to_read(scene: Scene) -> None:
    scene.waiting.is_excused = True
    assert scene.wait() is None
    assert scene.now == 100.0
    assert not scene.waiting.is_awaited


def test_nobody_waits_while_the_hub_reads_for_a_tag_that_is_not_awaited_itself(scene: Scene) -> None:
    reads, waits = Waiting(is_excused=True), Waiting(is_awaited=True)
    assert scene.talk.wait([waits], [reads, waits], 0.1) is None
    assert scene.now == 100.0
    assert not waits.is_awaited


def test_a_hub_that_answers_some_and_keeps_others_waiting_is_not_to_blame(scene: Scene) -> None:
    for _ in range(MAX_MISSES):
        late = Waiting(is_awaited=True)
        scene.waiting.is_awaited = True
        scene.coming = [(scene.now + 0.01, ANSWER)]
        assert scene.talk.wait([scene.waiting, late], [scene.waiting, late], 0.1) == [late]
    assert not scene.talk.patience.is_pausing


def test_a_hub_that_is_found_again_has_kept_nobody_waiting(scene: Scene) -> None:
    for _ in range(MAX_MISSES):
        scene.coming = [(scene.now + 0.01, Pong(1))]
        scene.wait()
    assert scene.talk.patience.is_pausing
    scene.num_connects = 2
    scene.talk.receive(0.0)
    assert not scene.talk.patience.is_pausing


def test_pings_tell_what_the_target_does_without_drafts_and_come_at_intervals(scene: Scene) -> None:
    scene.talk.plain_tokens_per_s = 12.5
    for _ in range(3):
        scene.talk.ping_if_due()
    assert scene.sent == [Ping(1, 12.5)]
    scene.now += PING_INTERVAL_S
    scene.talk.ping_if_due()
    assert scene.sent == [Ping(1, 12.5), Ping(2, 12.5)]
    scene.now += PING_INTERVAL_S
    scene.is_connected = False
    scene.talk.ping_if_due()
    assert len(scene.sent) == 2
