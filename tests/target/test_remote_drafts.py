"""A hub may be late, silent, dead, lying or chatty: the target's tokens stay its own, and it never waits for long."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy import VOCAB_SIZE, HashRunner, WordTokenizer, next_of

from starspec.config import TargetConfig
from starspec.errors import PeerProtocolError
from starspec.ids import Epoch, RequestId, SessionId, Tag
from starspec.length.policy import FixedLength
from starspec.speculation.budget import DraftBudget
from starspec.speculation.law import TokenLaw
from starspec.speculation.stats import TargetStats
from starspec.target.drafts import NgramDrafts
from starspec.target.engine import TargetEngine
from starspec.target.hub_liveness import MIN_PAUSE_S
from starspec.target.remote_drafts import RemoteDrafts
from starspec.wire.messages import (
    Close,
    HubToTarget,
    Open,
    Ping,
    Pong,
    Proposal,
    Reopen,
    RequestSpec,
    TargetToHub,
    Verdict,
    Welcome,
)
from starspec.wire.session import Role, TagSession

STEP_S = 0.010  # what one forward of the toy target takes
DRAFT_S = 0.004  # from request to proposal
FULL_S = 0.1
READING_S = 0.6  # what an `Open` takes a hub that reads slowly
MOODS = ["reading", "lying", "late", "mute", "frozen", "chatty", "reopening", "prophetic", "full"]


class VirtualClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class SlowRunner(HashRunner):
    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self.clock = clock

    def forward(self, segments: Sequence[Any], feature_layers: Sequence[int] = ()) -> Any:
        self.clock.now += STEP_S
        return super().forward(segments, feature_layers)


class ToyHub:
    """A transport with the hub behind it. `mood` says how it behaves; `killed` begins a new session at revival."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.mood = "good"
        self.is_connected, self.num_connects = True, 1
        self.welcome: Welcome | None = None
        self.sessions: dict[Tag, TagSession] = {}
        self.ids: dict[Tag, list[int]] = {}
        self.mail: list[tuple[float, HubToTarget]] = []  # (when, message)
        self.num_opens = 0

    def send(self, messages: Sequence[TargetToHub]) -> None:
        if self.is_connected and self.mood != "frozen":
            for message in messages:
                self._handle(message)

    def receive(self, timeout_s: float) -> list[HubToTarget]:
        due = min((when for when, _ in self.mail), default=float("inf"))
        if not self.is_connected or self.mood == "frozen":
            due = float("inf")
        self.clock.now = max(self.clock.now, min(due, self.clock.now + timeout_s))
        ready = [each for each in self.mail if each[0] <= self.clock.now and due < float("inf")]
        self.mail = [each for each in self.mail if each not in ready]
        return [message for _, message in ready]

    def close(self) -> None:
        self.is_connected = False

    def kill(self) -> None:
        self.is_connected = False
        self.sessions, self.ids, self.mail = {}, {}, []

    def revive(self) -> None:
        self.is_connected = True
        self.num_connects += 1
        self.mood = "good"

    def _handle(self, message: TargetToHub) -> None:
        match message:
            case Ping(sequence=sequence):
                self._post(0.001, Pong(sequence=sequence))
            case Open(tag=tag) | Verdict(tag=tag):
                self.num_opens += isinstance(message, Open)
                session = self.sessions.setdefault(tag, TagSession(Role.HUB, tag))
                if session.receive(message) is None:
                    if session.gap:
                        self._post(0.001, session.send(session.gap))
                    return
                self.ids[tag] = [*(self.ids[tag] if isinstance(message, Verdict) else []), *message.token_ids]
                if message.num_draft_tokens:
                    is_read = isinstance(message, Verdict) or self.mood != "reading"
                    self._propose(session, message.num_draft_tokens, DRAFT_S if is_read else READING_S)
            case Close(tag=tag):
                self.sessions.pop(tag, None)
                self.ids.pop(tag, None)

    def _propose(self, session: TagSession, num: int, delay_s: float) -> None:
        if self.mood == "mute":
            return
        if self.mood == "reopening":  # for no reason
            self._post(DRAFT_S, Reopen(session.tag, session.epoch))
            return
        if self.mood == "prophetic":  # a Reopen of an epoch that has not been
            self._post(DRAFT_S, Reopen(session.tag, Epoch(session.epoch + 7)))
        if self.mood == "full":
            empty = Proposal(session.tag, session.epoch, session.prefix_len, [], retry_after_s=FULL_S)
            self._post(DRAFT_S, session.send(empty))
            session.lose()
            return
        path = list(self.ids[session.tag])
        for _ in range(num):
            path.append((next_of(path) + (self.mood == "lying")) % VOCAB_SIZE)
        token_ids = path[-num:] * (3 if self.mood == "chatty" else 1)  # chatty: more than was asked for
        proposal = Proposal(session.tag, session.epoch, session.prefix_len, token_ids)
        if self.mood != "chatty":
            session.send(proposal)
        self._post(10.0 if self.mood == "late" else delay_s, proposal)

    def _post(self, delay_s: float, message: HubToTarget) -> None:
        self.mail.append((self.clock.now + delay_s, message))


