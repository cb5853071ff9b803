"""A hub may be late, silent, dead, lying or chatty: vLLM's steps go on, and no tag outlives its request for long."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs
from toy import VOCAB_SIZE, next_of
from toy_hub import DRAFT_S, FULL_S, MOODS, NUM_AT_ONCE, PREFILL_S, ToyHub, VirtualClock
from toy_vllm import MAX_MODEL_LEN, STEP_S, ToyVllm

from starspec.ids import LinkId
from starspec.integrations.vllm.draft import Draft, DraftRequest
from starspec.integrations.vllm.hub_client import HubClient
from starspec.integrations.vllm.rows import KnownRequest
from starspec.policy.deadline import RecentRounds, Round, StepTimeDeadline
from starspec.policy.length.acceptance import Acceptance
from starspec.policy.length.expected_speed import ChosenLengths, fastest_lengths
from starspec.policy.length.goodput import PROBE_STEPS, Goodput
from starspec.policy.length.round_cost import NO_WAIT, RoundCost, RoundTimes
from starspec.policy.length.snapshot import Choice, RoundSnapshot
from starspec.policy.length.weighed_round import FIRST_STEPS
from starspec.policy.liveness import DOUBT_S
from starspec.policy.patience import FIRST_PREFILL_WAIT_S, LONGEST_PAUSE_S
from starspec.speculation.budget import DraftBudget
from starspec.wire import codec
from starspec.wire.messages import PROTOCOL_VERSION, Close, Open, Ping, Verdict, Welcome

PROMPT = list(range(1, 40))
SLOW_DRAFT_S = 0.15  # a wait for which no draft makes up, where each token of a step takes 0.05 s


def prompts(num: int, seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(VOCAB_SIZE) for _ in range(rng.randrange(1, 200))] for _ in range(num)]


def tokens_sent(vllm: ToyVllm) -> int:
    told = [each for messages in vllm.sends for each in messages if isinstance(each, Open | Verdict)]
    return sum(len(each.token_ids) for each in told)


def test_a_good_hub_drafts_every_step_and_hears_each_token_once() -> None:
    vllm = ToyVllm(adaptive=False)
    request = vllm.submit(PROMPT, 41)
    vllm.run()
    assert request.num_drafted == request.num_accepted == 32
    assert tokens_sent(vllm) <= len(request.token_ids)
    assert vllm.longest_propose_s == pytest.approx(DRAFT_S)


def test_a_step_sends_one_multipart_however_many_rows_it_has() -> None:
    vllm = ToyVllm()
    requests = [vllm.submit(prompt, 30) for prompt in prompts(12)]
    vllm.run()
    assert max(vllm.num_sent) == 1
    assert all(each.num_accepted and not each.num_refused for each in requests)


def seconds_of(vllm: ToyVllm, num_requests: int) -> float:
    """What the answers to so many requests at once take."""
    started_s = vllm.clock.now
    requests = [vllm.submit(prompt, 200) for prompt in prompts(num_requests)]
    vllm.run()
    assert all(each.is_done for each in requests)
    return vllm.clock.now - started_s


@pytest.mark.parametrize("num_requests", [1, 4, 8])
def test_where_tokens_cost_nothing_lengths_that_adapt_are_as_fast_as_the_longest(num_requests: int) -> None:
    longest_s = seconds_of(ToyVllm(adaptive=False), num_requests)
    assert seconds_of(ToyVllm(), num_requests) <= 1.1 * longest_s


@pytest.mark.parametrize("num_requests", [1, 4, 8])
def test_where_a_step_costs_what_its_tokens_do_drafts_are_left_to_probes(
    num_requests: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even though each is accepted: the wait for it is lost. A server without a hub is hardly faster."""
    monkeypatch.setattr("toy_hub.DRAFT_S", 0.2)
    alone = ToyVllm(token_s=0.2, fallback="none")
    alone.hub.kill()
    alone_s = seconds_of(alone, num_requests)
    assert seconds_of(ToyVllm(token_s=0.2), num_requests) <= 1.05 * alone_s
    assert seconds_of(ToyVllm(token_s=0.2, adaptive=False), num_requests) > seconds_of(
        ToyVllm(token_s=0.2), num_requests
    )


def rests(logs: Sequence[Any]) -> list[float]:
    return [each["seconds"] for each in logs if "takes more time than its drafts save" in each["event"]]


def test_fixed_lengths_are_kept_and_a_hub_that_does_not_pay_for_them_is_left_alone_and_told_of() -> None:
    with capture_logs() as logs:
        vllm = ToyVllm(adaptive=False, fallback="none", token_s=0.005)
        request = vllm.submit(PROMPT, 401)
        vllm.run()
        assert request.num_drafted == request.num_accepted == 320, "four of each five tokens"
        assert not rests(logs)
        vllm.hub.mood = "lying"  # each draft is verified in vain
        seconds = seconds_of(vllm, 1)
    alone = ToyVllm(token_s=0.005, fallback="none")
    alone.hub.kill()
    assert seconds < 1.2 * seconds_of(alone, 1) + 1.0
    assert rests(logs)
    assert min(rests(logs)) > 1.0


def test_a_hub_that_was_left_alone_is_tried_again_and_used_once_it_pays() -> None:
    vllm = ToyVllm(adaptive=False, fallback="none", token_s=0.005)
    vllm.hub.mood = "lying"
    in_vain = vllm.submit(PROMPT, 401)
    vllm.run()
    assert in_vain.num_drafted < 0.5 * 4 * 401
    vllm.hub.mood = "good"
    vllm.rest(60.0)
    request = vllm.submit(PROMPT, 401)
    vllm.run()
    assert request.num_accepted >= 300, "but for steps that measure plain decoding"


def test_where_drafts_do_not_pay_few_steps_wait_for_a_probe_however_requests_come_and_go() -> None:
    def seconds_of_stream(vllm: ToyVllm) -> float:
        """Four at a time, which began at different times and are replaced as they end."""
        started_s, left = vllm.clock.now, [vllm.submit(prompt, 30 + 7 * n) for n, prompt in enumerate(prompts(4))]
        for number, prompt in enumerate(prompts(20, seed=1)):
            while sum(not each.is_done for each in left) == 4:
                vllm.step()
            left.append(vllm.submit(prompt, 40 + 3 * number))
        vllm.run(2000)
        return vllm.clock.now - started_s

    alone = ToyVllm(token_s=0.05, fallback="none")
    alone.hub.kill()
    slow = ToyVllm(token_s=0.05, deadline_ms=100)
    slow.hub.busy_s = 0.05
    assert seconds_of_stream(slow) <= 1.08 * seconds_of_stream(alone)


