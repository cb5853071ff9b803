"""Whatever a stage sends, its target lives, its requests end, and others take the place: in virtual time."""

from __future__ import annotations

import pytest
from hostile_stages import (
    LANDING,
    PASSING,
    TALKING,
    BusyForEver,
    FailsAll,
    KnowsTheLastEpoch,
    LandsNothing,
    LargestNumbers,
    LeavesStagesOut,
    MadPipe,
    MadStage,
    NoTimeAtAll,
    NoTokens,
    Silent,
    UnaskedLandings,
)
from structlog.testing import capture_logs
from target_over_stages import COUNTING, GREEDY, NUM_STAGES, PROMPT, Target, begun
from toy_stages import toy_stages

from starspec.ids import TargetId
from starspec.log_limit import INTERVAL_S, LINES
from starspec.stages import coordinator
from starspec.wire.codec import Decoder, encode
from starspec.wire.messages import TargetStatus, TargetToGateway

FIRST, MIDDLE, LAST = range(NUM_STAGES)
KINDS = [(kind, LAST) for kind in (*LANDING, *TALKING)] + [(kind, MIDDLE) for kind in PASSING]
BUSY_S = 20.0  # instead of minutes
LONGEST_S = 150.0  # in which requests end, however mad a stage is: most of it is waited for traversals
BOUND_S = 60.0  # in which an honest stage has the place
NUM_KINDS = 4  # of log lines
NUM_TOKENS = 16


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "MAX_BUSY_S", BUSY_S)


def check_target(target: Target, logs: list[dict[str, object]]) -> None:
    """Nothing that it says is absurd, and its log is not full."""
    check_status(target)
    assert len(logs) <= NUM_KINDS * LINES * (1 + target.pipe.now / INTERVAL_S)
    texts = [str(value) for line in logs for value in line.values()]
    assert all(len(text) <= 500 and text.isprintable() for text in texts)
    for name, got in target.got.items():
        assert got == target.expected[name][: len(got)]


def check_status(target: Target) -> None:
    stats = target.engine.stats
    stats.pipe = pipe = target.verifier.pipe
    status = TargetStatus(TargetId("t"), "toy", 64, 0, 0, 4, 4, False, stats)
    assert Decoder[TargetToGateway](TargetToGateway).decode(encode(status)) == status
    most_s = 50 * target.pipe.now  # traversals overlap
    assert all(0.0 <= each.compute_s <= most_s and 0.0 <= each.wait_s <= most_s for each in pipe.stages)


@pytest.mark.parametrize(
    ("kind", "at", "depth"), [*((*each, 2) for each in KINDS), *((kind, LAST, None) for kind in LANDING)]
)
def test_a_mad_stage_ends_requests_in_time_at_worst(kind: type[MadStage], at: int, depth: int | None) -> None:
    pipe = MadPipe(toy_stages(NUM_STAGES), kind, at)
    with capture_logs() as logs:
        target = begun(Target(pipe=pipe, depth=depth), NUM_TOKENS)
        pipe.go_mad()
        target.run(seconds=LONGEST_S)
        check_target(target, logs)
    for name, (reason, why) in target.ends.items():
        assert reason == "abort" or target.got[name] == target.expected[name]
        assert reason != "abort" or why


def test_a_stage_that_judges_nothing_ends_requests_with_errors_and_fills_no_log() -> None:
    pipe = MadPipe(toy_stages(NUM_STAGES), FailsAll, LAST)
    with capture_logs() as logs:
        target = begun(Target(pipe=pipe), NUM_TOKENS)
        pipe.go_mad()
        target.run()
        pipe.mad.is_mad = False
        check_served(target)
        check_status(target)
    assert [target.ends[name] for name in "ab"] == [("error", "internal error")] * 2
    assert target.verifier.num_losses == 0
    reasons = [str(line["exc_info"]) for line in logs]
    assert len(reasons) == 2
    assert all(reason.isprintable() and len(reason) < 500 for reason in reasons)


def test_what_lands_without_all_stages_gives_no_token() -> None:
    pipe = MadPipe(toy_stages(NUM_STAGES), LeavesStagesOut, LAST)
    pipe.go_mad()
    target = Target(pipe=pipe)
    target.submit("a", PROMPT, GREEDY, NUM_TOKENS)
    with capture_logs() as logs:
        target.run(seconds=LONGEST_S)
    assert target.got == {"a": []}
    assert target.ends["a"][0] == "abort"
    assert logs[0]["why"] == "stage s2 answered what it was not asked: layers 1:2, 2:3 computed it"