class Star:
    """One engine and its toy hub under one virtual clock."""

    def __init__(self, fallback: bool = False) -> None:
        self.clock = VirtualClock()
        self.hub = ToyHub(self.clock)
        self.stats = TargetStats()
        ngram = NgramDrafts(FixedLength(DraftBudget.chain(4)), 1, 3) if fallback else None
        self.drafts = RemoteDrafts(self.hub, FixedLength(DraftBudget.chain(4)), self.stats, self.clock, fallback=ngram)
        runner = SlowRunner(self.clock)
        self.engine = TargetEngine(
            runner, WordTokenizer(), self.drafts, TargetConfig(prefill_chunk=5), self.stats, self.clock
        )
        self.wanted: dict[str, list[int]] = {}
        self.got: dict[str, list[int]] = {}
        self.longest_gap_s = 0.0

    def submit(self, name: str, prompt: list[int], num: int) -> None:
        law = TokenLaw(temperature=0.0)
        self.engine.submit(RequestId(name), RequestSpec(prompt, law, max_tokens=num))
        path = list(prompt)
        for _ in range(num):
            path.append(next_of(path))
        self.wanted[name], self.got[name] = path[len(prompt) :], []

    def step(self) -> None:
        started_s = self.clock.now
        for each in self.engine.step():
            self.got[each.request_id].extend(each.token_ids)
        self.longest_gap_s = max(self.longest_gap_s, self.clock.now - started_s)
        self.engine.check_integrity()

    def finish(self) -> None:
        for _ in range(3000):
            if not self.engine.has_work:
                break
            self.step()
        assert self.got == self.wanted


PROMPT = list(range(1, 12))


def test_a_good_hub_drafts_every_round() -> None:
    star = Star()
    star.submit("a", PROMPT, 21)
    star.finish()
    assert star.stats.acceptance.num_accepted_tokens == 16
    assert star.stats.acceptance.block_efficiency == pytest.approx(21 / 5)
    assert star.stats.t_c.value == pytest.approx(DRAFT_S)  # the first one, which came during the prefill, is no sample
    assert star.stats.num_reconnects == 0


@pytest.mark.parametrize("mood", MOODS)
def test_a_bad_hub_costs_no_token_and_little_time(mood: str) -> None:
    star = Star()
    star.submit("a", PROMPT, 30)
    for _ in range(6):
        star.step()
    recent_round_s = star.stats.round.value
    star.hub.mood = mood
    star.longest_gap_s = 0.0
    star.finish()
    assert star.longest_gap_s <= max(0.25, 2 * recent_round_s)


@pytest.mark.parametrize("fallback", [False, True])
def test_a_killed_hub_is_not_waited_for_and_is_used_again_when_it_returns(fallback: bool) -> None:
    star = Star(fallback)
    star.submit("a", PROMPT, 60)
    star.submit("b", PROMPT[:3], 60)
    for _ in range(5):
        star.step()
    star.hub.kill()
    for _ in range(5):
        started_s = star.clock.now
        star.step()
        assert star.clock.now - started_s <= 0.050 + 2 * STEP_S
    assert not star.drafts.is_connected
    before = star.stats.acceptance.num_accepted_tokens
    star.hub.revive()
    for _ in range(4):
        star.step()
    assert star.drafts.is_connected
    assert star.stats.acceptance.num_accepted_tokens > before
    star.finish()
    assert star.drafts.num_tags == 0
    assert not star.hub.sessions


def test_a_frozen_hub_is_used_again_after_it_thaws() -> None:
    star = Star()
    star.submit("a", PROMPT, 80)
    for _ in range(4):
        star.step()
    star.hub.mood = "frozen"
    for _ in range(30):
        star.step()
    assert not star.drafts.is_connected
    star.hub.mood = "good"
    star.clock.now += MIN_PAUSE_S + 0.5
    for _ in range(6):
        star.step()
    assert star.drafts.is_connected
    star.finish()


def test_a_request_that_ends_while_the_hub_is_silent_leaves_no_tag_there() -> None:
    star = Star()
    star.submit("a", PROMPT, 40)
    for _ in range(4):
        star.step()
    star.hub.mood = "mute"  # alive, but no proposal comes: lost after a while
    while star.drafts.is_connected and star.engine.has_work:
        star.step()
    star.finish()
    assert not star.hub.sessions