def test_where_drafts_do_not_pay_the_hub_prefills_one_prompt_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the row which probes: what it achieves is what others are thought to."""
    monkeypatch.setattr("toy_hub.DRAFT_S", SLOW_DRAFT_S)
    vllm = ToyVllm(token_s=0.05)
    counts = []
    for seed in range(12):
        before = vllm.hub.num_opens
        for prompt in prompts(4, seed):
            vllm.submit(prompt, 70)
        for _ in range(50):
            vllm.step()
        counts.append(vllm.hub.num_opens - before)
        vllm.run()
    assert set(counts[1:]) == {0, 1}, "a probe waits until it is cheap enough"


def seconds_and_opens(vllm: ToyVllm, num_tokens: int, num_prompt_tokens: int = 100) -> tuple[float, int]:
    """What four answers of so many tokens take, and of how many texts the hub is told."""
    vllm.drafter.maintain()  # the hub is found beside the steps
    started_s, before = vllm.clock.now, vllm.hub.num_opens
    for n in range(4):
        vllm.submit([(31 * n + each) % VOCAB_SIZE for each in range(num_prompt_tokens)], num_tokens)
    vllm.run()
    took_s = vllm.clock.now - started_s
    vllm.rest(3.0)
    return took_s, vllm.hub.num_opens - before


def test_on_shared_cores_a_hub_prefills_only_what_drafts_make_good() -> None:
    """Prompts that take seconds to prefill, and answers that are decoded in less."""
    alone = ToyVllm(fallback="none")
    alone.hub.kill()
    alone_s, _ = seconds_and_opens(alone, 30)
    shared = ToyVllm()
    shared.hub.prefill_token_s = 0.01
    learning = [seconds_and_opens(shared, 30) for _ in range(3)]
    assert learning[0][1] == 4
    assert all(took_s <= 2.5 * alone_s for took_s, _ in learning)  # half of the cores, and one wait
    known = [seconds_and_opens(shared, 30) for _ in range(6)]
    assert all(num_opens <= 1 for _, num_opens in known), "no more than a probe"
    assert sum(num_opens for _, num_opens in known) <= 2
    assert min(took_s for took_s, _ in known) == pytest.approx(alone_s)
    shared.hub.prefill_token_s = 0.0001
    found = [seconds_and_opens(shared, 300)[1] for _ in range(40)]  # a probe that seems to take 1 s is made seldom
    assert found[-1] == 4, "prefill became cheap, and answers long"


def test_a_hub_that_was_lost_and_comes_back_to_shared_cores_prefills_no_more_than_before() -> None:
    alone = ToyVllm(fallback="none")
    alone.hub.kill()
    alone_s, _ = seconds_and_opens(alone, 30)
    shared = ToyVllm()
    shared.hub.prefill_token_s = 0.01
    learning = [seconds_and_opens(shared, 30) for _ in range(6)]
    assert learning[0][1] == 4
    shared.hub.kill()
    shared.drafter.maintain()
    shared.hub.revive()
    took_s, num_opens = seconds_and_opens(shared, 30)
    assert num_opens <= 1, "no more than a probe"
    assert took_s <= 1.1 * alone_s


def test_the_first_of_a_batch_wait_for_the_others_before_their_prompts_are_prefilled() -> None:
    """Requests that are sent together begin one step after another. Drafts pay for the first, but not for all."""
    vllm = ToyVllm(token_s=0.004)
    vllm.hub.prefill_token_s = 0.002

    def opens_of(*sizes: int) -> int:
        vllm.drafter.maintain()
        before = vllm.hub.num_opens
        for num in sizes:
            for n in range(num):
                vllm.submit([(31 * n + each) % VOCAB_SIZE for each in range(100)], 60)
            vllm.step()
        vllm.run()
        vllm.rest(3.0)
        return vllm.hub.num_opens - before

    assert [opens_of(1) for _ in range(4)] == [1, 1, 1, 1]
    assert max(opens_of(8) for _ in range(4)) <= 1, "no more than a probe"
    assert max(opens_of(3, 5) for _ in range(4)) <= 1
    assert opens_of(1) == 1


def test_what_a_long_prompt_costs_keeps_no_short_one_from_the_hub() -> None:
    vllm = ToyVllm(token_s=0.002)
    vllm.hub.prefill_token_s = 0.02
    for _ in range(2):
        seconds_and_opens(vllm, 100, 20)
    before = vllm.hub.num_opens
    requests = [vllm.submit([(7 * n + each) % VOCAB_SIZE for each in range(20)], 100) for n in range(3)]
    vllm.submit([each % VOCAB_SIZE for each in range(380)], 100)
    for _ in range(60):
        vllm.step()
    assert vllm.hub.num_opens - before in (1, 2, 3)
    assert any(each.num_accepted for each in requests)


@pytest.mark.parametrize("num_prompt_tokens", [20, 300])
def test_a_hub_of_its_own_is_told_every_prompt(num_prompt_tokens: int) -> None:
    """It takes as long for each, and vLLM loses nothing by it but a wait; batches are larger than those timed."""
    vllm = ToyVllm(token_s=0.003, fallback="none")
    vllm.submit(PROMPT, 20)
    vllm.run()
    vllm.hub.mood = "prefilling"
    assert [seconds_and_opens(vllm, 100, 20)[1] for _ in range(2)] == [4, 4]
    assert [seconds_and_opens(vllm, 100, num_prompt_tokens)[1] for _ in range(3)] == [4, 4, 4]


def test_a_hub_that_refuses_has_prefilled_nothing() -> None:
    vllm = ToyVllm()
    vllm.hub.prefill_token_s = 0.004
    seconds_and_opens(vllm, 100)
    known_s = vllm.drafter.costs.prefill.seconds(100)
    assert known_s > 0.1
    vllm.hub.mood, vllm.hub.prefill_token_s = "full", 0.0
    vllm.drafter.costs.add_finished(100_000)  # so that it is asked
    seconds_and_opens(vllm, 30)
    assert vllm.hub.num_opens > 4
    assert vllm.drafter.costs.prefill.seconds(100) == pytest.approx(known_s, rel=0.3)


def test_one_that_comes_back_and_was_never_prefilled_is_weighed_like_another() -> None:
    vllm = ToyVllm(fallback="none")
    vllm.hub.prefill_token_s = 0.02
    for _ in range(3):
        seconds_and_opens(vllm, 30)
    before = vllm.hub.num_opens
    vllm.submit([each % VOCAB_SIZE for each in range(300)], 60)
    for _ in range(6):
        vllm.step()
    vllm.rest(3.0)  # a long step, in which all are dropped
    for _ in range(6):
        vllm.step()
    assert vllm.hub.num_opens == before


@pytest.mark.parametrize("is_prefilled", [True, False])
def test_one_that_comes_back_is_told_again_if_the_hub_has_prefilled_it(is_prefilled: bool) -> None:
    vllm = ToyVllm(fallback="none")
    vllm.submit(PROMPT, 200)
    for _ in range(6):
        vllm.step()
    assert vllm.hub.num_opens == 1
    vllm.rest(3.0)
    if not is_prefilled:
        vllm.hub.kill()
        vllm.drafter.maintain()
        vllm.hub.revive()
        vllm.drafter.maintain()
    vllm.drafter.costs.prefill.add_request(10, waited_s=1e6)  # nothing new is worth it
    vllm.drafter.costs.prefill.add_answer(0, 10)
    for _ in range(6):
        vllm.step()
    assert vllm.hub.num_opens == (2 if is_prefilled else 1)


def test_a_hub_that_becomes_good_is_found_out_however_often_requests_begin() -> None:
    vllm = ToyVllm(fallback="none")
    vllm.hub.mood = "lying"
    for seed in range(60):
        vllm.submit(prompts(1, seed)[0], 60)
        for _ in range(5):
            vllm.step()
    assert vllm.client.lessons.acceptance.rate < 0.1
    vllm.hub.mood = "good"
    requests = []
    for seed in range(60):
        requests.append(vllm.submit(prompts(1, seed + 100)[0], 60))
        for _ in range(5):
            vllm.step()
    assert sum(each.num_accepted for each in requests) > 100


def test_what_a_hub_catches_up_with_before_a_probe_says_nothing_of_its_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was told nothing of rows that had no drafts: what it then has to prefill takes it longer than the deadline."""
    monkeypatch.setattr("toy_hub.DRAFT_S", SLOW_DRAFT_S)
    vllm = ToyVllm(token_s=0.05)
    vllm.hub.catch_up_token_s = 0.01
    requests = [vllm.submit(prompt, 300) for prompt in prompts(4)]
    vllm.run()
    verdicts = [each for messages in vllm.sends for each in messages if isinstance(each, Verdict)]
    assert max(len(each.token_ids) for each in verdicts) > NUM_AT_ONCE, "probes after a pause"
    assert sum(each.num_accepted for each in requests) > 4
    assert vllm.drafter.costs.rounds.cost.seconds_of([2]) < 2 * SLOW_DRAFT_S
    assert vllm.longest_propose_s < 2 * SLOW_DRAFT_S


