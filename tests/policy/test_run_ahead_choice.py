"""Running ahead is chosen by what it is worth: to whom it pays it stays, whom it costs it leaves, and nobody flaps."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import pytest
from hub_toys import ToyStar, ToyTag, logits_after, reference_chain
from hypothesis import given
from hypothesis import strategies as st
from test_run_ahead import proposed

from starspec.config import AheadMode
from starspec.ids import LinkId, TargetId
from starspec.policy.draft_batch import TagKey
from starspec.policy.run_ahead import MARGIN, MAX_PATIENCE, NUM_OUTCOMES, NUM_ROUNDS, NUM_SKIPPED, AheadChoice
from starspec.speculation.budget import DraftBudget, TopKSpec
from starspec.wire.messages import Proposal

TRIAL = NUM_ROUNDS + NUM_SKIPPED
MODES: tuple[AheadMode, ...] = ("off", "chain", "outcomes")


def live(choice: AheadChoice, seconds: dict[AheadMode, float], num_rounds: int, noise: float = 0.0) -> list[AheadMode]:
    """The modes of so many rounds that take so long each."""
    rng, modes = random.Random(1), list[AheadMode]()
    for _ in range(num_rounds):
        modes.append(choice.mode)
        choice.add_round(3.0, seconds[choice.mode] * (1.0 + noise * rng.uniform(-1.0, 1.0)))
    return modes


def test_only_outcomes_that_are_not_drawn_are_prepared_for_with_more_draft_tokens_per_node() -> None:
    budget, wide = DraftBudget(4, 4, top_k=2), DraftBudget(4, 4, top_k=NUM_OUTCOMES + 1)
    for mode in MODES:
        assert AheadChoice(mode).top_k_spec(budget, is_drawn=True) == budget.top_k_spec
        asked = AheadChoice(mode).top_k_spec(budget, is_drawn=False)
        assert asked == (TopKSpec(NUM_OUTCOMES) if mode == "outcomes" else budget.top_k_spec)
        assert AheadChoice(mode).top_k_spec(wide, is_drawn=False).top_k == NUM_OUTCOMES + 1


@pytest.mark.parametrize("mode", MODES)
def test_who_is_told_how_to_run_ahead_does_so(mode: AheadMode) -> None:
    assert set(live(AheadChoice(mode), {"off": 1.0, "chain": 2.0, "outcomes": 3.0}, 500)) == {mode}


@given(st.fixed_dictionaries({mode: st.floats(0.01, 0.1) for mode in MODES}))
def test_in_the_end_no_other_mode_is_better_by_the_margin(seconds: dict[AheadMode, float]) -> None:
    choice = AheadChoice("auto")
    live(choice, seconds, 6_000)
    rounds = Counter(live(choice, seconds, 2 * MAX_PATIENCE))
    good = sum(num for mode, num in rounds.items() if seconds[mode] <= (1.0 + MARGIN) ** 2 * min(seconds.values()))
    assert good >= 0.9 * rounds.total()


def test_what_pays_is_found_within_a_few_dozen_rounds() -> None:
    modes = live(AheadChoice("auto"), {"off": 0.042, "chain": 0.040, "outcomes": 0.036}, 400)
    assert set(modes[:NUM_ROUNDS]) == {"off"}
    assert modes[NUM_ROUNDS + TRIAL :].count("outcomes") > 0.7 * len(modes[NUM_ROUNDS + TRIAL :])


def test_a_sequence_comes_back_when_it_pays_again() -> None:
    choice = AheadChoice("auto")
    modes = live(choice, {"off": 0.03, "chain": 0.04, "outcomes": 0.05}, 4_000)
    assert modes[-1_000:].count("off") > 900
    modes = live(choice, {"off": 0.05, "chain": 0.04, "outcomes": 0.03}, 2 * (MAX_PATIENCE + TRIAL) + 500)
    assert modes[-300:].count("outcomes") > 250


def test_noise_makes_nobody_flap() -> None:
    modes = live(AheadChoice("auto"), dict.fromkeys(MODES, 0.03), 20_000, noise=0.3)
    num_trials = sum(now != then for then, now in pairwise(modes)) / 2
    assert num_trials < 20_000 / 300, "one in some hundred rounds"


def test_what_others_waited_for_it_counts_against_it() -> None:
    choice, seconds = AheadChoice("auto"), {"off": 0.040, "chain": 0.036, "outcomes": 0.036}
    modes = list[AheadMode]()
    for _ in range(3_000):
        modes.append(choice.mode)
        if choice.mode != "off":
            choice.charge(0.010)
        choice.add_round(3.0, seconds[choice.mode])
    assert modes[-1_000:].count("off") > 900


def test_sequences_of_a_target_go_on_from_where_the_last_one_has_come() -> None:
    choice, seconds = AheadChoice("auto"), {"off": 0.04, "chain": 0.05, "outcomes": 0.03}
    modes = list[AheadMode]()
    for _ in range(200):  # sequences of five rounds
        choice = choice.for_another()
        modes += live(choice, seconds, 5)
    assert modes.count("outcomes") > 700


AWAY_S, STEP_S, NUM_NODES = 0.030, 0.004, 4


def rounds_of(star: ToyStar, wrong_by: int, num_rounds: int, slow_s: float = 0.0) -> Counter[AheadMode]:
    """A target that is away for AWAY_S, and `slow_s` more if the hub runs ahead meanwhile, with short tags.

    It says the draft's choice of that rank after one accepted token. Returns: in which mode its rounds were.
    """
    star.runner.step_s = STEP_S
    modes, number, tag = Counter[AheadMode](), 0, ToyTag(1, [1, 2])
    star.send("a", tag.open(NUM_NODES))
    for _ in range(num_rounds):
        while tag.proposal is None:
            for _, message in star.step():
                assert tag.receive(message)
        ((key, sequence),) = star.hub._sequences.items()
        modes[sequence.round.ahead_choice.mode] += 1
        back_s, num_ahead = star.clock() + AWAY_S, star.hub.stats.num_ahead_nodes
        while star.hub.has_work and star.clock() < back_s:
            assert star.step() == []
        back_s += slow_s * (star.hub.stats.num_ahead_nodes > num_ahead)
        star.clock.advance(max(0.0, back_s - star.clock()))
        accepted = tag.proposal.token_ids[:1]
        said = int(logits_after([*tag.token_ids, *accepted]).topk(wrong_by + 1).indices[-1])
        assert isinstance(tag.proposal, Proposal)
        if len(tag.token_ids) > 40:
            number += 1
            star.send("a", tag.close())
            tag = ToyTag(number + 1, [number % 30, 2])
            star.send("a", tag.open(NUM_NODES))
        else:
            star.send("a", tag.verdict([*accepted, said], NUM_NODES))
        assert key.link_id == "a"
    return modes


def test_a_sequence_whose_outcomes_hit_has_them_prepared() -> None:
    star = ToyStar("a", run_ahead="auto")
    modes = rounds_of(star, wrong_by=1, num_rounds=600)
    assert modes["outcomes"] > 300
    stats = star.hub.stats
    assert stats.hit_rate > 0.4
    assert stats.saved_s > 200 * STEP_S
    assert 0 < stats.num_wasted_nodes < stats.num_ahead_nodes


def test_a_sequence_whose_target_is_slowed_by_it_is_left_alone() -> None:
    star = ToyStar("a", run_ahead="auto")
    assert rounds_of(star, wrong_by=1, num_rounds=600, slow_s=0.03)["off"] > 450


def test_off_saves_and_wastes_nothing() -> None:
    star = ToyStar("a", run_ahead="off")
    assert rounds_of(star, wrong_by=1, num_rounds=30)["off"] == 30
    stats = star.hub.stats
    assert (stats.num_ahead_nodes, stats.num_wasted_nodes, stats.saved_s) == (0, 0, 0.0)


@pytest.mark.parametrize("num_ahead", [0, 1, 2, 3])
def test_what_is_saved_is_the_draft_steps_that_ran_ahead_and_were_of_use(num_ahead: int) -> None:
    star, tag = ToyStar("a", run_ahead="chain"), ToyTag(1, [1, 2])
    star.runner.step_s = STEP_S
    star.send("a", tag.open(NUM_NODES))
    proposed(star, tag)  # a chain that may be told in part: of one token
    for _ in range(num_ahead):
        assert star.step() == []
    star.send("a", tag.verdict(tag.expected(1), NUM_NODES))
    proposed(star, tag)
    assert star.hub.stats.num_ahead_nodes == num_ahead
    assert star.hub.stats.saved_s == pytest.approx(num_ahead * STEP_S)


def test_what_is_left_of_a_proposal_that_was_not_used_was_waited_for() -> None:
    """A target that goes on without its proposal, and says what was guessed, leaves the rest of it true."""
    star, tag = ToyStar("a", run_ahead="outcomes"), ToyTag(1, [1, 2])
    star.runner.step_s = STEP_S
    star.send("a", tag.open(NUM_NODES))
    proposed(star, tag)
    assert len(tag.proposal.token_ids) > 1
    star.send("a", tag.verdict([tag.proposal.token_ids[0]], NUM_NODES))
    proposed(star, tag)
    assert (star.hub.stats.num_ahead_nodes, star.hub.stats.saved_s) == (0, 0.0)


def in_verification(**options: int) -> tuple[ToyStar, ToyTag]:
    """A hub with a tag whose verdict is to come, and as much drafted ahead of that as is of use."""
    star, tag = ToyStar("a", run_ahead="chain", **options), ToyTag(1, [1, 2])
    star.send("a", tag.open(NUM_NODES))
    star.drain()
    assert star.hub.stats.num_ahead_nodes > 0 == star.hub.stats.num_wasted_nodes
    return star, tag


@pytest.mark.parametrize("end", ["closed", "left", "evicted"])
def test_what_is_lost_before_its_verdict_came_is_wasted(end: str) -> None:
    star, tag = in_verification(num_rows=1)
    num_ahead = star.hub.stats.num_ahead_nodes
    if end == "closed":
        star.send("a", tag.close())
    elif end == "left":
        star.hub.leave(LinkId("a"), star.clock())
    else:
        star.send("a", ToyTag(2, [3, 4]).open(NUM_NODES))
        star.step()
    stats = star.hub.stats
    assert stats.num_wasted_nodes == num_ahead
    assert (stats.num_evictions > 0) == (end == "evicted")


@pytest.mark.parametrize("asks_himself", [True, False])
def test_a_sequence_is_charged_for_a_draft_step_ahead_that_another_waits_for_and_not_for_its_own_wait(
    asks_himself: bool,
) -> None:
    star = ToyStar("a", run_ahead="chain")
    tags = {number: ToyTag(number, [number, 2]) for number in (1, 2)}
    star.send("a", *(tag.open(NUM_NODES) for tag in tags.values()))
    proposals: list[Proposal] = []
    while len(proposals) < 2:
        proposals += [message for _, message in star.step()]
    for message in proposals:
        assert tags[message.tag].receive(message)
    star.runner.step_s = 1.0
    asked_s = star.clock() + 0.25
    star.step()
    (prepared,) = star.hub._proposals._ahead._last
    asking = tags[prepared.key.tag if asks_himself else 3 - prepared.key.tag]
    star.hub.handle(LinkId("a"), asking.verdict(asking.told_otherwise(0), NUM_NODES), asked_s)
    assert prepared.round.ahead_choice._owed_s == pytest.approx(0.0 if asks_himself else 0.75)


def test_a_hit_that_waits_for_the_end_of_a_draft_step_leaves_then_and_says_so() -> None:
    star = ToyStar("a", run_ahead="chain")
    tags = {number: ToyTag(number, [number, 2]) for number in (1, 2)}
    star.send("a", *(tag.open(NUM_NODES) for tag in tags.values()))
    for _, message in star.drain():
        assert tags[message.tag].receive(message)
    star.runner.step_s = 1.0
    asker, other = tags.values()
    as_guessed = reference_chain(asker.token_ids, 2, asker.sampling, NUM_NODES + 1, 64)
    other_sequence = star.hub._sequences[TagKey(LinkId("a"), other.session.tag)]
    asked_s = star.clock() + 0.25
    star.hub._proposals._ahead._last, star.hub._proposals._ahead._last_until_s = [other_sequence], star.clock() + 1.0
    star.clock.advance(1.0)
    star.hub.handle(LinkId("a"), asker.verdict(as_guessed, NUM_NODES), asked_s)
    ((_, proposal),) = star.step()
    assert star.hub.stats.num_hits == 1
    assert proposal.queue_s == pytest.approx(0.75)
    assert star.hub._sequences[TagKey(LinkId("a"), asker.session.tag)].round.in_verification.since_s == star.clock()
    assert other_sequence.round.ahead_choice._owed_s == pytest.approx(0.75)


def test_how_long_a_target_lost_sight_of_the_hub_is_no_time_of_a_round() -> None:
    star, tag = in_verification()
    num_ahead = star.hub.stats.num_ahead_nodes
    star.clock.advance(60.0)
    tag.token_ids.append(7)
    star.send("a", tag.open(NUM_NODES))
    star.drain()
    status = star.hub.status(star.clock())
    told = status.targets[TargetId("a")]
    assert (told.num_proposals, told.return_time.count, told.round.count) == (2, 0, 0)
    assert status.stats.num_wasted_nodes == num_ahead, "7 was not guessed"