def test_a_tag_whose_proposals_are_always_late_is_left_alone_for_a_while() -> None:
    star = Star()
    star.submit("a", PROMPT, 70)
    star.submit("b", PROMPT[1:], 70)
    for _ in range(5):
        star.step()
    star.hub.mood = "mute"
    late_before, rounds_before = star.stats.num_late_rounds, star.stats.num_rounds
    for _ in range(40):
        star.step()
    num_rounds = star.stats.num_rounds - rounds_before
    assert star.stats.num_late_rounds - late_before <= num_rounds / 3
    star.finish()


def test_a_full_hub_is_not_asked_again_before_it_wants_to_be() -> None:
    star = Star()
    star.hub.mood = "full"
    star.submit("a", PROMPT, 70)
    started_s = star.clock.now
    while star.clock.now < started_s + 3.5 * FULL_S:
        star.step()
    assert star.hub.num_opens == 4
    star.hub.mood = "good"
    star.finish()
    assert star.stats.acceptance.num_accepted_tokens > 0


def test_a_hub_that_reads_slowly_is_waited_for_once_and_joins_later() -> None:
    star = Star()
    star.submit("a", PROMPT, 12)
    star.finish()  # rounds are known now, and deadlines with them
    star.hub.mood = "reading"
    star.submit("b", PROMPT[2:], 70)
    late_before, accepted_before = star.stats.num_late_rounds, star.stats.acceptance.num_accepted_tokens
    star.finish()
    assert star.stats.num_late_rounds == late_before + 1
    assert star.hub.num_opens == 2
    assert star.stats.num_reconnects == 0
    assert star.stats.acceptance.num_accepted_tokens > accepted_before


def test_a_hub_that_never_answers_is_time_without_one() -> None:
    star = Star()
    star.hub.kill()
    star.submit("a", PROMPT, 40)
    started_s = star.clock.now
    star.finish()
    assert star.stats.degraded_s == pytest.approx(star.clock.now - started_s, abs=2 * STEP_S)
    assert star.stats.num_reconnects == 0


def test_no_more_is_asked_for_than_the_hub_gives() -> None:
    star = Star()
    star.hub.welcome = Welcome(1, SessionId("s"), 1, "toy", 2, 10.0)
    star.submit("a", PROMPT, 21)
    star.finish()
    assert star.stats.acceptance.num_draft_tokens == 14
    assert star.stats.acceptance.num_accepted_tokens == 14


def test_a_request_that_does_not_speculate_opens_no_tag() -> None:
    star = Star()
    spec = RequestSpec(PROMPT, TokenLaw(temperature=0.0), max_tokens=9, num_draft_tokens=0)
    star.engine.submit(RequestId("a"), spec)
    while star.engine.has_work:
        star.engine.step()
    assert star.hub.num_opens == 0


def test_a_request_may_ask_for_fewer_draft_tokens() -> None:
    star = Star()
    spec = RequestSpec(PROMPT, TokenLaw(temperature=0.0), max_tokens=9, num_draft_tokens=2)
    star.engine.submit(RequestId("a"), spec)
    emissions = []
    while star.engine.has_work:
        emissions += star.engine.step()
    assert [len(each.token_ids) for each in emissions] == [3, 3, 3]


def test_the_toy_hub_breaks_the_protocol_when_chatty() -> None:
    session = TagSession(Role.TARGET, Tag(1))
    session.send(Open(Tag(1), session.next_epoch, [1, 2], 2, TokenLaw(), 2))
    with pytest.raises(PeerProtocolError):
        session.receive(Proposal(Tag(1), session.epoch, 2, [1, 2, 3]))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9), st.booleans())
def test_no_interleaving_of_faults_changes_a_token(seed: int, fallback: bool) -> None:
    chance = random.Random(seed)
    star = Star(fallback)
    for step in range(80):
        if step % 9 == 0:
            prompt = [chance.randrange(VOCAB_SIZE) for _ in range(chance.randrange(1, 13))]
            star.submit(f"r{step}", prompt, chance.randrange(1, 30))
        roll = chance.random()
        if roll < 0.10:
            star.hub.mood = chance.choice(["good", *MOODS])
        elif roll < 0.14:
            star.hub.kill()
        elif roll < 0.22 and not star.hub.is_connected:
            star.hub.revive()
        elif roll < 0.26 and star.hub.mail:  # a message arrives twice
            star.hub.mail.append(chance.choice(star.hub.mail))
        star.step()
    star.finish()