def test_nobody_waits_for_a_row_that_catches_up() -> None:
    clock = VirtualClock()
    hub = ToyHub(clock)
    client = HubClient(hub, StepTimeDeadline(), VOCAB_SIZE, clock=clock)
    usual, idle = (KnownRequest(np.array(prompt, np.int32), len(prompt)) for prompt in (PROMPT, PROMPT[1:]))
    assert client.draft([DraftRequest(usual, 2), DraftRequest(idle, 2)]).keys() == {usual, idle}
    told = client.lessons.counts
    for request, num_tokens in ((usual, 1), (idle, NUM_AT_ONCE + 5)):
        for _ in range(num_tokens):
            request.extend(np.array([next_of(request.token_ids())], np.int32))
    hub.catch_up_token_s = 0.1
    asked_s = clock.now
    assert client.draft([DraftRequest(usual, 2), DraftRequest(idle, 2)]).keys() == {usual}
    assert clock.now == pytest.approx(asked_s + DRAFT_S)
    assert client.is_prefilling
    assert client.lessons.counts == told._replace(num_sent=told.num_sent + NUM_AT_ONCE + 5)
    usual.extend(np.array([next_of(usual.token_ids())], np.int32))
    assert client.draft([DraftRequest(usual, 2), DraftRequest(idle, 2)]).keys() == {usual}, "it is still at it"
    clock.now += 1.0
    assert client.draft([DraftRequest(idle, 2)]).keys() == {idle}
    assert not client.is_prefilling
    assert client.lessons.counts.num_prefilled == told.num_prefilled + NUM_AT_ONCE + 5


def test_a_draft_that_is_accepted_whole_leaves_nothing_to_catch_up_with() -> None:
    lengths = {}
    for num_tokens in (15, 32):
        vllm = ToyVllm(num_tokens=num_tokens, adaptive=False, fallback="none")
        request = vllm.submit(PROMPT, 440)
        while not request.is_done:
            vllm.step()
            assert not any(tag.is_catching_up for tag in vllm.client._tags.values())
        lengths[num_tokens] = len(vllm.num_sent)
    assert lengths[32] < 0.6 * lengths[15]


def test_a_malformed_answer_to_catching_up_is_refused_and_the_request_told_anew() -> None:
    clock = VirtualClock()
    hub = ToyHub(clock)
    client = HubClient(hub, StepTimeDeadline(), VOCAB_SIZE, clock=clock)
    request = KnownRequest(np.array(PROMPT, np.int32), len(PROMPT))
    client.draft([DraftRequest(request, 2)])
    request.extend(np.arange(NUM_AT_ONCE + 5, dtype=np.int32))
    hub.mood = "chatty"
    client.draft([DraftRequest(request, 2)])
    (tag,) = client._tags.values()
    assert tag.is_catching_up
    clock.now += STEP_S
    client.maintain()
    assert not tag.is_catching_up
    hub.mood = "good"
    assert client.draft([DraftRequest(request, 2)]).keys() == {request}
    assert hub.num_opens == 2


def test_a_text_that_is_answered_late_was_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toy_hub.PREFILL_S", FIRST_PREFILL_WAIT_S + 3.0)
    clock = VirtualClock()
    hub = ToyHub(clock)
    hub.mood = "prefilling"
    client = HubClient(hub, StepTimeDeadline(), VOCAB_SIZE, clock=clock)
    request = KnownRequest(np.array(PROMPT, np.int32), len(PROMPT))
    while not hub.num_opens or client.is_prefilling:
        client.draft([DraftRequest(request, 2)])
        clock.now += STEP_S
        assert clock.now < 200.0
    assert hub.num_opens > 1
    assert client.lessons.counts.num_sent == client.lessons.counts.num_prefilled == len(PROMPT)


def test_a_row_that_catches_up_in_vain_is_opened_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toy_hub.DRAFT_S", SLOW_DRAFT_S)
    vllm = ToyVllm(fallback="none", token_s=0.05)
    requests = [vllm.submit(prompt, 300) for prompt in prompts(4)]
    for _ in range(200):
        vllm.step()
        if any(tag.is_catching_up for tag in vllm.client._tags.values()):
            break
    vllm.hub.mail.clear()  # the answers are lost
    (before, num_accepted) = vllm.hub.num_opens, sum(each.num_accepted for each in requests)
    for _ in range(100):
        vllm.step()
    assert vllm.hub.num_opens > before
    vllm.run()
    assert sum(each.num_accepted for each in requests) > num_accepted
    vllm.rest(3.0)
    assert vllm.client.num_tags == 0


def test_a_row_that_cannot_be_told_keeps_no_other_from_probing() -> None:
    vllm = ToyVllm(token_s=0.05)
    vllm.submit([0, VOCAB_SIZE + 7, 1], 150)  # unknown to the hub, and the shortest
    vllm.submit(PROMPT, 150)
    vllm.run()
    assert vllm.hub.num_opens == 1


