"""The engine over stages that die, hang and are cut off, in virtual time: the same tokens, or an end that says why."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from functools import partial

import pytest
from memory_pipe import MemoryPipe
from structlog.testing import capture_logs
from target_over_stages import COUNTING, GREEDY, NUM_STAGES, PROMPT, WAIT_S, Target, begun, held
from toy_stages import VOCAB, plain, toy_stages

from starspec.config import MAX_DRAFT_TOKENS, PipeConfig
from starspec.engine.drafts import NgramDrafts
from starspec.engine.sequence import MAX_RESTARTS, TargetSequence
from starspec.errors import CapacityError
from starspec.stages.coordinator import STALLED


@pytest.mark.parametrize("kind", ["kill", "pause", "cut"])
def test_a_stage_that_is_gone_is_seen_within_two_seconds_and_a_spare_goes_on_with_the_same_tokens(kind: str) -> None:
    target = begun(Target(num_spares=2))
    pipe, gone_s = target.pipe, target.pipe.now
    {"kill": pipe.kill, "pause": pipe.pause, "cut": pipe.cut.add}[kind](1)
    while target.verifier.num_losses == 0:
        target.step()
    assert pipe.now - gone_s < 2.0
    target.run()
    assert target.got == target.expected
    assert {reason for reason, _ in target.ends.values()} == {"length"}


def test_a_stage_that_starts_again_goes_on_with_the_same_tokens_and_is_seen_at_once() -> None:
    target = begun(Target())
    target.pipe.restart(2)
    seen_s = target.pipe.now
    while target.verifier.num_losses == 0:
        target.step()
    assert target.pipe.now - seen_s < 0.5
    target.run()
    assert target.got == target.expected


def test_without_a_replacement_requests_end_in_time_and_new_ones_are_refused_until_the_stage_is_back() -> None:
    target = begun(Target())
    target.submit("waiting", [1], GREEDY, 5)
    gone_s = target.pipe.now
    target.pipe.kill(0)
    target.run(seconds=WAIT_S + 2.5)
    assert target.pipe.now - gone_s > WAIT_S
    why = "stage s0 does not answer; no other stage took its place within 10 s"
    assert target.ends == dict.fromkeys(("a", "b", "waiting"), ("abort", why))
    assert all(got == target.expected[name][: len(got)] for name, got in target.got.items())
    with pytest.raises(CapacityError, match="does not answer"):
        target.submit("early", [1], GREEDY, 5)
    target.pipe.restart(0)
    target.idle(3.0)
    target.submit("late", PROMPT, GREEDY, 5)
    target.run()
    assert target.got["late"] == target.expected["late"]
    target.idle(3.0)
    assert held(target) == [0] * NUM_STAGES


@pytest.mark.parametrize(("hidden_dtype", "is_lossless"), [("model", True), ("int8", False)])
def test_answers_say_that_hidden_states_in_eight_bits_are_not_exact(hidden_dtype: str, is_lossless: bool) -> None:
    target = Target(pipe_config=PipeConfig(stages=("tcp://127.0.0.1:1",), hidden_dtype=hidden_dtype))
    target.submit("a", PROMPT, GREEDY, 6)
    target.run()
    assert target.lossless == [is_lossless]


class MostlyTrueDrafts(NgramDrafts):
    """Drafts of greedy answers, as long as they are wanted, with a wrong token now and then."""

    def propose(self, sequence: TargetSequence, num_tokens: int) -> list[int]:
        known = [*sequence.token_ids, *sequence.ahead]
        truth = plain(NUM_STAGES, known, GREEDY, num_tokens)
        return [(each + (at % 19 == 0)) % VOCAB for at, each in enumerate(truth) if at >= len(known)]


@pytest.mark.parametrize(("num_requests", "depth"), [(8, 1), (8, 2), (2, 6)])
def test_requests_for_long_drafts_make_no_round_that_is_more_than_a_stage_takes(
    num_requests: int, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 40
    monkeypatch.setattr("starspec.stages.worker.MAX_HIDDEN_BYTES", most * 8)
    pipe = MemoryPipe(toy_stages(NUM_STAGES, num_rows=num_requests), lambda: 0.01)
    target = Target(depth=depth, pipe=pipe, drafts=MostlyTrueDrafts, max_tokens=most)
    for number in range(num_requests):
        target.submit(f"r{number}", [number, *PROMPT], GREEDY, 50, num_draft_tokens=MAX_DRAFT_TOKENS)
    target.run()
    assert target.got == target.expected
    assert target.verifier.num_losses == 0
    assert target.engine.stats.acceptance.num_accepted_tokens > 40 * num_requests


def test_a_slow_link_is_not_a_dead_stage() -> None:
    target = Target(delay_s=3.0)
    target.submit("a", PROMPT, GREEDY, 6)
    target.run(seconds=600.0)
    target.idle(20.0)
    assert (target.got, target.verifier.num_losses) == (target.expected, 0)


def test_the_last_traversal_in_flight_is_lost_and_nothing_hangs() -> None:
    target = begun(Target())
    target.pipe.lose_next = 1
    lost_s = target.pipe.now
    while target.verifier.num_losses == 0:
        target.step()
    assert target.pipe.now - lost_s < 2.5
    target.run()
    assert target.got == target.expected


def test_a_request_that_kills_the_stages_again_and_again_is_ended() -> None:
    target = begun(Target())
    while "a" not in target.ends:
        if target.verifier.depth:
            target.pipe.restart(1)
        target.step()
    assert target.ends["a"][0] == "abort"
    assert target.pipe.now < 60.0


def test_an_idle_target_keeps_its_stages_and_takes_them_back() -> None:
    target = Target()
    target.idle(30.0)
    assert target.verifier.num_losses == 0
    target.pipe.restart(1)
    target.idle(3.0)
    assert target.verifier.depth == 2
    target.submit("a", PROMPT, GREEDY, 6)
    target.run()
    assert target.got == target.expected


def test_a_stage_whose_coordinator_is_gone_frees_its_rows() -> None:
    target = begun(Target())
    assert all(held(target))
    target.pipe.receive(0.5)
    target.pipe.now += 9.0
    target.pipe.check_leases()
    assert not any(held(target))


def test_a_spare_of_another_model_takes_no_position() -> None:
    target = begun(Target(num_spares=1))
    target.pipe.runners[3].info = replace(target.pipe.runners[3].info, fingerprint="other")
    target.pipe.restart(3)
    with capture_logs() as logs:
        target.idle(2.0)
    assert [each["why"] for each in logs] == ["stage s3 fits no place: it has another model, or other weights"]
    target.pipe.kill(0)
    target.run(seconds=WAIT_S + 2.5)
    assert {reason for reason, _ in target.ends.values()} == {"abort"}


def chain(target: Target) -> list[str]:
    return [each.endpoint for each in target.verifier.pipe.stages if each.index is not None]


@pytest.mark.parametrize(
    ("links", "after"),
    [
        ([(0, 1)], ["s0", "s4", "s2"]),  # the farther stage has a spare
        ([(1, 2)], ["s0", "s4", "s2"]),  # only the nearer one has
        ([(0, 1), (0, 4)], ["s3", "s1", "s2"]),  # nothing leaves the nearer one
    ],
)
def test_if_a_link_between_two_stages_stays_cut_a_spare_goes_round_it_with_the_same_tokens(
    links: list[tuple[int, int]], after: list[str]
) -> None:
    target = begun(Target(num_spares=2))
    cut_s = target.pipe.now
    for each in links:
        target.pipe.cut_link(*each)
    while chain(target) != after or not target.verifier.depth:
        target.step()
    assert target.pipe.now - cut_s < 2.0 + 2.5 * len(links)  # seen, and one attempt with each link
    target.run()
    assert target.got == target.expected
    assert {reason for reason, _ in target.ends.values()} == {"length"}


def test_if_a_link_between_two_stages_is_whole_again_soon_no_spare_is_taken() -> None:
    target = begun(Target(num_spares=2))
    cut_s = target.pipe.now
    target.pipe.cut_link(0, 1)
    while target.pipe.now - cut_s < 3.0:
        target.step()
    assert target.verifier.num_losses == 1
    target.pipe.heal_link(0, 1)
    target.run()
    assert (target.got, chain(target)) == (target.expected, ["s0", "s1", "s2"])


STALL_S = STALLED * 2.0 + 1.0  # nothing lands for so long; then a pipe is lost


@pytest.mark.parametrize(
    ("links", "after"),
    [([(0, 1)], ["s0", "s4", "s2"]), ([(1, 2)], ["s0", "s4", "s2"]), ([(0, 1), (0, 4)], ["s3", "s4", "s2"])],
)
def test_if_only_hidden_states_do_not_pass_from_one_stage_to_the_next_a_spare_goes_round_with_the_same_tokens(
    links: list[tuple[int, int]], after: list[str]
) -> None:
    target = begun(Target(num_spares=2))
    cut_s = target.pipe.now
    target.pipe.cut_traversals |= {*links}
    while target.verifier.num_losses < len(links) or not target.verifier.depth:
        target.step()
    assert target.pipe.now - cut_s < len(links) * STALL_S
    target.run()
    assert (target.got, chain(target)) == (target.expected, after)
    assert target.verifier.num_losses == len(links)


def test_if_hidden_states_do_not_pass_and_there_is_no_way_round_requests_end_in_time_and_say_why() -> None:
    target = begun(Target())
    target.pipe.cut_traversals.add((1, 2))
    target.run(seconds=(MAX_RESTARTS + 1) * STALL_S)
    why = r"the stages were attached anew: what stage s1 has computed has not reached stage s2 for \d+\.\d s"
    assert all(kind == "abort" and re.fullmatch(why, said) for kind, said in target.ends.values())
    assert all(got == target.expected[name][: len(got)] for name, got in target.got.items())
    target.pipe.cut_traversals.clear()
    target.submit("late", PROMPT, GREEDY, 5)
    target.run()
    assert target.got["late"] == target.expected["late"]
    target.idle(3.0)
    assert held(target) == [0] * NUM_STAGES


def test_a_spare_that_is_a_stage_under_another_name_takes_it_out_of_no_pipe() -> None:
    pipe = MemoryPipe([*toy_stages(NUM_STAGES), toy_stages(NUM_STAGES)[1]])
    pipe.runners[3], pipe.workers[3] = pipe.runners[1], pipe.workers[1]
    with capture_logs() as logs:
        target = Target(pipe=pipe)
        target.idle(5.0)
        target.submit("a", PROMPT, GREEDY, 20)
        target.run()
        target.idle(5.0)
    assert (target.got, target.verifier.num_losses) == (target.expected, 0)
    told = {"event": "a stage cannot take a place", "log_level": "warning"}
    assert logs == [{**told, "why": "s1 and s3 are the same stage: list it once in --stages and --spares"}]
    assert target.verifier.pipe.stages[3].state == "spare, unfit"


def test_without_a_way_round_a_link_requests_end_and_say_which_it_is_until_it_is_whole_again() -> None:
    target = begun(Target(num_spares=1))
    target.pipe.cut_link(1, 2)
    target.run(seconds=WAIT_S + 5.0)
    why = "stage s1 does not reach stage s2; no other stage took its place within 10 s"
    assert target.ends == dict.fromkeys(("a", "b"), ("abort", why))
    target.pipe.heal_link(1, 2)
    target.idle(5.0)
    target.submit("late", PROMPT, GREEDY, 5)
    target.run()
    assert target.got["late"] == target.expected["late"]


@pytest.mark.parametrize("seed", range(40))
def test_any_faults_at_any_time_change_no_token(seed: int) -> None:
    rng = random.Random(seed)
    target = Target(num_spares=rng.randrange(3), delay_s=rng.choice((0.0, 0.02, 0.3)), depth=rng.randint(1, 3))
    pipe = target.pipe
    for number in range(8):
        prompt = [rng.randrange(VOCAB) for _ in range(rng.randint(1, 12))]
        if target.verifier.refusal is None:
            target.submit(f"r{number}", prompt, rng.choice((GREEDY, COUNTING)), rng.randint(1, 12))
        for _ in range(rng.randrange(12)):
            target.step()
        stage, other = rng.randrange(len(pipe.workers)), rng.randrange(len(pipe.workers))
        cut_link = partial(pipe.cut_link, other)
        rng.choice((pipe.kill, pipe.pause, pipe.cut.add, cut_link, pipe.restart))(stage)
        if rng.random() < 0.5:
            for _ in range(rng.randrange(200)):
                target.step()
        for each in range(len(pipe.workers)):
            pipe.heal(each, are_frames_lost=rng.random() < 0.5)
            pipe.heal_link(other, each)
            pipe.resume(each)
            if each in pipe.killed and rng.random() < 0.8:
                pipe.restart(each)
    target.run(seconds=120.0)
    for name, got in target.got.items():
        assert got == target.expected[name][: len(got)]
        assert len(got) == len(target.expected[name]) or target.ends[name][0] == "abort"
    target.idle(12.0)
    assert not any(held(target))
