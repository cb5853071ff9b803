"""Several windows of one sequence in flight: what is presumed changes when tokens come, and no token."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from late import LateVerifier
from toy import HashRunner, WordTokenizer
from toy_hub import MOODS, Star, ToyHub, VirtualClock

from starspec.config import TargetConfig
from starspec.engine.drafts import NgramDrafts, NoDrafts
from starspec.engine.engine import TargetEngine
from starspec.engine.flights import Flights
from starspec.ids import RequestId
from starspec.policy.length.fixed import FixedLength
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.budget import DraftBudget
from starspec.speculation.tree import EMPTY_TREE, DraftTree
from starspec.stats import TargetStats
from starspec.windows.local import LocalVerifier
from starspec.windows.verifier import Landed
from starspec.wire.messages import Close, Open, RequestSpec, TargetToHub, Verdict

POLL_S = 0.002  # a wait in vain


class TickingVerifier(LateVerifier):
    """Waits in virtual time."""

    def __init__(self, clock: VirtualClock, runner: HashRunner, late: Sequence[int]) -> None:
        super().__init__(LocalVerifier(runner), *late)
        self.clock = clock

    def poll(self, timeout_s: float) -> list[Landed]:
        landed = super().poll(timeout_s)
        if timeout_s and not landed:
            self.clock.now += POLL_S
        return landed


class ListeningHub(ToyHub):
    """Notes what it is told, and whether that is true."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock)
        self.heard: list[str] = []

    def send(self, messages: Sequence[TargetToHub]) -> None:
        self.heard += [type(each).__name__ for each in messages if isinstance(each, Open | Verdict | Close)]
        super().send(messages)


class FarStar(Star):
    """A star whose verdicts land a traversal later. Args: late: polls, depth, windows of each sequence."""

    def __init__(self, late: tuple[int, int, int], share_wrong: float = 0.0, **options: Any) -> None:
        super().__init__(late=late, **options)
        self.hub.share_wrong = share_wrong

    def make_hub(self) -> ListeningHub:
        return ListeningHub(self.clock)

    def make_verifier(self) -> TickingVerifier:
        assert self.late is not None
        return TickingVerifier(self.clock, self.make_runner(), self.late)


def test_the_hub_drafts_on_while_windows_travel_and_is_asked_to_go_back_by_no_message_of_its_own() -> None:
    star = FarStar((40, 1, 4))
    star.submit("a", [1, 2, 3], 60)
    star.finish()
    assert star.stats.num_ahead_windows > 5
    assert star.stats.num_stale_windows == 0
    assert star.hub.heard.count("Open") == 1  # nothing was taken back
    alone = FarStar((40, 1, 1))
    alone.submit("a", [1, 2, 3], 60)
    alone.finish()
    assert star.clock.now - 100.0 < 0.6 * (alone.clock.now - 100.0)


def test_a_refused_token_makes_the_windows_behind_it_stale_and_the_hub_begins_again_behind_it() -> None:
    star = FarStar((40, 1, 4), share_wrong=0.1)
    star.submit("a", [1, 2, 3], 60)
    star.finish()
    assert star.stats.num_stale_windows > 0
    assert star.hub.heard.count("Open") > 1
    assert star.stats.acceptance.num_emitted_tokens == 60


@pytest.mark.parametrize("num_each", [1, 3])
def test_at_most_so_many_windows_of_a_sequence_are_in_flight(num_each: int) -> None:
    star = FarStar((40, 1, num_each))
    star.submit("a", [1, 2, 3], 60)
    most = 0
    while star.engine.has_work:
        star.step()
        most = max([most, *(len(each.flights) for each in star.engine._requests.all)])
    assert most == num_each


def test_an_abort_with_windows_in_flight_frees_the_row_and_they_land_for_nobody() -> None:
    star = FarStar((40, 1, 4))
    star.submit("a", [1, 2, 3], 60)
    while not star.stats.num_ahead_windows:
        star.step()
    star.engine.abort(RequestId("a"))
    star.wanted.pop("a"), star.got.pop("a")
    star.engine.check_integrity()
    star.submit("b", [4, 5], 20)
    star.finish()


def test_requests_that_end_within_a_window_leave_nothing_presumed() -> None:
    star = FarStar((20, 1, 4))
    for number in range(6):
        star.submit(f"r{number}", [number + 1, 2], 3 + 2 * number)
    star.finish()
    assert not star.engine.has_work
    assert star.engine.verifier.cache.num_free_rows == star.engine.verifier.cache.num_rows
    assert not star.hub.sessions