def test_a_new_server_times_a_step_before_a_hub_is_told_anything() -> None:
    vllm = ToyVllm(is_new=True)
    vllm.drafter.maintain()  # the hub is found
    vllm.submit(PROMPT, 40, chunk=5)  # in steps in which nothing is sampled
    opens = []
    for _ in range(12):
        vllm.step()
        opens.append(vllm.hub.num_opens)
    assert opens[:8] == [0] * 8
    assert opens[8:] == [1, 1, 1, 1]
    assert vllm.drafter.costs.steps


def test_what_a_batch_takes_without_drafts_is_looked_at_where_drafts_seem_to_pay() -> None:
    """A step of four tokens takes a third of one of eight and more, which alone is seen where every step drafts."""

    def seconds_a_token(vllm: ToyVllm) -> float:
        started_s = vllm.clock.now
        requests = [vllm.submit(prompt, 250) for prompt in prompts(4)]
        num_before = sum(len(each.token_ids) for each in requests)
        for _ in range(400):
            vllm.step()
            vllm.clock.now += 3 * STEP_S * any(each.draft for each in vllm.rows)
            if any(each.is_done for each in requests):
                break
        num_tokens = sum(len(each.token_ids) for each in requests) - num_before
        took_s = vllm.clock.now - started_s
        vllm.run()
        vllm.rest(3.0)
        return took_s / num_tokens

    alone = ToyVllm(fallback="none")
    alone.hub.kill()
    plain_s = seconds_a_token(alone)
    vllm = ToyVllm(num_tokens=2)
    seconds_a_token(vllm)  # is learnt
    assert seconds_a_token(vllm) <= 1.05 * plain_s
    assert vllm.drafter.costs.steps.is_known(4, 256)


def test_what_steps_and_rounds_cost_is_noted_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toy_hub.PREFILL_S", 2 * DRAFT_S)
    vllm = ToyVllm(token_s=0.001, is_new=True)
    vllm.hub.mood = "prefilling"  # what it is first told of a request takes it longer
    steps: set[tuple[int, float]] = set()
    note = vllm.drafter.costs.steps.add

    def note_step(size: int, seconds: float) -> None:
        steps.add((size, seconds))
        note(size, seconds)

    monkeypatch.setattr(vllm.drafter.costs.steps, "add", note_step)
    rounds: list[Round] = []
    monkeypatch.setattr(RoundTimes, "add", lambda _, round_: rounds.append(round_))
    for num_tokens in (80, 120):
        vllm.submit(PROMPT, num_tokens)
    for _ in range(8):
        vllm.step()
    vllm.submit(list(range(1, 60)), 10, chunk=16)  # prefilled in chunks, beside rows that draft
    vllm.run()
    assert {round(each.seconds, 6) for each in rounds} == {DRAFT_S}
    assert {length for each in rounds for length in each.lengths} <= {1, 2, 3, 4}
    assert {len(each.lengths) for each in rounds} == {1, 2, 3}
    assert len({size for size, _ in steps}) > 3
    assert all(seconds == pytest.approx(STEP_S + 0.001 * size) for size, seconds in steps)


def test_the_policy_is_told_what_steps_gave_and_which_of_them_did_more_than_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[tuple[int, bool]] = []

    def choose(_: Goodput, snapshot: RoundSnapshot) -> list[Choice]:
        told.append((snapshot.num_emitted, snapshot.was_interrupted))
        return [Choice(DraftBudget.chain(2))] * len(snapshot.sequences)

    monkeypatch.setattr(Goodput, "choose", choose)
    vllm = ToyVllm()
    before, num_before = told[-1][0], len(told)
    first = vllm.submit(PROMPT, 40)
    for _ in range(3):
        vllm.step()
    second = vllm.submit(PROMPT, 10)
    vllm.run()
    nums, interrupted = zip(*told[num_before:], strict=True)
    assert nums[-1] - before == len(first.token_ids) + len(second.token_ids) - 2 * len(PROMPT)
    assert [index for index, was in enumerate(interrupted) if was] == [0, 3], "where requests begin"


@pytest.mark.parametrize("p_min", [0.0, 0.6])
def test_the_hub_is_told_how_sure_it_is_to_be(p_min: float) -> None:
    vllm = ToyVllm(draft_p_min=p_min)
    vllm.submit(PROMPT, 40)
    vllm.run()
    told = [each for sent in vllm.sends for each in sent if isinstance(each, Open | Verdict) and each.num_draft_tokens]
    assert {type(each) for each in told} == {Open, Verdict}
    assert all(each.budget == DraftBudget.chain(each.num_draft_tokens, p_min) for each in told)


def test_a_draft_that_ends_early_costs_what_it_took_and_a_longer_one_after_it_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vllm = ToyVllm()
    vllm.hub.token_s, vllm.hub.sure_of = 0.01, 1
    rounds: list[Round] = []
    note = RoundTimes.add
    monkeypatch.setattr(RoundTimes, "add", lambda self, round_: (rounds.append(round_), note(self, round_)))
    request = vllm.submit(PROMPT, 60)
    for _ in range(20):
        vllm.step()
    assert max(each.num_draft_tokens for sent in vllm.sends for each in sent if isinstance(each, Open | Verdict)) == 4
    assert {tuple(each.lengths) for each in rounds} == {(1,)}
    vllm.hub.sure_of = None
    vllm.step()
    assert tuple(rounds[-1].lengths) == (4,)
    vllm.run()
    assert request.is_done
    assert not request.num_refused


def test_how_far_the_hub_drafts_is_learnt_beside_how_often_it_is_right() -> None:
    vllm = ToyVllm()
    vllm.hub.sure_of = 1
    vllm.submit(PROMPT, 100)
    for _ in range(40):
        vllm.step()
    (state,) = vllm.drafter._drafted.values()
    assert state.acceptance.rate > 0.95
    assert state.acceptance.reach < 0.05
    assert len(state.last.token_ids) == 1


def test_when_more_requests_ask_at_once_no_proposal_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    vllm = ToyVllm()
    vllm.hub.token_s = 0.001
    rounds: list[Round] = []
    add = RecentRounds.add

    def note(before: RecentRounds, round_: Round) -> None:
        told = [each.num_draft_tokens for each in vllm.sends[-1] if isinstance(each, Open | Verdict)]
        assert sorted(round_.lengths) == sorted(told)
        rounds.append(round_)
        assert round_.seconds < vllm.deadline.seconds(round_.lengths, before)
        add(before, round_)

    monkeypatch.setattr(RecentRounds, "add", note)
    first = vllm.submit(PROMPT, 200)
    for _ in range(20):
        vllm.step()
    others = [vllm.submit(prompt, 100) for prompt in prompts(7)]
    vllm.run()
    assert all(each.num_accepted and not each.num_refused for each in (first, *others))
    assert {len(each.lengths) for each in rounds} >= {1, 8}