@pytest.mark.parametrize(("kind", "at"), KINDS)
def test_an_honest_spare_takes_the_place_of_a_mad_stage(kind: type[MadStage], at: int) -> None:
    pipe = MadPipe([*toy_stages(NUM_STAGES), toy_stages(NUM_STAGES)[at]], kind, at)
    with capture_logs() as logs:
        target = begun(Target(pipe=pipe), NUM_TOKENS)
        pipe.go_mad()
        target.run(seconds=LONGEST_S)
        check_served(target)
        check_target(target, logs)


def check_served(target: Target) -> None:
    """A new request gets its whole answer before long."""
    until_s, name = target.pipe.now + BOUND_S, ""
    while not name or target.got[name] != target.expected[name]:
        assert target.pipe.now < until_s
        if target.verifier.refusal is not None:
            target.idle(0.5)
            continue
        name = f"at {target.pipe.now}"
        target.submit(name, PROMPT, COUNTING, 8)
        target.run(seconds=LONGEST_S)


@pytest.mark.parametrize("kind", [UnaskedLandings, *TALKING], ids=lambda kind: kind.__name__)
def test_a_mad_spare_changes_nothing(kind: type[MadStage]) -> None:
    pipe = MadPipe([*toy_stages(NUM_STAGES), toy_stages(NUM_STAGES)[LAST]], kind, NUM_STAGES)
    with capture_logs() as logs:
        target = begun(Target(pipe=pipe), NUM_TOKENS)
        target.idle(2.0)  # the spare is attached
        pipe.go_mad()
        target.run()
        target.idle(20.0)
        target.submit("late", PROMPT, GREEDY, 20)
        target.run()
        check_target(target, logs)
    assert target.got == target.expected
    assert target.verifier.num_losses == 0


@pytest.mark.parametrize("kind", [NoTokens, LandsNothing, BusyForEver, *TALKING], ids=lambda kind: kind.__name__)
def test_a_mad_spare_keeps_no_honest_one_from_a_place(kind: type[MadStage]) -> None:
    spares = [toy_stages(NUM_STAGES)[LAST] for _ in range(2)]
    pipe = MadPipe([*toy_stages(NUM_STAGES), *spares], kind, NUM_STAGES)
    target = begun(Target(pipe=pipe), NUM_TOKENS)
    target.idle(2.0)
    pipe.go_mad()
    pipe.kill(LAST)
    target.run(seconds=LONGEST_S)
    check_served(target)


def test_nobody_is_attached_in_an_epoch_that_cannot_be_because_one_stage_says_that_it_knows_it() -> None:
    pipe = MadPipe(toy_stages(NUM_STAGES), KnowsTheLastEpoch, LAST)
    target = begun(Target(pipe=pipe), NUM_TOKENS)
    pipe.go_mad()
    target.idle(3.0)
    pipe.mad.is_mad = False
    check_served(target)
    assert max(each.session.pipe_epoch for each in pipe.workers) < 100


def test_what_a_stage_says_of_its_times_does_not_exceed_the_traversal() -> None:
    pipe = MadPipe(toy_stages(NUM_STAGES), LargestNumbers, LAST)
    target = begun(Target(pipe=pipe), NUM_TOKENS)
    pipe.go_mad()
    target.run()
    assert target.got == target.expected
    assert target.verifier.num_losses == 0
    assert max(each.one_s for each in target.verifier.traversals.pipeline.stages) < 1.0
    check_status(target)


@pytest.mark.parametrize("seconds", NoTimeAtAll.seconds)
def test_a_stage_that_says_from_the_first_round_on_that_none_takes_any_time_changes_no_token(
    seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NoTimeAtAll, "seconds", (seconds,))
    pipe = MadPipe(toy_stages(NUM_STAGES), NoTimeAtAll, LAST)
    pipe.go_mad()
    target = Target(pipe=pipe, depth=None)
    target.submit("a", [3, 1] * 4, GREEDY, NUM_TOKENS)
    target.run()
    assert target.got == target.expected


def test_a_silent_stage_is_a_dead_one() -> None:
    pipe = MadPipe(toy_stages(NUM_STAGES), Silent, MIDDLE)
    target = begun(Target(pipe=pipe), NUM_TOKENS)
    gone_s = pipe.now
    pipe.go_mad()
    while not target.verifier.num_losses:
        target.step()
    assert pipe.now - gone_s < 2.0
