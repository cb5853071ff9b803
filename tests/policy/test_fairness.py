"""Turns by weight: shares as promised, nobody starved, nothing left undone."""

from __future__ import annotations

import itertools
import random
from collections import Counter, deque
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import pytest
from hub_toys import VOCAB_SIZE, ToyStar, ToyTag
from hypothesis import given, settings
from hypothesis import strategies as st
from test_draft_batch import snapshots, view

from starspec.config import MaxBatch
from starspec.ids import LinkId, Tag, TargetId
from starspec.policy.draft_batch import DraftStepSnapshot, SequenceView, TagKey
from starspec.policy.fairness import (
    QUANTUM,
    DeficitRoundRobin,
    HeldTag,
    RequestStanding,
    _DrrOrder,
    choose_fairly,
    first_in_order,
    jains_index,
    tag_to_drop,
    target_to_take_from,
)
from starspec.wire.session import TagState

CHUNK = 16


@dataclass
class GreedyStar:
    """Sequences that always ask again, `away` draft steps after each proposal of `depth` draft steps; virtual time is
    draft steps.
    """

    weights: dict[str, float]
    num_sequences: dict[str, int]
    max_sequences: int
    depth: int = 8
    away: int = 0
    served: Counter[str] = field(default_factory=Counter)
    longest_wait: int = 0  # draft steps from a request to its first

    def __post_init__(self) -> None:
        self.now = 0
        self.turns = DeficitRoundRobin({LinkId(name): weight for name, weight in self.weights.items()})
        keys = [TagKey(LinkId(name), Tag(tag)) for name, num in self.num_sequences.items() for tag in range(num)]
        self.order: dict[TagKey, int] = dict.fromkeys(keys, 0)  # who waits, and how many draft steps it has had
        self.asked = dict.fromkeys(keys, 0)
        self.returns: deque[tuple[int, TagKey]] = deque()

    def run(self, num_steps: int) -> GreedyStar:
        for _ in range(num_steps):
            while self.returns and self.returns[0][0] <= self.now:
                key = self.returns.popleft()[1]
                self.order[key], self.asked[key] = 0, self.now
            self._draft_step()
            self.now += 1
        return self

    def _draft_step(self) -> None:
        views = [SequenceView(key, True, 1, False, 0.0, has_started=had > 0) for key, had in self.order.items()]
        draft_step, self.turns = choose_fairly(
            DraftStepSnapshot(
                waiting=tuple(views),
                idle=(),
                num_free_rows=0,
                prefill_chunk=CHUNK,
                chunk_beside=CHUNK,
                max_sequences=self.max_sequences,
            ),
            self.turns,
        )
        assert len(draft_step.sequences) == min(self.max_sequences, len(views)), "a place was left empty"
        for scheduled in draft_step.sequences:
            self.served[str(scheduled.key.link_id)] += scheduled.num_tokens
            if self.order[scheduled.key] == 0:
                self.longest_wait = max(self.longest_wait, self.now - self.asked[scheduled.key])
            self.order[scheduled.key] += 1
            if self.order[scheduled.key] == self.depth:
                del self.order[scheduled.key]
                self.returns.append((self.now + 1 + self.away, scheduled.key))


@pytest.mark.parametrize("max_sequences", [1, 2, 3, 4])
@pytest.mark.parametrize("num_sequences", [4, 16])
def test_two_greedy_targets_of_weight_1_and_3_are_served_1_to_3(max_sequences: int, num_sequences: int) -> None:
    star = GreedyStar({"light": 1.0, "heavy": 3.0}, {"light": num_sequences, "heavy": num_sequences}, max_sequences)
    served = star.run(4_000).served
    assert served["heavy"] / served["light"] == pytest.approx(3.0, abs=0.15)


def test_a_target_with_many_sequences_gets_no_more_than_one_with_few() -> None:
    served = GreedyStar({}, {"many": 60, "few": 3}, max_sequences=2).run(8_000).served
    assert served["many"] / served["few"] == pytest.approx(1.0, abs=0.05)


def test_what_one_cannot_use_goes_to_the_others() -> None:
    served = GreedyStar({"heavy": 100.0}, {"heavy": 1, "light": 8}, max_sequences=4).run(5_000).served
    assert served["heavy"] == 5_000, "one sequence is in one place of a draft step"
    assert served["light"] == 15_000