def test_where_the_way_to_the_hub_is_what_takes_time_drafts_stay_long() -> None:
    """A draft of fewer tokens would take as long."""
    vllm = ToyVllm()
    vllm.hub.busy_s = 0.5 * STEP_S
    request = vllm.submit(PROMPT, 400)
    lengths = []
    while not request.is_done:
        vllm.step()
        lengths.append(len(request.draft))
    assert median(lengths) == 4
    assert lengths.count(0) <= 3


def test_a_new_request_begins_with_what_others_accepted() -> None:
    vllm = ToyVllm()
    vllm.hub.mood = "lying"
    vllm.submit(PROMPT, 30)
    vllm.run()
    request = vllm.submit([5, 6, 7], 30)
    vllm.step()
    assert len(request.draft) <= PROBE_STEPS < 4


def test_what_rounds_took_says_nothing_of_the_next_hub() -> None:
    vllm = ToyVllm(adaptive=False)
    vllm.submit(PROMPT, 100)
    for _ in range(5):
        vllm.step()
    assert vllm.drafter.costs.rounds.cost != NO_WAIT
    vllm.hub.kill()
    vllm.step()
    assert vllm.drafter.costs.rounds.cost == NO_WAIT
    assert not vllm.client._hub.record.rounds


def watch_weighing(monkeypatch: pytest.MonkeyPatch, note: Callable[..., None]) -> None:
    """Effects: `note` is told what lengths are weighed by."""

    def weigh(*given: Any, is_hopeful: bool) -> ChosenLengths:
        note(*given)
        return fastest_lengths(*given, is_hopeful=is_hopeful)

    monkeypatch.setattr("starspec.policy.length.weighed_round.fastest_lengths", weigh)


def test_what_rounds_took_says_nothing_of_a_hub_that_was_found_while_nothing_was_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weighed: list[RoundCost] = []

    watch_weighing(monkeypatch, lambda *given: weighed.append(given[2]))
    vllm = ToyVllm()
    vllm.submit(PROMPT, 30)
    vllm.run()
    assert vllm.client._hub.record.rounds
    vllm.hub.kill()
    vllm.drafter.maintain()
    vllm.hub.revive()
    vllm.drafter.maintain()
    assert vllm.drafter._hub.num_found == 2
    assert not vllm.client._hub.record.rounds
    assert weighed[-1] != NO_WAIT
    vllm.submit(PROMPT, 30)
    vllm.step()
    assert weighed[-1] == NO_WAIT


@pytest.mark.parametrize("mood", ["empty", "full", "reopening"])
def test_an_answer_for_which_nothing_was_drafted_tells_not_how_long_drafting_takes(mood: str) -> None:
    vllm = ToyVllm(adaptive=False)
    vllm.submit(PROMPT, 60)
    vllm.step()
    vllm.client._hub.record.rounds = RecentRounds()
    vllm.hub.mood = mood
    for _ in range(5):
        vllm.step()
    assert not vllm.client._hub.record.rounds


def test_a_step_that_waits_long_for_its_hub_takes_no_running_request_for_gone() -> None:
    vllm = ToyVllm(adaptive=False, fallback="none", deadline_ms=5000)
    request = vllm.submit(PROMPT, 40)
    vllm.step()
    vllm.hub.busy_s = 4.0
    vllm.run()
    assert request.is_done
    assert vllm.hub.num_opens == 1


def test_of_a_hub_with_a_lower_limit_no_more_is_weighed(monkeypatch: pytest.MonkeyPatch) -> None:
    vllm = ToyVllm(num_tokens=8)
    rounds: list[Round] = []
    monkeypatch.setattr(RoundTimes, "add", lambda _, round_: rounds.append(round_))
    weighed: set[int] = set()

    watch_weighing(monkeypatch, lambda *given: weighed.update(given[0].limits))
    vllm.hub.welcome = Welcome(PROTOCOL_VERSION, LinkId("s"), "tcp://h:1", 4096, 2, 60.0)
    request = vllm.submit(PROMPT, 60)
    vllm.step()
    weighed.clear()  # of the step in which the hub was found
    for _ in range(19):
        vllm.step()
    assert len(request.draft) == 2
    lengths = {length for each in rounds for length in each.lengths}
    assert lengths
    assert lengths <= {1, 2}
    assert max(weighed) == 2


def test_a_draft_of_which_nothing_was_verified_counts_for_nothing() -> None:
    vllm = ToyVllm(adaptive=False)
    request = vllm.submit(PROMPT, 100)
    for _ in range(3):
        vllm.step()
    (before,) = (each.acceptance.rate for each in vllm.drafter._drafted.values())
    assert request.draft
    vllm.preempt(request)
    vllm.waiting.remove(request)
    vllm.submit([5, 6, 7], 100)
    vllm.step()
    vllm.waiting.append(request)
    vllm.step()
    assert all(each.acceptance.rate >= before for each in vllm.drafter._drafted.values())


def test_a_hub_that_was_slow_for_a_while_drafts_as_much_as_before() -> None:
    """What its rounds took is forgotten, or nobody would find out: what does not pay is not asked for."""
    vllm = ToyVllm(deadline_ms=500)

    def usual_length() -> float:
        """At the end of an answer."""
        request = vllm.submit(PROMPT, 300)
        lengths = []
        while not request.is_done:
            vllm.step()
            lengths.append(len(request.draft))
        return median(lengths[-40:])

    assert usual_length() == 4
    vllm.hub.busy_s = 0.3
    assert usual_length() == 0
    vllm.hub.busy_s = 0.0
    for _ in range(8):  # a probe of a round as slow as that may be made once in 43 s
        usual_length()
    assert usual_length() == 4


@pytest.mark.parametrize("mood", MOODS)
def test_a_bad_hub_costs_a_step_at_most_one_deadline(mood: str) -> None:
    vllm = ToyVllm(deadline_ms=7)
    requests = [vllm.submit(prompt, 60) for prompt in prompts(5)]
    for _ in range(5):
        vllm.step()
    vllm.hub.mood = mood
    vllm.run()
    assert vllm.longest_propose_s <= 0.0075
    for each in requests:
        assert each.is_done
    vllm.hub.mood = "good"
    vllm.rest(2.0)
    assert not vllm.hub.sessions
    assert vllm.client.num_tags == 0


def test_a_token_beyond_the_vocabulary_costs_no_other_request_its_drafts() -> None:
    vllm = ToyVllm()
    strange, sound = vllm.submit([*PROMPT, VOCAB_SIZE], 30), vllm.submit(PROMPT, 30)
    vllm.run()
    assert strange.is_done
    assert not strange.num_drafted
    assert sound.num_accepted > 20
    told = [each for messages in vllm.sends for each in messages if isinstance(each, Open | Verdict)]
    assert max(max(each.token_ids, default=0) for each in told) < VOCAB_SIZE


def test_a_request_too_long_for_a_message_is_said_so_once_and_not_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "MAX_FRAME_BYTES", 400)
    vllm = ToyVllm()
    long, short = vllm.submit(PROMPT * 10, 30), vllm.submit(PROMPT, 30)
    with capture_logs() as logs:
        vllm.run()
    assert [each["num_tokens"] for each in logs] == [len(PROMPT * 10) + 2]  # a step of two rows was measured before
    assert not long.num_drafted
    assert short.num_accepted > 20
    assert vllm.hub.num_opens == 1


