"""Whom the hub drafts for, in virtual time: nobody loses by it for long, nobody flaps, and room is given away soon."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from hub_toys import ToyStar, ToyTag
from test_capacity import COST, STARSD

from starspec.config import Admission
from starspec.ids import LinkId
from starspec.policy.admission import (
    FORGET_S,
    KEEP_S,
    MARGIN,
    PATIENCE_S,
    PAUSE_S,
    REVIEW_S,
    STAY_S,
    UNKNOWN_S,
    AdmissionControl,
    Load,
    _Admitted,
    count_max,
)
from starspec.policy.backoff import RETRY_S
from starspec.policy.capacity import Demand
from starspec.wire.messages import Ping, Proposal, Reopen


class World:
    """Targets that ask every second until they have a place; reviews as often as the hub holds them."""

    def __init__(self, admission: AdmissionControl) -> None:
        self.admission = admission
        self.now = 0.0
        self.demands: dict[str, Demand] = {}
        self.known: set[str] = set()  # who has been drafted for
        self.asks_at: dict[str, float] = {}
        self.changes: list[tuple[float, str, bool]] = []

    def come(self, name: str, demand: Demand = STARSD) -> None:
        self.demands[name], self.asks_at[name] = demand, self.now

    def go(self, name: str) -> None:
        self.admission.leave(LinkId(name))
        del self.demands[name], self.asks_at[name]

    def run(self, seconds: float) -> None:
        end_s = self.now + seconds
        while self.now < end_s:
            self._do(lambda: self.admission.review(self.load(), self.now))
            for name, asks_at in self.asks_at.items():
                if name not in self.held and asks_at <= self.now:
                    self._do(partial(self._ask, name))
                    self.asks_at[name] = self.now + RETRY_S
            self.now += REVIEW_S

    def _ask(self, name: str) -> None:
        self.admission.ask(LinkId(name), self.load(), self.now)

    def _do(self, something: Callable[[], None]) -> None:
        before = self.held
        something()
        self.changes += [(self.now, name, name in self.held) for name in before ^ self.held]

    def load(self) -> Load:
        self.known |= self.held
        measured = {LinkId(name): self.demands[name] for name in self.known & self.demands.keys()}
        speeds = {LinkId(name): each.plain_tokens_per_s for name, each in self.demands.items()}
        return Load(measured, speeds, frozenset(map(LinkId, self.held)), COST, max_sequences=1)

    @property
    def held(self) -> set[str]:
        return {name for name in self.demands if self.admission.is_admitted(LinkId(name))}


def test_one_at_a_time_as_many_as_n_max_are_taken_in_and_no_more() -> None:
    world = World(AdmissionControl("n_max"))
    for number in range(10):
        world.come(f"t{number}")
    world.run(30.0)
    load = world.load()
    assert count_max([load.demands[LinkId(name)] for name in world.held], load) == 6
    assert len(world.held) == 6
    assert len(world.changes) == 6, "nobody came twice"


def test_when_one_leaves_another_is_taken_in_within_five_seconds() -> None:
    world = World(AdmissionControl(2))
    for name in "abc":
        world.come(name)
    world.run(10.0)
    assert world.held == {"a", "b"}
    world.go("a")
    world.run(5.0)
    assert world.held == {"b", "c"}


def test_a_target_that_asks_for_nothing_stays_admitted_for_a_while_only() -> None:
    admission, now = AdmissionControl(1), 0.0
    idle, busy = Load({}, {}, frozenset(), COST), Load({}, {}, frozenset([LinkId("a")]), COST)
    assert admission.ask(LinkId("a"), idle, now)
    admission.review(busy, 10.0)
    admission.review(idle, 10.0 + 0.9 * KEEP_S)
    assert not admission.ask(LinkId("b"), idle, now)
    admission.review(idle, 10.0 + KEEP_S)
    assert admission.ask(LinkId("b"), idle, now)


def test_a_newcomer_waits_until_the_first_is_measured() -> None:
    admission, unknown = AdmissionControl("n_max"), Load({}, {}, frozenset(), None)
    assert admission.ask(LinkId("a"), unknown, 0.0), "the first always"
    assert not admission.ask(LinkId("b"), unknown, 0.0)
    assert admission.ask(LinkId("b"), Load({LinkId("a"): STARSD}, {}, frozenset(), COST), 1.0)


def test_when_somebody_loses_by_it_the_last_to_come_goes_and_does_not_come_back_at_once() -> None:
    world = World(AdmissionControl("n_max"))
    for number in range(6):
        world.come(f"t{number}")
    world.run(20.0)
    assert len(world.held) == 6
    for name in world.demands:  # the draft guesses worse from now on
        world.demands[name] = replace(STARSD, num_tokens=2.6)
    world.run(0.9 * PATIENCE_S)
    assert len(world.held) == 6
    world.run(60.0)
    assert world.held == {"t0", "t1", "t2", "t3", "t4"}
    assert all(not is_held for at_s, _, is_held in world.changes if at_s > 20.0), "who went stays away"


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.03, 0.04])
def test_nobody_flaps_when_measurements_waver_within_the_margin(noise: float) -> None:
    world, rng = World(AdmissionControl("n_max")), random.Random(3)
    for number in range(10):
        world.come(f"t{number}")
    world.run(10.0)
    num_changes = len(world.changes)
    for _ in range(600):
        for name in world.demands:
            world.demands[name] = replace(STARSD, num_tokens=STARSD.num_tokens * rng.uniform(1 - noise, 1 + noise))
        world.run(REVIEW_S)
    came_and_went = world.changes[num_changes:]
    assert len(came_and_went) <= 1, f"with a margin of {MARGIN}"


def test_who_has_just_come_is_not_sent_away() -> None:
    world = World(AdmissionControl("n_max"))
    world.come("a")
    world.run(2.0)
    world.come("b")
    world.run(1.0)
    assert world.held == {"a", "b"}
    world.demands["a"] = world.demands["b"] = replace(STARSD, num_tokens=1.2)
    world.run(STAY_S - 1.5)
    assert world.held == {"a", "b"}
    world.run(10.0)
    assert world.held == {"a"}, "the first stays"


HOT = replace(STARSD, num_tokens=1.2)  # drafts for it are mostly wrong


def test_one_that_gains_nothing_even_alone_keeps_nobody_out_and_goes_when_others_are_there() -> None:
    world = World(AdmissionControl("n_max"))
    world.come("hot", HOT)
    world.run(10.0)
    assert world.held == {"hot"}, "how long to speculate is its own decision"
    for number in range(3):
        world.come(f"t{number}", replace(STARSD, plain_tokens_per_s=40.0))
        world.run(5.0)
    world.run(30.0)
    assert world.held == {"t0", "t1", "t2"}
    assert len(world.changes) == 5, "nobody comes twice"


def test_one_that_was_sent_away_is_tried_again_after_a_while() -> None:
    world = World(AdmissionControl("n_max"))
    world.come("a")
    world.run(2.0)
    world.come("hot", HOT)
    world.run(FORGET_S)
    assert [is_held for _, name, is_held in world.changes if name == "hot"] == [True, False]
    world.demands["hot"] = STARSD
    world.run(2 * FORGET_S)
    assert [is_held for _, name, is_held in world.changes if name == "hot"] == [True, False, True]
    assert world.held == {"a", "hot"}


def test_one_that_would_gain_nothing_is_not_taken_in_beside_another() -> None:
    world = World(AdmissionControl("n_max"))
    world.come("a")
    world.run(2.0)
    world.come("hopeless", replace(STARSD, plain_tokens_per_s=400.0))
    world.run(30.0)
    assert world.held == {"a"}


def test_slow_and_fast_targets_get_in_beside_each_other() -> None:
    world = World(AdmissionControl("n_max"))
    for name, return_s, speed in (("slow", 0.1, 11.0), ("fast", 0.022, 50.0), ("slow too", 0.1, 11.0)):
        world.come(name, replace(STARSD, return_s=return_s, plain_tokens_per_s=speed))
        world.run(3.0)
    world.run(30.0)
    assert world.held == {"slow", "fast", "slow too"}


def test_one_of_many_sequences_that_others_lose_by_is_tried_again_less_and_less_often() -> None:
    world = World(AdmissionControl("n_max"))
    for number in range(3):
        world.come(f"t{number}")
        world.run(2.0)
    world.come("big", replace(STARSD, num_sequences=16.0))
    world.run(15 * FORGET_S)
    assert 2 <= len([name for _, name, is_held in world.changes if name == "big" and is_held]) <= 4
    world.demands["big"] = STARSD
    world.run(16 * FORGET_S)
    assert "big" in world.held, "it has one sequence by now"


def test_one_that_hardly_gains_alone_keeps_nobody_out_and_nobody_flaps_beside_it() -> None:
    world = World(AdmissionControl("n_max"))
    world.come("hardly", replace(STARSD, plain_tokens_per_s=80.0))  # 1.02x alone
    world.run(10.0)
    for number in range(5):
        world.come(f"t{number}")
        world.run(5.0)
    world.run(30.0)
    assert world.held >= {"t0", "t1", "t2", "t3"}
    assert len([each for each in world.changes if each[1] != "hardly"]) == len(world.held - {"hardly"})


def test_one_that_gained_nothing_and_asked_for_nothing_is_tried_again_too() -> None:
    world = World(AdmissionControl("n_max"))
    world.come("hot", HOT)
    world.run(2.0)
    world.admission._let_go(LinkId("hot"), FORGET_S, world.now)  # as after KEEP_S without a tag
    world.come("a")
    world.run(FORGET_S / 2)
    assert world.held == {"a"}
    world.demands["hot"] = STARSD
    world.run(FORGET_S)
    assert world.held == {"a", "hot"}


def test_losing_is_forgotten_while_nobody_is_measured() -> None:
    admission, now = AdmissionControl("n_max"), 100.0
    for name in ("a", "b"):
        admission._admitted[LinkId(name)] = _Admitted(0.0, now)

    def review(**demands: Demand) -> set[str]:
        load = Load({LinkId(name): each for name, each in demands.items()}, {}, frozenset(admission._admitted), COST)
        admission.review(load, now)
        return set(admission._admitted)

    assert review(a=STARSD, b=HOT) == {"a", "b"}
    assert review() == {"a", "b"}
    now += 10.0
    assert review(a=STARSD, b=HOT) == {"a", "b"}
    now += PATIENCE_S
    assert review(a=STARSD, b=HOT) == {"a"}


LONG = replace(STARSD, num_steps=30.0, plain_tokens_per_s=35.0)  # two of these fit, three do not


@pytest.mark.parametrize("others", [{}, {LinkId("known"): LONG}], ids=["alone", "beside another"])
@pytest.mark.parametrize(("waited_s", "has_room"), [(0.9 * UNKNOWN_S, False), (UNKNOWN_S, True)])
def test_one_that_cannot_be_measured_keeps_nobody_out_for_long(
    others: dict[LinkId, Demand], waited_s: float, has_room: bool
) -> None:
    admission = AdmissionControl("n_max")
    for name in (LinkId("silent"), *others):
        admission._admitted[name] = _Admitted(0.0, 0.0)
    load = Load(others, {LinkId("b"): 35.0}, frozenset(), COST, max_sequences=1)
    assert admission.ask(LinkId("b"), load, waited_s) == has_room


@pytest.mark.parametrize("is_busy", [True, False])
def test_one_that_is_drafted_for_is_load_though_it_cannot_be_measured(is_busy: bool) -> None:
    admission, known, unknown = AdmissionControl("n_max"), LinkId("known"), LinkId("unknown")
    for name in (known, unknown):
        admission._admitted[name] = _Admitted(0.0, 0.0)
    busy = frozenset([known, unknown] if is_busy else [known])
    load = Load({known: LONG}, {LinkId("b"): 35.0}, busy, COST, max_sequences=1, present=frozenset([known, unknown]))
    admission.review(load, UNKNOWN_S)
    assert admission.ask(LinkId("b"), load, UNKNOWN_S + REVIEW_S) == (not is_busy)


@pytest.mark.parametrize(("num_rows", "has_room"), [(2, False), (3, True), (None, True)])
def test_nobody_is_taken_in_whose_sequences_would_take_the_rows_of_others(num_rows: int | None, has_room: bool) -> None:
    admission, others = AdmissionControl("n_max"), {LinkId(name): STARSD for name in "ab"}
    for name in others:
        admission._admitted[name] = _Admitted(0.0, 0.0)
    load = Load(others, {}, frozenset(others), COST, max_sequences=1, num_rows=num_rows)
    assert admission.ask(LinkId("c"), load, 1.0) == has_room
    assert count_max([*others.values()], load) == (num_rows or 6)


def test_not_even_where_those_who_are_there_gain_nothing() -> None:
    admission, hot = AdmissionControl("n_max"), replace(STARSD, num_tokens=1.0)
    others = {LinkId(name): hot for name in "ab"}
    for name in others:
        admission._admitted[name] = _Admitted(0.0, 0.0)
    load = Load(others, {}, frozenset(others), COST, max_sequences=1, num_rows=2)
    assert admission.ask(LinkId("c"), replace(load, num_rows=3), 1.0)
    admission.leave(LinkId("c"))
    assert not admission.ask(LinkId("c"), load, 1.0)


@pytest.mark.parametrize(("num_rows", "has_room"), [(2, False), (3, True), (None, True)])
def test_not_even_where_those_who_are_there_cannot_be_measured(num_rows: int | None, has_room: bool) -> None:
    admission, others = AdmissionControl("n_max"), [LinkId(name) for name in "ab"]
    for name in others:
        admission._admitted[name] = _Admitted(0.0, 0.0)
    load = Load({}, {}, frozenset(others), COST, max_sequences=1, num_rows=num_rows)
    assert admission.ask(LinkId("c"), load, UNKNOWN_S + 1.0) == has_room


def test_of_a_crowd_as_many_are_taken_in_at_once_as_are_measured() -> None:
    admission, comers = AdmissionControl("n_max"), [LinkId(f"t{number}") for number in range(12)]
    measured: dict[LinkId, Demand] = {}
    num_held = []
    for now in range(4):
        load = Load(dict(measured), {}, frozenset(measured), COST, max_sequences=None)
        for name in comers:
            admission.ask(name, load, float(now))
        num_held.append(admission.num_admitted)
        measured = dict.fromkeys(admission._admitted, STARSD)
    assert num_held == [1, 2, 4, 8]
    assert not admission.ask(LinkId("more"), replace(load, demands=dict(list(measured.items())[:4])), 3.0)
    later = replace(load, demands=dict(list(measured.items())[:4]))
    assert admission.ask(LinkId("more"), later, 3.0 + UNKNOWN_S), "who cannot be measured keeps nobody out for long"


def test_n_max_counts_targets_all_of_whose_sequences_have_rows() -> None:
    wide = replace(STARSD, num_sequences=8.0)
    load = Load({}, {}, frozenset(), COST, max_sequences=None, num_rows=8)
    assert count_max([wide] * 2, load) == 1
    assert count_max([wide] * 2, replace(load, num_rows=16)) == 2


# ---------------------------------------------------------------- in the hub


def test_tags_of_a_target_that_is_not_admitted_are_declined_until_another_has_left() -> None:
    star = ToyStar("a", "b", admission=1)
    first, second = ToyTag(1, [1, 2]), ToyTag(1, [3, 4])
    star.send("a", first.open())
    star.send("b", second.open())
    ((name, declined),) = star.step()
    assert (name, declined.token_ids) == ("b", [])
    assert declined.retry_after_s == RETRY_S
    second.receive(declined)
    second.session.lose()
    assert [name for name, _ in star.drain()] == ["a"]
    star.hub.leave(LinkId("a"), star.clock())
    star.send("b", second.open())
    ((name, proposal),) = star.drain()
    assert second.receive(proposal)
    assert proposal.token_ids == second.expected()
    assert star.hub.status(star.clock()).stats.num_declined == 1


def test_a_target_that_was_let_go_is_told_with_its_next_verdict() -> None:
    star = ToyStar("a", admission=1)
    tag = ToyTag(1, [1, 2])
    star.send("a", tag.open())
    assert tag.receive(star.drain()[0][1])
    star.hub._links._admission.leave(LinkId("a"))
    assert star.hub._links._admission.ask(LinkId("somebody"), star.hub._links._load(star.clock()), star.clock())
    verdict = tag.verdict([5])
    star.send("a", verdict)
    ((_, declined),) = star.drain()
    assert isinstance(declined, Proposal)
    assert declined.retry_after_s == RETRY_S
    assert tag.receive(declined)
    tag.session.lose()
    star.send("a", verdict)  # once more, late
    assert star.drain() == []
    assert star.num_leased == 0


def test_a_target_that_wants_no_drafts_any_more_is_let_go_and_not_admitted() -> None:
    star = ToyStar("a", "b", admission=1, max_len=400)
    first, second = ToyTag(1, [1, 2]), ToyTag(1, [3, 4])
    star.send("a", first.open())
    assert first.receive(star.drain()[0][1])
    for elapsed_s in range(40):
        assert elapsed_s > 20 or star.hub.status(star.clock()).stats.num_admitted == 1, "it may only pause"
        star.clock.advance(1.0)
        star.send("a", first.verdict([5], 0))  # its batch is large: it tells what it commits, and no more
        if any(isinstance(message, Reopen) for _, message in star.drain()):
            break
    star.send("b", second.open())
    ((name, proposal),) = star.drain()
    assert name == "b"
    assert second.receive(proposal)
    assert proposal.token_ids == second.expected()
    star.hub.leave(LinkId("b"), star.clock())
    star.send("a", ToyTag(2, [1, 2]).open(0))
    assert star.hub.status(star.clock()).stats.num_admitted == 0


def test_a_target_that_never_answers_a_proposal_does_not_stay_admitted_for_ever() -> None:
    star = ToyStar("a", "b", admission=1)
    silent, waiting = ToyTag(1, [1, 2]), ToyTag(1, [3, 4])
    star.send("a", silent.open())
    assert silent.receive(star.drain()[0][1])
    while True:
        star.clock.advance(1.0)
        star.send("b", waiting.open())
        assert waiting.receive(star.drain()[0][1])
        if waiting.proposal.token_ids:
            break
        waiting.session.lose()
        assert star.clock() < 3 * PAUSE_S
    assert star.clock() > PAUSE_S, "it may have much to read, or a request that vLLM has set aside"


@pytest.mark.parametrize(("admission", "num_admitted"), [("n_max", 1), (7, 1), ("off", 0)])
@pytest.mark.parametrize(("plain_tokens_per_s", "n_max"), [(40.0, 1), (20.0, 2)])
def test_rounds_are_measured_and_n_max_is_counted_whether_it_is_enforced_or_not(
    admission: Admission, num_admitted: int, plain_tokens_per_s: float, n_max: int
) -> None:
    star = ToyStar("a", "b", admission=admission, max_batch=1, max_len=200)
    star.runner.step_s = 0.01
    tag = ToyTag(1, [1, 2])
    star.send("a", tag.open())
    for _, message in star.drain():
        assert tag.receive(message)
    star.hub.handle(LinkId("a"), Ping(1, plain_tokens_per_s), star.clock())
    for _ in range(20):
        star.clock.advance(0.03)
        star.send("a", tag.verdict(tag.told_otherwise(1), 4))
        for _, message in star.drain():
            assert not isinstance(message, Proposal) or tag.receive(message)
    demand = star.hub._links._load(star.clock()).demands[LinkId("a")]
    assert demand.return_s == pytest.approx(0.03)
    assert 3.0 < demand.num_steps <= 4.0, "what survived a verdict is not drafted again"
    assert demand.num_tokens == 2
    assert demand.plain_tokens_per_s == plain_tokens_per_s
    stats = star.hub.status(star.clock()).stats
    assert (stats.num_full, stats.num_admitted) == (2, num_admitted)
    assert stats.num_max == n_max, "2 tokens in 70 ms, or in 80 with two: no gain over 50 ms, some over 100"


def test_how_many_sequences_a_target_has_at_once_is_remembered_while_it_has_none() -> None:
    star = ToyStar("a", admission="n_max", max_len=200)
    star.runner.step_s = 0.01
    tags = {number: ToyTag(number, [number, 2]) for number in range(1, 5)}
    star.send("a", *(tag.open() for tag in tags.values()))
    for _ in range(40):
        for _, message in star.drain():
            assert tags[message.tag].receive(message)
        star.clock.advance(0.1)
        star.send("a", *(tag.verdict(tag.told_otherwise(1), 4) for tag in tags.values()))
    star.send("a", *(tag.close() for tag in tags.values()))
    assert star.hub._links._load(star.clock()).demands[LinkId("a")].num_sequences == pytest.approx(4.0)