@given(
    sizes=st.lists(st.tuples(st.integers(1, 6), st.sampled_from((0.5, 1.0, 2.0, 3.0))), min_size=1, max_size=6),
    max_sequences=st.integers(1, 5),
    depth=st.integers(1, 9),
    away=st.integers(0, 20),
)
def test_nobody_waits_for_ever(sizes: list[tuple[int, float]], max_sequences: int, depth: int, away: int) -> None:
    """A sequence waits at most until its target has had as many turns as it has sequences, and paid its debts."""
    names = [f"t{number}" for number in range(len(sizes))]
    weights = {name: weight for name, (_, weight) in zip(names, sizes, strict=True)}
    star = GreedyStar(
        weights, {name: num for name, (num, _) in zip(names, sizes, strict=True)}, max_sequences, depth, away
    )
    star.run(600)
    lightest = min(weights.values())
    round_tokens = sum(QUANTUM * weight / lightest + depth * max_sequences for weight in weights.values())
    num_rounds = max(num for num, _ in sizes) * (1 + depth / QUANTUM) + max_sequences * depth / QUANTUM + 1
    assert star.longest_wait <= num_rounds * round_tokens
    if away == 0:
        assert set(star.served) == set(names)


@given(
    weights=st.lists(st.sampled_from((0.25, 1.0, 1.5, 4.0)), min_size=2, max_size=5),
    max_sequences=st.integers(1, 4),
    depth=st.integers(1, 9),
)
def test_greedy_targets_are_served_by_weight_to_within_a_bound_that_does_not_grow(
    weights: list[float], max_sequences: int, depth: int
) -> None:
    names = [f"t{number}" for number in range(len(weights))]
    shares = dict(zip(names, weights, strict=True))
    star = GreedyStar(shares, dict.fromkeys(names, max_sequences + 1), max_sequences, depth)
    for _ in range(3):
        star.run(200)
        per_weight = [Fraction(star.served[name]) / Fraction(shares[name]) for name in names]
        slack = QUANTUM / min(weights) + max_sequences * depth / min(weights)
        assert max(per_weight) - min(per_weight) <= 2 * slack


@given(snapshots(), st.dictionaries(st.sampled_from("st"), st.floats(-300, 30)))
def test_any_deficits_keep_the_promises_of_the_draft_step(snapshot: DraftStepSnapshot, known: dict[str, float]) -> None:
    turns = DeficitRoundRobin({}, {LinkId(name): deficit for name, deficit in known.items()})
    draft_step, after = choose_fairly(snapshot, turns)
    by_key = {each.key: each for each in (*snapshot.waiting, *snapshot.idle)}
    grown = [scheduled.key for scheduled in draft_step.sequences]
    assert grown
    assert len(set(grown)) == len(grown)
    assert not set(grown) & set(draft_step.evicted)
    assert all(by_key[key].has_row for key in draft_step.evicted)
    assert sum(not by_key[key].has_row for key in grown) <= snapshot.num_free_rows + len(draft_step.evicted)
    assert all(deficit <= max(QUANTUM, known.get(target, QUANTUM)) for target, deficit in after.deficits.items())


def test_a_row_is_taken_from_the_last_target_in_service_order_and_not_from_the_last_to_come() -> None:
    waiting = (view(1, target="a"), view(4, target="a"), view(2, has_row=False, target="b"), view(3, target="b"))
    snapshot = DraftStepSnapshot(
        waiting=waiting, idle=(), num_free_rows=0, prefill_chunk=CHUNK, chunk_beside=CHUNK, max_sequences=1
    )
    turns = DeficitRoundRobin({}, {LinkId("b"): 5.0, LinkId("a"): 5.0})
    draft_step, _ = choose_fairly(snapshot, turns)
    assert [scheduled.key for scheduled in draft_step.sequences] == [waiting[2].key]
    assert draft_step.evicted == (waiting[1].key,)


@given(st.lists(st.floats(-40, 8), min_size=1, max_size=5))
def test_targets_are_served_in_the_expected_order_however_deep_deficits_are(known: list[float]) -> None:
    waiting = [view(number, target=f"t{number}") for number in range(len(known))]
    turns = DeficitRoundRobin({}, {LinkId(f"t{number}"): deficit for number, deficit in enumerate(known)})
    order = _DrrOrder(turns, waiting)
    assert order.expected_order() == list(order)


def test_a_sequence_that_has_begun_is_finished_before_another_begins() -> None:
    star = ToyStar("a", "b", max_batch=1)
    tags = {name: [ToyTag(number, [number, 2]) for number in (1, 2, 3)] for name in "ab"}
    for name, each in tags.items():
        star.send(name, *(tag.open(4) for tag in each))
    proposals = star.drain()
    assert [name for name, _ in proposals] == ["a", "a", "b", "b", "a", "b"], "two proposals of four tokens a turn"
    assert all(proposal.service_s == 0 or len(proposal.token_ids) == 4 for _, proposal in proposals)


