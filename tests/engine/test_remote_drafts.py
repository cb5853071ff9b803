"""A hub may be late, silent, dead, lying or chatty: the target's tokens stay its own, and it never waits for long."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from late import LANDINGS
from structlog.testing import capture_logs
from torch import Tensor
from toy import VOCAB_SIZE, WordTokenizer, next_of
from toy_hub import DRAFT_S, FULL_S, MOODS, STEP_S, SlowRunner, Star, ToyHub

from starspec.config import LengthConfig, Policy, SpeculativeConfig, TargetConfig
from starspec.engine.engine import TargetEngine
from starspec.engine.remote_drafts import RemoteDrafts
from starspec.errors import PeerProtocolError
from starspec.grammars.matcher import FittedDraft
from starspec.ids import LinkId, RequestId, Tag
from starspec.policy.deadline import FIRST_ROUND_WAIT_S, MAX_GAP_S
from starspec.policy.length.fixed import FixedLength, InSmallBatches
from starspec.policy.length.make import make_policy
from starspec.policy.length.snapshot import Choice, RoundSnapshot
from starspec.policy.liveness import MIN_PAUSE_S
from starspec.policy.patience import FIRST_PREFILL_WAIT_S
from starspec.policy.same_length import SameLengthPool
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.budget import DraftBudget
from starspec.speculation.tree import EMPTY_TREE, DraftTree
from starspec.windows.local import LocalVerifier
from starspec.wire.messages import (
    PROTOCOL_VERSION,
    Drawn,
    Fault,
    HubToTarget,
    Open,
    Pong,
    Proposal,
    Reopen,
    RequestSpec,
    Welcome,
)
from starspec.wire.session import Role, TagSession

PROMPT = list(range(1, 12))


def test_a_good_hub_drafts_every_round() -> None:
    star = Star()
    star.submit("a", PROMPT, 21)
    star.finish()
    assert star.stats.acceptance.num_accepted_tokens == 16
    assert star.stats.acceptance.block_efficiency == pytest.approx(21 / 5)
    assert star.stats.t_c.value == pytest.approx(DRAFT_S)  # the first one, which came during the prefill, is no sample
    assert star.stats.num_reconnects == 0


class Forcing:
    """A grammar that allows everything, and says that it forces the next tokens, of which `lies` are others."""

    failure, has_ended = "", False

    def __init__(self, num: int, lies: int = 0, *, is_fitting: bool = True) -> None:
        self.path = list(PROMPT)
        self.num, self.lies, self.is_fitting = num, lies, is_fitting

    def allowed(self, path: Sequence[int]) -> Tensor:
        return torch.ones(VOCAB_SIZE, dtype=torch.bool)

    def forced(self, most: int) -> list[int]:
        path = list(self.path)
        for number in range(min(most, self.num)):
            path.append((next_of(path) + (number >= self.num - self.lies)) % VOCAB_SIZE)
        return path[len(self.path) :]

    def fit(self, tree: DraftTree, max_forced_depth: int, before: Sequence[int]) -> FittedDraft:
        if not self.is_fitting:
            return FittedDraft(EMPTY_TREE, 0)
        return FittedDraft(tree.behind(before), tree.num_draft_tokens, len(before))

    def commit(self, token_id: int) -> None:
        self.path.append(token_id)

    def take_spent_s(self) -> float:
        return 0.0


@pytest.mark.parametrize("is_hub_here", [True, False], ids=["hub", "n-grams"])
def test_drafts_go_on_behind_what_a_grammar_forces(is_hub_here: bool) -> None:
    star = Star(True)
    star.hub.is_connected = is_hub_here
    star.submit("a", PROMPT, 21, Forcing(2))
    star.finish()
    assert star.stats.grammars.num_forced_tokens >= 6
    if is_hub_here:
        assert star.stats.acceptance.block_efficiency == pytest.approx(2 + 4 + 1)
        assert star.hub.num_opens == 1


def test_a_hub_that_was_told_what_is_not_forced_after_all_begins_anew() -> None:
    star = Star()
    star.submit("a", PROMPT, 21, Forcing(3, lies=1))
    star.finish()
    assert star.stats.acceptance.block_efficiency == pytest.approx(3)
    assert star.hub.num_opens == 7


def test_what_is_forced_but_not_drafted_is_not_told_twice() -> None:
    star = Star()
    star.submit("a", PROMPT, 21, Forcing(3, is_fitting=False))
    star.finish()
    assert star.stats.acceptance.block_efficiency == 1
    assert star.hub.num_opens == 1


class WatchedLengths:
    """A length policy that notes what it is asked."""

    def __init__(self) -> None:
        self.policy = FixedLength(DraftBudget.chain(4))
        self.asked: list[tuple[int, int]] = []  # (sequences asked about together, sequences of their round)

    def choose(self, snapshot: RoundSnapshot) -> list[Choice]:
        """As LengthPolicy."""
        self.asked.append((len(snapshot.sequences), snapshot.num_sequences))
        return self.policy.choose(snapshot)


@pytest.mark.parametrize("is_hub_here", [True, False], ids=["hub", "n-grams"])
def test_the_lengths_of_a_whole_round_are_chosen_together(is_hub_here: bool) -> None:
    lengths = WatchedLengths()
    star = Star(True, lengths)
    for name in "abc":
        star.submit(name, PROMPT, 60)
    for _ in range(9):
        star.step()
    if not is_hub_here:
        star.hub.kill()
        star.step()
    lengths.asked.clear()
    num_rounds = star.stats.num_rounds
    for _ in range(3):
        star.step()
    assert star.stats.num_rounds == num_rounds + 3
    assert lengths.asked == [(3, 3)] * 3


@pytest.mark.parametrize(
    ("policy", "longest"), [("goodput", 8), ("fixed", 4), ("confidence", 8), ("adaedl", 8), ("dsde", 4)]
)
def test_a_hub_that_says_nothing_of_its_drafts_serves_under_every_policy(policy: Policy, longest: int) -> None:
    star = Star(policy=make_policy(SpeculativeConfig(length=LengthConfig(policy=policy))))
    star.submit("a", PROMPT, 80)
    star.finish()
    assert star.stats.acceptance.num_accepted_tokens > 40
    assert len(star.stats.lengths.num_by_length) == 1 + longest, "dsde never learns, and keeps half of its limit"


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
    assert star.drafts.hub_state == "connected"
    for _ in range(30):
        star.step()
    assert not star.drafts.is_connected
    assert star.drafts.hub_state == "lost"
    star.clock.now += 7.0
    assert 7.0 <= star.drafts.hub_state_s <= 7.0 + 31 * STEP_S
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


class LateHub(ToyHub):
    """Alive, and with every proposal later than any deadline, though never silent."""

    def _propose(self, session: TagSession, num: int, delay_s: float) -> None:
        super()._propose(session, num, 1.0)

    def receive(self, timeout_s: float) -> list[HubToTarget]:
        return [*super().receive(timeout_s), Pong(0)] if timeout_s else super().receive(timeout_s)


class LateStar(Star):
    def make_hub(self) -> ToyHub:
        return LateHub(self.clock)


@pytest.mark.parametrize("num_requests", [1, 4, 8])
def test_a_hub_too_slow_for_everybody_costs_little_however_many_they_are(num_requests: int) -> None:
    star = LateStar()
    for index in range(num_requests):
        star.submit(str(index), PROMPT[index % 5 :], 70)
        for _ in range(3):
            star.step()  # so that their rounds with the hub are not in step
    for _ in range(40):
        star.step()
    late_before, rounds_before = star.stats.num_late_rounds, star.stats.num_rounds
    star.finish()
    num_rounds = star.stats.num_rounds - rounds_before
    assert star.stats.num_late_rounds - late_before <= 1 + num_rounds / 16
    assert star.drafts.is_connected


def test_a_lost_open_silences_its_request_for_a_while_and_not_to_its_end() -> None:
    star = Star()
    star.submit("a", PROMPT, 12)
    star.finish()
    star.hub.num_opens_lost = 2
    star.submit("b", PROMPT[2:], 80)
    accepted_before, started_s = star.stats.acceptance.num_accepted_tokens, star.clock.now
    while star.stats.acceptance.num_accepted_tokens == accepted_before:
        star.clock.now += 0.5  # a slow machine
        star.step()
        assert star.engine.has_work
    assert (
        3 * FIRST_PREFILL_WAIT_S <= star.clock.now - started_s <= 3 * FIRST_PREFILL_WAIT_S + 3.0
    )  # the second has twice as long
    assert star.hub.num_opens == 1 + 3
    star.finish()


def test_a_malformed_answer_to_an_open_costs_that_round_and_no_more() -> None:
    star = Star()
    star.submit("a", PROMPT, 80)
    star.hub.mood = "chatty"
    while not star.stats.num_stale_messages:
        star.step()
    star.hub.mood = "good"
    star.finish()
    assert star.hub.num_opens == 2
    assert star.stats.acceptance.num_accepted_tokens > 40


def test_a_hub_whose_answers_to_opens_are_all_malformed_is_told_whole_requests_ever_more_rarely() -> None:
    star = Star()
    star.hub.mood = "chatty"
    star.submit("a", PROMPT, 80)
    star.finish()
    assert star.hub.num_opens <= 3 + 2  # pauses of 16, 32 and 64 rounds


def test_a_hub_that_wants_tags_opened_again_for_no_reason_is_told_whole_texts_ever_more_rarely() -> None:
    star = Star()
    star.hub.mood = "reopening"
    star.submit("a", PROMPT, 80)  # 0.8 s
    star.finish()
    assert star.hub.num_opens <= 1 + 1 + 2  # once again at once, then after 0.25 s and 0.5 s


def test_faults_of_a_hub_are_logged_once_in_a_second() -> None:
    star = Star()
    star.submit("a", PROMPT, 60)
    with capture_logs() as logs:
        for _ in range(60):
            star.hub.mail += [(star.clock.now, Fault("no"))] * 20
            star.step()
    assert 1 <= len([line for line in logs if line.get("reason") == "no"]) <= 2


class DistantHub(ToyHub):
    """Good, and always as late as a first wait bears."""

    def _propose(self, session: TagSession, num: int, delay_s: float) -> None:
        super()._propose(session, num, 0.9 * FIRST_ROUND_WAIT_S)


class DistantStar(Star):
    def make_hub(self) -> ToyHub:
        return DistantHub(self.clock)


def test_a_hub_that_takes_longer_than_its_drafts_save_is_not_waited_for_again_and_again() -> None:
    star = DistantStar()
    for name in "abcd":
        star.submit(name, PROMPT, 80)
    for _ in range(16):  # until all are prefilled and have waited once
        star.step()
    star.longest_gap_s, started_s, rounds_before = 0.0, star.clock.now, star.stats.num_rounds
    star.finish()
    assert star.longest_gap_s < MAX_GAP_S
    assert star.clock.now - started_s < 3 * STEP_S * (star.stats.num_rounds - rounds_before)


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


def test_rounds_do_not_wait_to_hear_again_that_there_is_no_room() -> None:
    """One tag asks for all of them; when it is let in, the others follow."""
    star = Star()
    star.hub.mood = "full"
    for name in "abcd":
        star.submit(name, PROMPT, 84)  # all that the toy holds
    for _ in range(20):
        star.step()  # until all prompts are prefilled and the first no is heard
    star.longest_gap_s, opens_before, started_s = 0.0, star.hub.num_opens, star.clock.now
    while star.clock.now < started_s + 4.5 * FULL_S:
        star.step()
    assert star.longest_gap_s == pytest.approx(STEP_S)
    assert star.hub.num_opens - opens_before == 4
    star.hub.mood = "good"
    star.finish()
    assert star.hub.num_opens - opens_before == 4 + 4
    assert star.stats.acceptance.num_accepted_tokens > 20


def test_a_hub_that_prefills_slowly_is_waited_for_once_and_joins_later() -> None:
    star = Star()
    star.submit("a", PROMPT, 12)
    star.finish()  # rounds are known now, and deadlines with them
    star.hub.mood = "prefilling"
    star.submit("b", PROMPT[2:], 70)
    late_before, accepted_before = star.stats.num_late_rounds, star.stats.acceptance.num_accepted_tokens
    star.finish()
    assert star.stats.num_late_rounds == late_before + 1
    assert star.hub.num_opens == 2
    assert star.stats.num_reconnects == 0
    assert star.stats.acceptance.num_accepted_tokens > accepted_before


def test_a_target_that_rests_opens_no_tag_on_a_new_link_and_opens_all_after_the_rest() -> None:
    star = Star()
    for name in "ab":
        star.submit(name, PROMPT, 80)
    for _ in range(5):
        star.step()
    account = star.drafts._cost.account
    assert account is not None
    account.add_time(60.0)
    with capture_logs() as logs:
        star.step()
    assert account.is_resting(star.clock.now)
    [seconds] = [entry["seconds"] for entry in logs if "it is asked for none for a while" in entry["event"]]
    assert seconds > 10.0
    for _ in range(3):  # links come and go
        star.hub.kill()
        star.step()
        star.hub.num_opens = 0
        star.hub.revive()
        star.step()
        star.step()
        assert star.drafts.is_connected
        assert star.hub.num_opens == 0
    star.clock.now += 3600.0
    before = star.stats.acceptance.num_accepted_tokens
    star.finish()
    assert star.hub.num_opens == 2
    assert star.stats.acceptance.num_accepted_tokens > before


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
    star.hub.welcome = Welcome(PROTOCOL_VERSION, LinkId("s"), 1, "toy", 2, 10.0)
    star.submit("a", PROMPT, 21)
    star.finish()
    assert star.stats.acceptance.num_draft_tokens == 14
    assert star.stats.acceptance.num_accepted_tokens == 14


@pytest.mark.parametrize("fallback", [False, True])
def test_large_batches_ask_for_no_drafts_and_drafting_comes_back_when_they_shrink(fallback: bool) -> None:
    star = Star(fallback, InSmallBatches(FixedLength(DraftBudget.chain(4)), max_sequences=2))
    star.submit("long", PROMPT, 60)
    for _ in range(6):
        star.step()
    alone = star.stats.acceptance.num_draft_tokens
    assert alone > 0
    star.submit("second", PROMPT[:4], 25)
    star.submit("third", PROMPT[:5], 25)
    while star.engine.num_running < 3 or star.engine.num_waiting:
        star.step()
    for _ in range(6):  # prompts are prefilled, and what was asked for before the batch grew is used up
        star.step()
    before = star.stats.acceptance.num_draft_tokens
    for _ in range(4):
        star.step()
    assert star.engine.num_running == 3
    assert star.stats.acceptance.num_draft_tokens == before
    star.finish()  # with the tokens of plain decoding
    assert star.stats.acceptance.num_draft_tokens > before
    assert star.drafts.num_tags == 0


def test_a_hub_prefills_no_prompt_of_a_burst_that_is_too_large_to_draft_for() -> None:
    star = Star(False, InSmallBatches(FixedLength(DraftBudget.chain(4)), max_sequences=2))
    for number in range(5):
        star.submit(f"{number}", PROMPT[: 4 + number], 10 + 5 * number)
    while star.engine.num_running > 2 or star.engine.num_waiting:
        assert star.hub.num_opens == 0
        star.step()
    star.finish()
    assert star.hub.num_opens == 2


def test_those_who_wait_for_their_turn_count_when_one_of_a_batch_ends() -> None:
    """The next round is as large as this one: of a pool, another takes the place."""
    star = Star(False, InSmallBatches(FixedLength(DraftBudget.chain(4)), max_sequences=1))
    star.engine._scheduler = SameLengthPool(batch_size=2, max_passed_over=1)
    for number in range(4):
        star.submit(f"{number}", PROMPT[: 4 + number], 10 + 5 * number)
    for _ in range(12):  # prompts are prefilled, and what was asked for before there were two is used up
        star.step()
    assert star.engine.num_running == 4
    before = star.stats.acceptance.num_draft_tokens
    while star.engine.num_running > 1:
        assert star.stats.acceptance.num_draft_tokens == before
        star.step()
    star.finish()
    assert star.stats.acceptance.num_draft_tokens > before


def test_a_request_that_does_not_speculate_opens_no_tag() -> None:
    star = Star()
    spec = RequestSpec(PROMPT, SamplingSpec(temperature=0.0), max_tokens=9, num_draft_tokens=0)
    star.engine.submit(RequestId("a"), spec)
    while star.engine.has_work:
        star.engine.step()
    assert star.hub.num_opens == 0


def test_a_tag_that_wants_no_drafts_is_not_opened_and_not_when_the_hub_comes_back() -> None:
    star = Star(False, InSmallBatches(FixedLength(DraftBudget.chain(4)), max_sequences=0))
    star.submit("a", PROMPT, 30)
    for _ in range(4):
        star.step()
    star.hub.kill()
    star.step()
    star.hub.revive()
    star.finish()
    assert star.hub.num_opens == 0


@pytest.mark.parametrize("is_prefilled", [False, True], ids=["opening", "awaited"])
def test_a_tag_that_is_to_be_opened_anew_while_another_was_declined_is_opened_later(is_prefilled: bool) -> None:
    star = Star()
    star.submit("a", PROMPT, 60)
    star.submit("b", PROMPT[:5], 60)
    if is_prefilled:
        for _ in range(4):
            star.step()
    else:
        star.hub.mood = "mute"
        star.step()
    first, second = star.drafts._hub.tags.values()
    star.hub.mood = "good"
    declined = Proposal(first.session.tag, first.session.epoch, first.session.prefix_len, [], retry_after_s=1.0)
    star.drafts._hub._take(declined)
    star.drafts._hub._take(Reopen(second.session.tag, second.session.epoch))
    assert not second.is_awaited
    assert not second.is_opening
    before, num_opens = star.stats.acceptance.num_draft_tokens, star.hub.num_opens
    star.clock.now += 2.0
    star.finish()
    assert star.hub.num_opens > num_opens
    assert star.stats.acceptance.num_draft_tokens > before
    assert star.stats.num_reconnects == 0, "it was there all the time"


def test_a_request_may_ask_for_fewer_draft_tokens() -> None:
    star = Star()
    spec = RequestSpec(PROMPT, SamplingSpec(temperature=0.0), max_tokens=9, num_draft_tokens=2)
    star.engine.submit(RequestId("a"), spec)
    outputs = []
    while star.engine.has_work:
        outputs += star.engine.step().values()
    assert [len(each.token_ids) for each in outputs] == [3, 3, 3]


def test_the_toy_hub_breaks_the_protocol_when_chatty() -> None:
    session = TagSession(Role.TARGET, Tag(1))
    session.send(Open(Tag(1), session.next_epoch, [1, 2], 2, SamplingSpec(), 2))
    with pytest.raises(PeerProtocolError):
        session.receive(Proposal(Tag(1), session.epoch, 2, [1, 2, 3]))


@pytest.mark.parametrize("boast", [1.0, 1e-300], ids=["sure", "unlikely"])
def test_a_hub_that_lies_about_probabilities_cannot_break_a_target_that_believes_them(boast: float) -> None:
    class Boaster(ToyHub):
        def _post(self, delay_s: float, message: HubToTarget) -> None:
            if isinstance(message, Proposal) and message.token_ids:
                candidate, other = message.token_ids[0], (message.token_ids[0] + 1) % VOCAB_SIZE
                sampling = ([candidate], [1.0]) if boast == 1.0 else ([candidate, other], [boast, 1.0])
                message = msgspec.structs.replace(message, drawn=[Drawn(-1, [candidate], *sampling)])
            super()._post(delay_s, message)

    star = Star()
    hub = Boaster(star.clock)
    drafts = RemoteDrafts(hub, FixedLength(DraftBudget.chain(4)), star.stats, star.clock, method="rejection")
    star.engine = TargetEngine(
        LocalVerifier(SlowRunner(star.clock)), WordTokenizer(), drafts, TargetConfig(), star.stats, star.clock
    )
    hub.mood = "lying"
    sampling = SamplingSpec(temperature=1.0, seed=2, top_k=3, repetition_penalty=1.2)
    star.engine.submit(RequestId("a"), RequestSpec(PROMPT, sampling, max_tokens=40, logprobs=1))
    outputs = []
    while star.engine.has_work:
        outputs += star.engine.step().values()
        star.engine.check_integrity()
    assert sum(len(each.token_ids) for each in outputs) == 40
    assert outputs[-1].finish_reason == "length"
    assert star.stats.acceptance.num_draft_tokens > 0


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9), st.booleans(), st.sampled_from(LANDINGS))
def test_no_interleaving_of_faults_changes_a_token(seed: int, fallback: bool, late: tuple[int, int] | None) -> None:
    chance = random.Random(seed)
    star = Star(fallback, late=late)
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