@settings(deadline=None, max_examples=150)
@given(st.integers(0, 10**9))
def test_tokens_are_those_of_plain_decoding_whatever_the_hub_does(seed: int) -> None:
    rng = random.Random(seed)
    late = (rng.randint(1, 40), rng.randint(1, 3), rng.randint(1, 5))
    policy = FixedLength(DraftBudget.chain(rng.randint(1, 6)))
    star = FarStar(late, rng.choice((0.0, 0.1, 0.5)), policy=policy, fallback=rng.random() < 0.3)
    for number in range(rng.randint(1, 6)):
        star.submit(f"r{number}", [rng.randrange(64) for _ in range(rng.randint(1, 12))], rng.randint(1, 40))
        for _ in range(rng.randrange(40)):
            star.step()
        match rng.randrange(8):
            case 0:
                star.hub.mood = rng.choice([*MOODS, "good", "bushy"])
            case 1:
                star.hub.kill()
            case 2:
                star.hub.revive()
            case 3 if star.engine.has_work:
                key = rng.choice(star.engine._requests.all).key.request_id
                star.engine.abort(key)
                star.wanted[key] = star.got[key]
    star.finish()
    assert star.engine.verifier.cache.num_free_rows == star.engine.verifier.cache.num_rows


@settings(deadline=None, max_examples=30)  # tests/stages has hundreds of lives with prompt lookup
@given(st.integers(0, 10**9))
def test_prompt_lookup_goes_on_behind_what_is_presumed(seed: int) -> None:
    rng = random.Random(seed)
    stats, clock = TargetStats(), VirtualClock()
    drafts = NgramDrafts(FixedLength(DraftBudget.chain(rng.randint(1, 4))), 1, 3, stats, clock)
    verifier = TickingVerifier(clock, HashRunner(), (rng.randint(0, 20), 2, rng.randint(2, 4)))
    engine = TargetEngine(verifier, WordTokenizer(), drafts, TargetConfig(prefill_chunk=5), stats, clock)
    config = TargetConfig(prefill_chunk=5)
    local = TargetEngine(LocalVerifier(HashRunner()), WordTokenizer(), NoDrafts(), config, TargetStats(), clock)
    spec = SamplingSpec(temperature=rng.choice((0.0, 0.9)), seed=seed % 1000, repetition_penalty=rng.choice((1.0, 1.3)))
    answers: list[dict[str, list[int]]] = [{}, {}]
    for number in range(rng.randint(1, 5)):
        prompt = [rng.randrange(4) for _ in range(rng.randint(1, 20))]
        for each in (engine, local):
            each.submit(RequestId(f"r{number}"), RequestSpec(prompt, spec, max_tokens=40))
    for each, got in zip((engine, local), answers, strict=True):
        while each.has_work:
            for output in each.step().values():
                got.setdefault(output.request_id, []).extend(output.token_ids)
            each.check_integrity()
    assert answers[0] == answers[1]


CHAIN = DraftTree.chain([1, 2])


def test_flights_hold_what_is_presumed_until_another_token_lands() -> None:
    flights = Flights()
    first = flights.launch(CHAIN, is_presumed=True)
    assert flights.stand_on(3) == 3
    second = flights.launch(DraftTree.chain([4]), is_presumed=True)
    assert (flights.token_ids, flights.settled) == ([1, 2, 3, 4], [1, 2, 3])
    assert flights.land(first, (1, 2, 3)) is None
    assert (flights.token_ids, flights.settled) == ([4], [])
    assert flights.land(second, (5,)) == 0
    assert not flights.token_ids
    assert not flights.may_go_on


@pytest.mark.parametrize(("landed", "num_right"), [((1, 2, 9), 2), ((1, 9), 1), ((9,), 0)])
def test_a_window_behind_another_token_is_stale(landed: tuple[int, ...], num_right: int) -> None:
    flights = Flights()
    first = flights.launch(CHAIN, is_presumed=True)
    flights.stand_on(3)
    second = flights.launch(EMPTY_TREE, is_presumed=False)
    assert flights.land(first, landed) == num_right
    assert second.is_stale
    assert not flights


def test_of_the_last_window_only_the_draft_is_presumed() -> None:
    flights = Flights()
    assert flights.land(flights.launch(CHAIN, is_presumed=True), (1, 2, 9)) is None
    assert flights.land(flights.launch(CHAIN, is_presumed=True), (1, 9)) == 1
    assert flights.land(flights.launch(CHAIN, is_presumed=False), (9,)) is None