def test_a_hub_whose_proposals_come_just_too_late_is_used_a_step_later() -> None:
    vllm = ToyVllm(deadline_ms=0.75e3 * DRAFT_S, fallback="none")
    right, other = vllm.submit(PROMPT, 60), vllm.submit([5, *PROMPT], 60)
    vllm.run()
    assert right.num_accepted > 30
    assert not right.num_refused  # what is left of a proposal is right as well
    assert other.num_accepted > 30
    assert vllm.hub.num_opens == 2


def test_what_comes_late_and_is_not_what_was_committed_meanwhile_is_not_drafted() -> None:
    vllm = ToyVllm(deadline_ms=0.75e3 * DRAFT_S, fallback="none")
    vllm.hub.mood = "lying"
    request = vllm.submit(PROMPT, 60)
    vllm.run()
    assert not request.num_drafted
    assert request.is_done


def test_a_hub_whose_proposals_come_far_too_late_is_not_taken_for_gone() -> None:
    """It is asked ever more rarely, and never told a whole request again."""
    vllm = ToyVllm(deadline_ms=0.75e3 * DRAFT_S, fallback="none")
    vllm.hub.busy_s = 1.0
    request = vllm.submit(PROMPT, 60)
    vllm.run()
    assert request.is_done
    assert not request.num_accepted
    assert vllm.client.is_here
    assert vllm.hub.num_opens == 1
    assert sum(map(bool, vllm.num_sent)) < 20  # of 60 steps


def test_a_busy_hub_is_kept_while_it_answers_pings_and_one_that_hangs_is_not() -> None:
    vllm = ToyVllm(fallback="none")
    vllm.submit(PROMPT, 440)
    for _ in range(4):
        vllm.step()
    vllm.hub.busy_s = 3.0
    for _ in range(20):
        vllm.step()
    assert vllm.client.is_here
    assert vllm.hub.num_opens == 1
    vllm.hub.busy_s = 0.0
    vllm.rest(LONGEST_PAUSE_S)
    for _ in range(20):
        vllm.step()
    assert vllm.rows[0].draft
    vllm.hub.mood = "frozen"
    vllm.step()
    hangs_at_s = vllm.clock.now + DOUBT_S
    while vllm.clock.now + STEP_S < hangs_at_s:
        assert vllm.client.is_here
        vllm.step()
    vllm.step()
    assert not vllm.client.is_here


def test_while_a_prompt_is_prefilled_the_other_requests_seldom_wait_and_join_again() -> None:
    vllm = ToyVllm(fallback="none")
    old = vllm.submit(PROMPT, 440)
    for _ in range(4):
        vllm.step()
    vllm.hub.mood, vllm.hub.busy_s = "prefilling", PREFILL_S
    new = vllm.submit([9, *PROMPT], 440)
    before_s, num_before, sent_before = vllm.clock.now, len(vllm.num_sent), sum(vllm.num_sent)
    for _ in range(10):
        vllm.step()
    waited_s = vllm.clock.now - before_s - STEP_S * (len(vllm.num_sent) - num_before)
    assert waited_s <= 3 * vllm.longest_propose_s  # for the Open and the other's verdict, and for the latter once more,
    assert sum(vllm.num_sent) <= sent_before + 5  # when what it asked for cannot be of use any more
    vllm.hub.mood, vllm.hub.busy_s = "good", 0.0
    while vllm.clock.now < before_s + 2 * PREFILL_S:
        vllm.step()
    for _ in range(6):
        vllm.step()
        assert old.draft
        assert new.draft
    assert vllm.hub.num_opens == 2
    assert not old.num_refused


def test_a_lost_open_silences_its_request_for_a_while_and_not_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toy_vllm.STEP_S", 6 * STEP_S)  # a slow machine
    vllm = ToyVllm()
    vllm.hub.num_opens_lost = 2
    request = vllm.submit(PROMPT, 440)
    started_s = vllm.clock.now
    while not request.num_accepted:
        vllm.step()
        assert not request.is_done
    # the second has twice as long
    assert 3 * FIRST_PREFILL_WAIT_S <= vllm.clock.now - started_s <= 3 * FIRST_PREFILL_WAIT_S + 1.0
    assert vllm.hub.num_opens == 3
    vllm.run()
    assert not request.num_refused


def test_a_malformed_answer_to_an_open_costs_that_step_and_no_more() -> None:
    vllm = ToyVllm()
    vllm.hub.mood = "chatty"
    request = vllm.submit(PROMPT, 60)
    vllm.step()
    assert not request.draft
    vllm.hub.mood = "good"
    vllm.run()
    assert request.num_accepted > 40
    assert vllm.hub.num_opens == 2


def test_a_hub_whose_answers_to_opens_are_all_malformed_is_told_whole_requests_ever_more_rarely() -> None:
    vllm = ToyVllm()
    vllm.hub.mood = "chatty"
    vllm.submit(PROMPT, 400)
    vllm.run()
    assert vllm.hub.num_opens <= 3 + 5  # pauses of 16, 32, 64, 128 and 256 steps


@pytest.mark.parametrize("num_rows", [1, 4, 8])
def test_a_hub_too_slow_for_everybody_costs_little_however_many_they_are(num_rows: int) -> None:
    vllm = ToyVllm(deadline_ms=0.75e3 * DRAFT_S, fallback="none")
    vllm.hub.busy_s = 1.0
    for index in range(num_rows):
        vllm.submit([index, *PROMPT], 400)
        vllm.step()  # so that their rounds with the hub are not in step
    before_s, num_before = vllm.clock.now, len(vllm.num_sent)
    vllm.run()
    waited_s = vllm.clock.now - before_s - STEP_S * (len(vllm.num_sent) - num_before)
    assert waited_s <= 16 * 0.75 * DRAFT_S
    assert vllm.client.is_here


def test_ngrams_draft_while_a_hub_too_slow_for_everybody_is_left_alone() -> None:
    vllm = ToyVllm(deadline_ms=0.75e3 * DRAFT_S, prompt_lookup_min=1)
    request = vllm.submit(PROMPT * 3, 60)
    vllm.step()
    vllm.step()  # by now its prompt is prefilled
    vllm.hub.busy_s = 1.0
    vllm.run()
    assert request.num_drafted > 10
    assert vllm.hub.num_opens == 1


@pytest.mark.parametrize("busy_s", [0.2, 0.5, 0.9])
def test_ngrams_draft_beside_a_hub_that_is_always_far_behind(busy_s: float) -> None:
    """Each answer comes when more was committed than a round brings: that it was late counts all the same."""
    vllm = ToyVllm(deadline_ms=1e3 * 0.75 * DRAFT_S, prompt_lookup_min=1)
    request = vllm.submit(PROMPT * 2, 420)
    for _ in range(3):
        vllm.step()
    vllm.hub.busy_s, num_ngrams = busy_s, 0
    while not request.is_done:
        vllm.step()
        num_ngrams += bool(request.draft) and not vllm.client.is_serving
    assert num_ngrams > 20
    assert request.num_drafted > 200