def test_first_come_first_served_remains() -> None:
    star = ToyStar("a", "b", max_batch=1, scheduling="fifo")
    for name in "ab":
        star.send(name, *(ToyTag(number, [number, 2]).open(4) for number in (1, 2, 3)))
    assert [name for name, _ in star.drain()] == ["a", "a", "a", "b", "b", "b"]


def test_weights_go_by_the_targets_names_and_its_sequences_share_them() -> None:
    star = ToyStar(max_batch=1, num_rows=12, weights={"heavy": 3.0})
    tags: dict[tuple[str, int], ToyTag] = {}
    for name, sequence in (("heavy", "s1"), ("light", "s2")):
        star.hub.join(LinkId(sequence), TargetId(name), VOCAB_SIZE)
        for number in range(1, 5):
            tag = tags[sequence, number] = ToyTag(number, [number, 2])
            star.send(sequence, tag.open(4))
    served: Counter[str] = Counter()
    for _ in range(1_500):
        for sequence, proposal in star.step():
            tag = tags[sequence, proposal.tag]
            assert tag.receive(proposal)
            served[sequence] += len(proposal.token_ids)
            if len(tag.token_ids) > 50:
                fresh = tags[sequence, proposal.tag + 4] = ToyTag(proposal.tag + 4, [1, 2])
                star.send(sequence, tag.close(), fresh.open(4))
            else:
                star.send(sequence, tag.verdict([proposal.token_ids[0]]))
    assert served["s1"] / served["s2"] == pytest.approx(3.0, abs=0.15)


