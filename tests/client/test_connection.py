"""When a hub counts as lost and as found, and who hears of it, on a clock that only waiting moves."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from starspec.client.connection import HubConnection
from starspec.client.tag import HubTag
from starspec.policy.deadline import RecentRounds
from starspec.policy.liveness import DOUBT_S, MIN_PAUSE_S, PING_INTERVAL_S
from starspec.policy.patience import MAX_MISSES
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.budget import DraftBudget
from starspec.wire.messages import HubToTarget, Ping, Pong, Proposal, Reopen, TargetToHub, Welcome

ONE_TOKEN = DraftBudget.chain(1)


class Tokens(list[int]):
    """As TokenSource."""

    prompt_len = 5

    def token_ids(self, start: int = 0) -> list[int]:
        return list(self[start:])


class WatchedConnection(HubConnection):
    """Tells when it loses its hub."""

    def _lose(self) -> None:
        super()._lose()
        self._listener.heard.append("lost")  # type: ignore[attr-defined] # a Scene


class Scene:
    """A connection with its transport and its listener in one: `coming` holds what the hub says, and when."""

    welcome: Welcome | None = None

    def __init__(self) -> None:
        self.now = 100.0
        self.is_connected, self.num_connects = True, 1
        self.coming: list[tuple[float, HubToTarget]] = []
        self.sent: list[TargetToHub] = []
        self.heard: list[str] = []
        self.timeout_s = 0.1
        self.connection = WatchedConnection(self, self, self, lambda: self.now)  # type: ignore[arg-type] # what it uses of a transport
        self.connection.receive(0.0)
        self.waiting = self.open_tag()

    def open_tag(self) -> HubTag:
        """Returns: a tag that the hub holds, and owes no answer."""
        tag = self.connection.new_tag(Tokens([1, 2, 3, 4, 5]), SamplingSpec())
        tag.ask(DraftBudget.chain(0), self.now)
        return tag

    def ask(self, tag: HubTag) -> None:
        """One more token is committed, and a draft is wanted."""
        assert isinstance(tag.tokens, Tokens)
        tag.tokens.append(6)
        tag.ask(ONE_TOKEN, self.now)

    def answer(self, tag: HubTag) -> Proposal:
        return Proposal(tag.session.tag, tag.session.epoch, tag.session.prefix_len, [7])

    def seconds(self, lengths: Sequence[int], rounds: RecentRounds) -> float:
        """As Deadline."""
        return self.timeout_s

    def receive(self, timeout_s: float) -> list[HubToTarget]:
        self.now = min([self.now + timeout_s, *(max(self.now, at_s) for at_s, _ in self.coming)])
        arrived = [message for at_s, message in self.coming if at_s <= self.now]
        self.coming = [each for each in self.coming if each[0] > self.now]
        return arrived

    def send(self, messages: Sequence[TargetToHub]) -> None:
        self.sent += messages

    def proposed(self, tag: HubTag, proposal: Proposal) -> None:
        self.heard.append("proposed")
        tag.clear()

    def declined(self, tag: HubTag, answer: Proposal) -> None:
        self.heard.append("declined")
        tag.clear()

    def reopened(self, tag: HubTag, answer: Reopen) -> None:
        self.heard.append("reopened")
        tag.clear()

    def dropped(self, tag: HubTag | None) -> None:
        self.heard.append("dropped")

    def found(self) -> None:
        self.heard.append("found")

    def wait(self) -> Sequence[HubTag]:
        """Ask for one more draft, and wait for it."""
        self.ask(self.waiting)
        return self.connection.wait([self.waiting]).late


@pytest.fixture
def scene() -> Scene:
    found = Scene()
    assert found.heard == ["found"]
    found.heard.clear()
    return found


def test_waiting_ends_with_the_answer(scene: Scene) -> None:
    scene.ask(scene.waiting)
    scene.coming = [(100.04, scene.answer(scene.waiting))]
    assert scene.connection.wait([scene.waiting]).late == []
    assert (scene.heard, scene.now, scene.sent) == (["proposed"], 100.04, [])


def test_a_late_hub_that_was_heard_is_not_doubted(scene: Scene) -> None:
    scene.coming = [(100.04, Pong(1))]
    assert scene.wait() == [scene.waiting]
    assert scene.sent == []
    scene.now += 2 * DOUBT_S
    scene.connection.receive(0.0)
    assert not scene.connection.is_lost


def test_a_silent_hub_is_pinged_and_lost_unless_it_answers(scene: Scene) -> None:
    assert scene.wait() == [scene.waiting]
    assert [type(each) for each in scene.sent] == [Ping]
    scene.coming = [(scene.now + 0.9 * DOUBT_S, Pong(1))]
    scene.now += 2 * DOUBT_S
    scene.connection.receive(0.0)
    assert not scene.connection.is_lost

    scene.wait()
    scene.now += 2 * DOUBT_S
    scene.connection.receive(0.0)
    assert scene.connection.is_lost
    assert scene.heard == ["lost"]


def test_a_hub_that_prefills_a_prompt_in_silence_is_not_doubted(scene: Scene) -> None:
    opening = scene.connection.new_tag(Tokens([1, 2, 3, 4, 5]), SamplingSpec())
    opening.ask(ONE_TOKEN, scene.now)
    assert opening.is_opening
    assert scene.connection.wait([opening]).late == [opening]
    assert scene.sent == []


def test_a_lost_hub_is_found_by_a_word_after_a_pause_and_what_it_said_is_not_taken(scene: Scene) -> None:
    scene.wait()
    scene.now += 2 * DOUBT_S
    scene.connection.receive(0.0)
    scene.heard.clear()
    scene.coming = [(scene.now, scene.answer(scene.waiting))]
    scene.connection.receive(0.0)
    assert scene.heard == []
    scene.now += 2 * MIN_PAUSE_S
    scene.coming = [(scene.now, scene.answer(scene.waiting))]
    scene.connection.receive(0.0)
    assert scene.heard == ["found"]
    assert scene.connection.num_found == 2


def test_a_connection_that_ends_loses_the_hub_at_once_and_the_next_one_finds_it(scene: Scene) -> None:
    scene.is_connected = False
    scene.connection.notice_connection()
    scene.now += 3.0
    assert (scene.heard, scene.connection.lost_s) == (["lost"], 3.0)
    scene.is_connected, scene.num_connects = True, 2
    scene.connection.receive(0.0)
    assert (scene.heard, scene.connection.lost_s) == (["lost", "found"], 3.0)


def test_a_connection_that_was_replaced_unseen_lost_every_tag(scene: Scene) -> None:
    scene.num_connects = 2
    scene.connection.receive(0.0)
    assert scene.heard == ["lost", "found"]


def test_nobody_waits_for_a_hub_that_is_known_to_prefill(scene: Scene) -> None:
    scene.ask(scene.waiting)
    scene.waiting.is_excused = True
    assert scene.connection.wait([scene.waiting]) == ((), None)
    assert scene.now == 100.0
    assert not scene.waiting.is_awaited


def test_nobody_waits_while_the_hub_prefills_for_a_tag_that_is_not_awaited_itself(scene: Scene) -> None:
    waits = scene.open_tag()
    scene.ask(waits)
    scene.waiting.is_excused = True
    assert scene.connection.wait([waits]) == ((), None)
    assert scene.now == 100.0
    assert not waits.is_awaited


def test_a_hub_that_answers_some_and_keeps_others_waiting_is_not_to_blame(scene: Scene) -> None:
    for _ in range(MAX_MISSES):
        late = scene.open_tag()
        scene.ask(late)
        scene.ask(scene.waiting)
        scene.coming = [(scene.now + 0.01, scene.answer(scene.waiting))]
        assert scene.connection.wait([scene.waiting, late]).late == [late]
    assert not scene.connection.record.patience.is_pausing


def test_a_pause_forgets_how_long_rounds_took_since_the_hub_may_be_faster_after_it(scene: Scene) -> None:
    remembered = list[int]()
    for _ in range(MAX_MISSES):
        scene.coming = [(scene.now + 0.01, Pong(1))]
        scene.wait()
        remembered.append(len(scene.connection.record.rounds))
    assert remembered == [*range(1, MAX_MISSES), 0]


def test_a_hub_that_is_found_again_has_kept_nobody_waiting(scene: Scene) -> None:
    for _ in range(MAX_MISSES):
        scene.coming = [(scene.now + 0.01, Pong(1))]
        scene.wait()
    assert scene.connection.record.patience.is_pausing
    scene.num_connects = 2
    scene.connection.receive(0.0)
    assert not scene.connection.record.patience.is_pausing


def test_pings_tell_what_the_target_does_without_drafts_and_come_at_intervals(scene: Scene) -> None:
    scene.connection.note_plain_speed(12.5)
    for _ in range(3):
        scene.connection.ping_if_due()
    assert scene.sent == [Ping(1, 12.5)]
    scene.now += PING_INTERVAL_S
    scene.connection.ping_if_due()
    assert scene.sent == [Ping(1, 12.5), Ping(2, 12.5)]
    scene.now += PING_INTERVAL_S
    scene.is_connected = False
    scene.connection.ping_if_due()
    assert len(scene.sent) == 2