def test_a_new_hub_is_used_at_once_however_late_the_one_before_it_was() -> None:
    vllm = ToyVllm(fallback="none", deadline_ms=2e3 * DRAFT_S)
    request = vllm.submit(PROMPT, 400)
    for _ in range(3):
        vllm.step()
    vllm.hub.mood = "late"
    while vllm.client.is_serving:
        vllm.step()
    vllm.hub.kill()
    vllm.hub.revive()
    vllm.rest(0.2)
    before = request.num_accepted
    for _ in range(4):
        vllm.step()
    assert request.num_accepted > before


def test_a_hub_that_is_quick_again_is_used_again() -> None:
    vllm = ToyVllm(fallback="none")
    request = vllm.submit(PROMPT, 400)
    for _ in range(3):
        vllm.step()
    vllm.hub.mood = "late"
    for _ in range(60):
        vllm.step()
    vllm.hub.mood, before = "good", request.num_accepted
    vllm.run()
    assert request.num_accepted > before + 200
    assert not request.num_refused


def test_the_learnt_deadline_ends_a_wait_within_two_steps() -> None:
    vllm = ToyVllm()
    vllm.submit(PROMPT, 150)
    for _ in range(6):
        vllm.step()
    vllm.longest_propose_s = 0.0
    vllm.hub.mood = "late"
    vllm.run()
    assert vllm.longest_propose_s <= 2 * STEP_S + 1e-9