def round_s(objectives: dict[str, float], num_rounds: int = 150) -> dict[str, float]:
    """Mean rounds of two targets with three sequences each, one at a time at the hub; later half."""
    star = ToyStar("a", "b", max_batch=1, num_rows=6, max_len=2_000, slo_round_ms=objectives)
    star.runner.step_s = 0.001
    tags = {(name, number): ToyTag(number, [number, 2]) for name in "ab" for number in (1, 2, 3)}
    for (name, _), tag in tags.items():
        star.send(name, tag.open(4))
    rounds: dict[str, list[float]] = {"a": [], "b": []}
    last_s: dict[tuple[str, int], float] = {}
    while min(map(len, rounds.values())) < num_rounds:
        for name, message in star.step():
            key = (name, message.tag)
            assert tags[key].receive(message)
            if key in last_s:
                rounds[name].append(star.clock() - last_s[key])
            last_s[key] = star.clock()
            star.send(name, tags[key].verdict([7], 4))
    return {name: sum(each[-num_rounds // 2 :]) / (num_rounds // 2) for name, each in rounds.items()}


def test_who_is_behind_its_objective_goes_first_until_it_is_met() -> None:
    plain = round_s({})
    assert plain["a"] == pytest.approx(plain["b"], rel=0.05)
    objective_s = 0.75 * plain["a"]
    met = round_s({"a": 1e3 * objective_s})
    assert met["a"] == pytest.approx(objective_s, rel=0.15)
    assert met["a"] < 0.85 * plain["a"]
    assert met["b"] > plain["b"], "nothing is free"


def test_a_target_whose_proposals_all_come_too_late_is_known_to_be_behind() -> None:
    star = ToyStar("a", "b", max_batch=1, slo_round_ms={"b": 40.0})
    star.runner.step_s = 0.1
    star.send("a", *(ToyTag(number, [number, 2]).open(8) for number in range(1, 4)))
    late = ToyTag(1, [1, 2])
    star.send("b", late.open(4))
    for _ in range(3):  # it goes on without what it has asked for
        star.clock.advance(0.08)
        star.send("b", late.verdict([5], 4))
    seen = star.hub.status(star.clock()).targets[TargetId("b")]
    assert seen.num_proposals == 0
    assert seen.round.value == pytest.approx(0.08)
    request = star.hub._sequences[TagKey(LinkId("b"), late.session.tag)].round.request
    assert request.is_urgent
    assert request.num_steps == 0, "nothing of what was drafted for it is left"


def test_the_round_after_a_proposal_that_came_too_late_counts_as_the_others_do() -> None:
    """Else a target that is late now and then would seem to be late always, and go before all."""
    star = ToyStar("a", slo_round_ms={"a": 60.0})
    star.runner.step_s = 0.01
    tag = ToyTag(1, [1, 2])
    star.send("a", tag.open(1))
    for _ in range(20):
        [(_, proposal)] = star.drain()
        assert tag.receive(proposal)
        star.clock.advance(0.03)
        star.send("a", tag.verdict([5], 1))
        star.clock.advance(0.05)
        star.send("a", tag.verdict([5], 1))  # without what it has asked for, 80 ms after the last proposal
    seen = star.hub.status(star.clock()).targets[TargetId("a")]
    assert seen.round.of_all == pytest.approx((0.08 + 0.01) / 2, rel=0.05)


def test_draft_steps_of_a_proposal_that_came_too_late_were_waited_for_and_spare_nothing() -> None:
    star = ToyStar("a", run_ahead="outcomes")
    star.runner.step_s = 0.01
    tag = ToyTag(1, [1, 2])
    star.send("a", tag.open(4))
    for _ in range(3):
        assert star.step() == []
    sequence = star.hub._sequences[TagKey(LinkId("a"), tag.session.tag)]
    star.send("a", tag.verdict([tag.expected(1)[0]], 4))
    assert sequence.round.request.num_steps == 2, "of three, what follows the first guess"
    star.drain()
    assert star.hub.stats.saved_s == 0


def test_an_objective_that_is_met_changes_nothing() -> None:
    assert round_s({"a": 1e6}) == round_s({})


@given(snapshots(), st.sets(st.integers(0, 8)))
def test_urgent_sequences_come_before_those_that_have_begun_and_owe_nothing(
    snapshot: DraftStepSnapshot, numbers: set[int]
) -> None:
    waiting = tuple(replace(each, is_urgent=each.key.tag in numbers) for each in snapshot.waiting)
    urgent = {each.key for each in waiting if each.is_urgent}
    draft_step, turns = choose_fairly(replace(snapshot, waiting=waiting, max_sequences=1), DeficitRoundRobin())
    (scheduled,) = draft_step.sequences
    if any(each.is_urgent and not each.is_prefill for each in waiting):
        assert scheduled.key in urgent
        assert all(deficit >= QUANTUM for target, deficit in turns.deficits.items() if target == scheduled.key.link_id)


def test_jains_index() -> None:
    assert jains_index([]) == 1.0
    assert jains_index([0.0, 0.0]) == 1.0
    assert jains_index([5.0, 5.0, 5.0]) == pytest.approx(1.0)
    assert jains_index([9.0, 0.0, 0.0]) == pytest.approx(1 / 3)


def test_the_index_is_of_the_last_seconds_by_weight_and_counts_who_waits_in_vain() -> None:
    star = ToyStar("a", "b", max_batch=1, weights={"a": 2.0, "b": 1.0})
    star.runner.step_s = 0.1
    star.send("a", *(ToyTag(number, [number, 2]).open(4) for number in range(1, 4)))
    star.send("b", ToyTag(1, [1, 2]).open(4))
    while star.hub.stats.num_draft_steps < 8:
        star.step()
    assert star.hub.status(star.clock()).stats.fairness == pytest.approx(0.5)
    star.drain()
    shares = (12 / 2, 4 / 1)
    assert star.hub.status(star.clock()).stats.fairness == pytest.approx(jains_index(shares))
    star.clock.advance(60.0)
    assert star.hub.status(star.clock()).stats.fairness == 1.0


def share(num_rows: int, max_batch: MaxBatch, weight: float, prompt_len: int) -> float:
    """Draft tokens of a target of so much weight, by those of one of weight 1; each has 8 tags that always wait."""
    weights = {} if weight == 1.0 else {"heavy": weight}
    limits = {
        "max_batch": max_batch,
        "weights": weights,
        "prefill_chunk": 4000,
    }  # what was lost is read in one draft step
    star = ToyStar("heavy", "light", num_rows=num_rows, max_len=4000, max_tags=16, **limits)
    star.runner.step_s = 0.001
    tags = {(name, tag): ToyTag(tag, [tag] * prompt_len) for name in ("heavy", "light") for tag in range(8)}
    for (name, _), tag in tags.items():
        star.send(name, tag.open(4))
    got: Counter[str] = Counter()
    while got.total() < 1_000:
        for name, message in star.step():
            assert tags[name, message.tag].receive(message)
            got[name] += len(message.token_ids)
            star.send(name, tags[name, message.tag].verdict([7], 4))
    return got["heavy"] / got["light"]


@pytest.mark.parametrize(
    ("num_rows", "max_batch", "prompt_len"),
    [(4, "auto", 40), (4, 1, 4), (4, 1, 40), (8, 4, 4), (8, 4, 40), (14, 4, 40)],
)
@pytest.mark.parametrize("weight", [1.0, 3.0])
def test_weights_hold_where_rows_are_short(num_rows: int, max_batch: MaxBatch, prompt_len: int, weight: float) -> None:
    """Who loses rows to others must read its past again; it is neither passed over for that nor charged for it."""
    assert share(num_rows, max_batch, weight, prompt_len) == pytest.approx(weight, abs=0.05 * weight)


def test_with_rows_for_almost_all_the_heavier_target_grows_in_every_draft_step() -> None:
    assert share(12, "auto", 3.0, 40) == pytest.approx(8 / 4, rel=0.05), "more would leave rows idle"


LIMITS: list[dict[str, Any]] = [
    {"weights": {"b": 3.0}},
    {"scheduling": "fifo"},
    {"weights": {"b": 3.0}, "slo_round_ms": {"a": 1e-3}},
]


@pytest.mark.parametrize("limits", LIMITS, ids=str)
@settings(max_examples=25)
@given(
    num_tags=st.lists(st.integers(1, 3), min_size=2, max_size=3),
    depths=st.lists(st.integers(2, 5), min_size=3, max_size=3),
    max_batch=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_who_goes_on_while_others_wait_is_whom_the_scheduler_would_choose(
    limits: dict[str, Any], num_tags: list[int], depths: list[int], max_batch: int, seed: int
) -> None:
    names = "abc"[: len(num_tags)]
    star = ToyStar(*names, num_rows=12, max_batch=max_batch, **limits)
    tags = {
        (name, tag): ToyTag(tag, [tag, 3]) for name, most in zip(names, num_tags, strict=True) for tag in range(most)
    }
    wanted = dict(zip(tags, itertools.cycle(depths)))
    for key, tag in tags.items():
        star.send(key[0], tag.open(wanted[key]))
    chance, hub, num_met = random.Random(seed), star.hub, 0
    for _ in range(60):
        for name, message in star.step() if star.hub.has_work else ():
            assert tags[name, message.tag].receive(message)
        star.hub.check_integrity()  # compares the choices, and what they are charged
        num_met += 0 < len(hub._scheduler._repeating) < hub._buffer.num_waiting
        for key, tag in tags.items():
            if tag.session.state is not TagState.DRAFTING and chance.random() < 0.3:
                star.clock.advance(0.01)
                star.send(key[0], tag.verdict([tag.proposal.token_ids[0], 1], wanted[key]))
    assert num_met or len(tags) <= max_batch


@given(st.lists(st.tuples(st.sampled_from("st"), st.booleans(), st.booleans()), max_size=9))
def test_what_comes_before_the_turns_is_what_deficit_round_robin_yields_first(
    drawn: list[tuple[str, bool, bool]],
) -> None:
    waiting = [
        replace(view(tag, target=target), is_urgent=is_urgent, has_started=has_started)
        for tag, (target, is_urgent, has_started) in enumerate(drawn)
    ]
    places = first_in_order([RequestStanding(each.is_urgent, each.has_started) for each in waiting])
    order = list(_DrrOrder(DeficitRoundRobin(), waiting))
    assert [waiting[place] for place in places] == order[: len(places)]
    assert not any(each.is_urgent or each.has_started for each in order[len(places) :])


A, B, C = LinkId("a"), LinkId("b"), LinkId("c")


def test_a_tag_is_taken_from_the_target_with_the_most_until_both_have_equally_many() -> None:
    assert target_to_take_from({A: 5, B: 0, C: 3}, B) == A
    assert target_to_take_from({A: 5, B: 3}, B) == A
    assert target_to_take_from({A: 5, B: 4}, B) is None, "it would then have fewer"
    assert target_to_take_from({A: 4, B: 4}, B) is None
    assert target_to_take_from({A: 4, B: 5}, B) is None
    assert target_to_take_from({B: 9}, B) is None


def test_a_tag_without_a_request_is_dropped_first_and_the_one_used_least_recently() -> None:
    keys = [TagKey(A, Tag(number)) for number in range(3)]
    owed, old, new = HeldTag(keys[0], True, 1.0), HeldTag(keys[1], False, 2.0), HeldTag(keys[2], False, 3.0)
    assert tag_to_drop([owed, new, old]) == keys[1]
    assert tag_to_drop([owed, new]) == keys[2]
    assert tag_to_drop([owed]) == keys[0]