def test_a_long_prompt_opens_no_tag_before_it_is_prefilled() -> None:
    vllm = ToyVllm()
    request = vllm.submit(PROMPT * 4, 10, chunk=30)
    for _ in range(len(request.token_ids) // 30):
        vllm.step()
        assert not vllm.sends
    vllm.run()
    assert request.num_accepted
    assert vllm.hub.num_opens == 1


def test_requests_that_move_are_preempted_and_resumed_keep_their_tags() -> None:
    vllm = ToyVllm()
    requests = [vllm.submit(prompt, 40) for prompt in prompts(5)]
    for _ in range(3):
        vllm.step()
    vllm.preempt(requests[0])
    vllm.step()
    vllm.run()
    assert all(each.num_accepted and not each.num_refused for each in requests)
    assert vllm.hub.num_opens == 5


def test_a_request_that_stays_away_is_closed_and_opened_anew() -> None:
    vllm = ToyVllm()
    request = vllm.submit(PROMPT, 40)
    for _ in range(3):
        vllm.step()
    vllm.preempt(request)
    vllm.rest(2.0)
    assert not vllm.hub.sessions
    vllm.run()
    assert vllm.hub.num_opens == 2
    assert request.num_accepted
    assert not request.num_refused


def test_another_request_of_the_same_length_in_the_same_row_is_another_request() -> None:
    vllm = ToyVllm()
    first = vllm.submit(PROMPT, 2)
    vllm.run()
    second = vllm.submit([7, *first.token_ids[1:-1]], 20)  # its first token is the first's last, as far as lengths tell
    vllm.run()
    assert second.num_accepted
    assert not second.num_refused
    assert vllm.hub.num_opens == 2


def test_aborts_leave_no_tag_two_seconds_later() -> None:
    vllm = ToyVllm()
    requests = [vllm.submit(prompt, 200) for prompt in prompts(8)]
    for _ in range(4):
        vllm.step()
    for request in requests:
        vllm.abort(request)
    assert len(vllm.hub.sessions) == 8
    vllm.rest(1.9)
    assert not vllm.hub.sessions


def test_ngrams_draft_while_there_is_no_hub_and_the_hub_again_when_it_is_back() -> None:
    vllm = ToyVllm(prompt_lookup_min=1)
    vllm.hub.kill()
    request = vllm.submit(PROMPT * 3, 60)
    for _ in range(3):
        vllm.step()
    assert request.num_drafted > 0
    assert vllm.longest_propose_s == 0.0
    assert not any(vllm.num_sent)
    vllm.hub.revive()
    vllm.rest(0.2)
    vllm.step()  # the last one that n-grams drafted for
    before = request.num_refused
    vllm.run()
    assert vllm.hub.num_opens == 1
    assert request.num_accepted > 0
    assert request.num_refused == before


def test_what_ngrams_achieved_says_nothing_of_a_hub() -> None:
    vllm = ToyVllm(token_s=0.006, prompt_lookup_min=1)
    vllm.hub.kill()
    request = vllm.submit(PROMPT * 3, 200)
    for _ in range(60):
        vllm.step()
    assert not request.draft  # by now they are hardly asked
    vllm.hub.revive()
    vllm.rest(0.2)
    vllm.step()
    (asked,) = [each for messages in vllm.sends for each in messages if isinstance(each, Open)]
    assert asked.num_draft_tokens == FIRST_STEPS


def test_ngram_indexes_share_what_a_step_takes_in_and_draft_when_they_have_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("starspec.integrations.vllm.draft.MAX_INDEXED", 100)
    vllm = ToyVllm(prompt_lookup_min=1)
    vllm.hub.kill()
    every = list(range(VOCAB_SIZE)) * 2  # so that whatever comes next has been there
    first, second = vllm.submit(every, 30), vllm.submit(every[::-1], 30)
    drafted: list[tuple[bool, bool]] = []
    for _ in range(4):
        vllm.step()
        drafted.append((bool(first.draft), bool(second.draft)))
    assert drafted[1:] == [(False, False), (True, False), (True, True)]  # a step of two rows was measured before


@pytest.mark.parametrize("is_hub_here", [True, False])
def test_nothing_is_kept_of_requests_that_are_gone(is_hub_here: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    vllm = ToyVllm()
    if not is_hub_here:
        vllm.hub.kill()  # n-grams draft
    known: list[weakref.ref[KnownRequest]] = []
    draft = vllm.client.draft

    def watched(wanted: Sequence[DraftRequest]) -> dict[KnownRequest, Draft] | None:
        known.extend(weakref.ref(each.request) for each in wanted)
        return draft(wanted)

    monkeypatch.setattr(vllm.client, "draft", watched)
    for prompt in prompts(5):
        vllm.submit(prompt, 20)
    vllm.run()
    vllm.rest(2.0)
    gc.collect()
    assert known
    assert all(each() is None for each in known)


def test_without_a_fallback_a_lost_hub_means_plain_steps() -> None:
    vllm = ToyVllm(fallback="none")
    vllm.hub.kill()
    request = vllm.submit(PROMPT * 3, 20)
    vllm.run()
    assert request.num_drafted == 0


def test_a_hub_that_is_replaced_is_told_everything_anew() -> None:
    vllm = ToyVllm()
    requests = [vllm.submit(prompt, 60) for prompt in prompts(3)]
    for _ in range(4):
        vllm.step()
    vllm.hub.kill()
    vllm.hub.revive()  # within a step: only the number of sessions tells
    vllm.run()
    assert vllm.hub.num_opens == 3 * 2
    assert all(each.num_accepted > 0 for each in requests)


def test_a_full_hub_is_not_asked_again_before_it_wants_to_be() -> None:
    vllm = ToyVllm()
    vllm.hub.mood = "full"
    vllm.submit(PROMPT, 400)
    started_s = vllm.clock.now
    while vllm.clock.now < started_s + 3.5 * FULL_S:
        vllm.step()
    assert vllm.hub.num_opens <= 4


def test_a_hub_without_a_word_for_a_request_is_asked_ever_more_rarely_and_again_when_it_has() -> None:
    """Its text may be longer than the draft's context, or its target's share of drafts used up."""
    vllm = ToyVllm()
    vllm.hub.mood = "empty"
    request = vllm.submit(PROMPT, 300)
    for _ in range(200):
        vllm.step()
    asked = [each for messages in vllm.sends for each in messages if isinstance(each, Open | Verdict)]
    assert len(asked) < 20
    vllm.hub.mood = "good"
    vllm.run()
    assert request.num_accepted > 20


def test_an_empty_proposal_now_and_then_silences_nobody() -> None:
    vllm = ToyVllm()
    request = vllm.submit(PROMPT, 200)
    for index in range(120):
        vllm.hub.mood = "empty" if index % 3 else "good"
        vllm.step()
    assert request.num_accepted >= 40  # all that came


def test_a_request_that_accepts_nothing_is_asked_about_ever_less() -> None:
    vllm = ToyVllm()
    vllm.hub.mood = "lying"
    request = vllm.submit(PROMPT, 200)
    vllm.run()
    assert request.num_drafted < 90  # of 800
    asked = [each for messages in vllm.sends for each in messages if isinstance(each, Verdict)]
    assert asked[-1].num_draft_tokens == 2  # a probe


def test_a_hub_is_asked_for_no_more_than_it_said_that_it_drafts() -> None:
    vllm = ToyVllm()
    vllm.hub.welcome = Welcome(PROTOCOL_VERSION, LinkId("s"), 1, "toy", 2, 10.0)
    request = vllm.submit(PROMPT, 20)
    vllm.run()
    asked = [each for messages in vllm.sends for each in messages if isinstance(each, Open | Verdict)]
    assert {each.num_draft_tokens for each in asked} == {2}
    assert request.num_accepted > 10


def test_no_draft_goes_beyond_the_model_length() -> None:
    vllm = ToyVllm(adaptive=False)
    request = vllm.submit([1] * (MAX_MODEL_LEN - 5), 5)
    vllm.run()
    asked = [each for messages in vllm.sends for each in messages if isinstance(each, Open | Verdict)]
    assert [each.num_draft_tokens for each in asked] == [3]  # behind the first token, and the last is vLLM's own
    assert request.num_accepted == 3


def test_a_tree_is_no_draft_for_a_server_that_verifies_chains() -> None:
    vllm = ToyVllm(fallback="none")
    vllm.hub.mood = "bushy"
    request = vllm.submit(PROMPT, 30)
    vllm.run()
    assert request.is_done
    assert vllm.hub.num_opens == 1
    assert not request.num_drafted


@pytest.mark.parametrize(("num_wanted", "num_left"), [(2, 2), (4, 3)])
def test_what_is_left_of_a_late_proposal_is_cut_to_what_the_step_wants(num_wanted: int, num_left: int) -> None:
    """And counts as all that was asked for: the hub did not end it in doubt."""
    clock = VirtualClock()
    client = HubClient(ToyHub(clock), StepTimeDeadline(0.75 * DRAFT_S), VOCAB_SIZE, clock=clock)
    request = KnownRequest(np.array(PROMPT, np.int32), len(PROMPT))
    assert client.draft([DraftRequest(request, 4)]) == {}
    clock.now += STEP_S
    path = list(PROMPT)
    for _ in range(4):
        path.append(next_of(path))
    right = path[len(PROMPT) :]
    request.extend(np.array(right[:1], np.int32))
    assert client.draft([DraftRequest(request, num_wanted)]) == {request: Draft(right[1 : 1 + num_left], num_left)}


def test_a_fixed_length_stays() -> None:
    vllm = ToyVllm(adaptive=False)
    vllm.hub.mood = "lying"
    request = vllm.submit(PROMPT, 50)
    vllm.run()
    assert request.num_drafted >= 4 * 45


def test_a_batch_of_random_traffic_ends_with_every_tag_closed() -> None:
    rng = random.Random(3)
    vllm = ToyVllm()
    for _ in range(150):
        if rng.random() < 0.2:
            vllm.submit(prompts(1, rng.randrange(99))[0], rng.randrange(1, 60), chunk=rng.choice([50, 10_000]))
        vllm.step()
        victim = rng.choice(vllm.rows) if vllm.rows else None
        if victim is not None and not victim.is_done and rng.random() < 0.1:
            (vllm.abort if rng.random() < 0.5 else vllm.preempt)(victim)
        if rng.random() < 0.05:
            vllm.hub.mood = rng.choice([each for each in [*MOODS, "good"] if each != "frozen"])  # it loses Close
    vllm.hub.mood = "good"
    vllm.run()
    vllm.rest(3.0)
    assert not vllm.hub.sessions
    opened = {each.tag for messages in vllm.sends for each in messages if isinstance(each, Open)}
    closed = {each.tag for messages in vllm.sends for each in messages if isinstance(each, Close)}
    assert opened == closed
    assert all(isinstance(each, Open | Verdict | Close | Ping) for messages in vllm.sends for each in messages)


def test_a_token_function_of_all_before_makes_wrong_tags_show() -> None:
    assert next_of([1, 2, 3]) != next_of([2, 2, 3])


def test_of_a_hub_that_is_lost_only_what_prefill_cost_stays_known() -> None:
    vllm = ToyVllm()
    vllm.submit(PROMPT, 60)
    for _ in range(20):
        vllm.step()
    lessons, step_cost = vllm.client.lessons, vllm.drafter.costs.steps
    prefill_s = vllm.drafter.costs.prefill.seconds(100)
    assert lessons.counts.num_sent
    assert prefill_s
    assert lessons.acceptance.rate != Acceptance().rate
    vllm.hub.kill()
    vllm.drafter.maintain()
    costs = vllm.drafter.costs
    assert vllm.client.lessons is not lessons
    assert (costs.rounds.cost, costs.prefill.seconds(100)) == (NO_WAIT, prefill_s)
    assert vllm.client.lessons.acceptance.rate == Acceptance().rate
    assert costs.steps is step_cost, "what the server's own steps take is no lesson about a hub"
