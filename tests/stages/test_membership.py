"""Which processes are the stages of a pipe: attempts to attach them, without links."""

from __future__ import annotations

from starspec.ids import PipeEpoch, StageId, TargetId
from starspec.policy.stage_liveness import FIRST_ROUND_TRIP_S
from starspec.stages.attach import Pipe
from starspec.stages.member import StageTimes
from starspec.stages.membership import LINKING_ROUND_TRIPS, Membership
from starspec.wire.messages import Alive, Attach, Attached, Beat, Detach, Gap, Outdated, Refused
from starspec.wire.stage_news import Broken
from starspec.wire.stage_session import NOT_IN_PIPE

TIMES = StageTimes(seen_within_s=2.0, wait_s=10.0)
FIRST, LAST, SPARE = range(3)
ID_OF = [StageId(str(layer) * 16) for layer in range(2)]  # of the stage with this layer


def stage(layer: int, epoch: int, fingerprint: str = "model") -> Attached:
    next_id = ID_OF[1] if layer == 0 else None
    return Attached(PipeEpoch(epoch), layer, layer + 1, 2, fingerprint, 4, 100, ID_OF[layer], next_id=next_id)


def broken() -> Membership:
    """The last of two stages has broken off, and all are being attached."""
    pipe = Pipe(("first", "last"), (stage(0, 1), stage(1, 1)), PipeEpoch(1), 9.0, TargetId("t"))
    members = Membership(pipe, ["spare"], TIMES, 0.0)
    members.hear(LAST, Gap(PipeEpoch(1), 1, "a traversal is missing"), 0.1)
    assert not members.judge(0.1)
    attached = [index for index, message in members.due(0.1) if isinstance(message, Attach)]
    assert sorted(attached) == [FIRST, LAST, SPARE]
    return members


def test_a_pipe_is_up_again_when_all_positions_are_attached() -> None:
    members = broken()
    members.hear(FIRST, stage(0, members.epoch), 0.2)
    assert not members.judge(0.2)
    members.hear(LAST, stage(1, members.epoch), 0.3)
    assert members.judge(0.3)
    assert members.is_up


def test_a_connection_that_breaks_is_a_stage_that_is_gone_and_a_spare_is_asked_at_once() -> None:
    pipe = Pipe(("first", "last"), (stage(0, 1), stage(1, 1)), PipeEpoch(1), 9.0, TargetId("t"))
    members = Membership(pipe, ["spare"], TIMES, 0.0)
    members.hear(SPARE, stage(1, 1), 0.1)
    members.hear(LAST, Broken(), 0.2)
    assert members.reason == "the connection to stage last broke"
    attached = {index: message for index, message in members.due(0.2) if isinstance(message, Attach)}
    assert attached[FIRST].next == "spare"
    assert attached[SPARE].pipe_epoch == attached[FIRST].pipe_epoch > 1


def test_a_connection_that_breaks_while_stages_are_attached_ends_the_attempt() -> None:
    members = broken()
    members.hear(FIRST, Broken(), 0.2)
    members.hear(LAST, stage(1, members.epoch), 0.3)
    assert not members.judge(0.3)
    assert members.reason == "the connection to stage first broke"


def test_a_stage_that_falls_silent_while_others_are_attached_ends_the_attempt() -> None:
    members = broken()
    epoch, now = members.epoch, 0.2
    members.hear(LAST, stage(1, epoch), now)
    while members.members[LAST].is_there:  # it answers no beat
        now += 0.1
        assert now < 2 * FIRST_ROUND_TRIP_S
        members.due(now)
        members.hear(FIRST, Alive(epoch, now), now)
        assert not members.judge(now)
    members.hear(FIRST, stage(0, epoch), now)
    assert not members.judge(now)
    assert members.reason == "stage last does not answer"


def test_whoever_was_told_to_leave_while_others_are_attached_is_attached_again() -> None:
    members = broken()
    members.hear(LAST, stage(1, members.epoch), 0.2)
    assert not members.judge(0.2)
    assert members.end() == [(LAST, Detach(members.epoch))]
    members.hear(FIRST, stage(0, members.epoch), 0.3)
    assert not members.judge(0.3)
    sent = attached_anew(members, 0.4)
    assert sent[FIRST].pipe_epoch == sent[LAST].pipe_epoch
    assert members.judge(0.4)


def without_link() -> Membership:
    """As `broken`. The first stage is attached, answers beats, and does not get to the last one in time."""
    members = broken()
    members.hear(SPARE, stage(1, 1), 0.2)
    members.hear(LAST, stage(1, members.epoch), 0.2)
    assert (FIRST, Beat(members.epoch, 0.4)) in members.due(0.4)
    members.hear(FIRST, Alive(members.epoch, 0.4), 0.5)
    linked_s = 0.1 + TIMES.seen_within_s + LINKING_ROUND_TRIPS * FIRST_ROUND_TRIP_S
    members.judge(linked_s - 0.1)
    assert not any(isinstance(message, Attach) for index, message in members.due(linked_s - 0.1) if index == FIRST)
    assert not members.judge(linked_s)
    assert members.reason == "stage first does not reach stage last"
    return members


def test_a_stage_that_lives_and_does_not_reach_the_next_one_is_kept_and_a_spare_is_the_next_one() -> None:
    members = without_link()
    attached = {index: message for index, message in members.due(30.0) if isinstance(message, Attach)}
    assert attached[FIRST].next == "spare"
    assert attached[SPARE].pipe_epoch == attached[FIRST].pipe_epoch == members.epoch


def test_a_link_that_was_cut_is_tried_again_where_there_is_no_way_round_it() -> None:
    members = without_link()
    members.hear(SPARE, Broken(), 30.0)
    attached = {index: message for index, message in members.due(30.0) if isinstance(message, Attach)}
    assert attached[FIRST].next == "last"


def test_a_stage_that_breaks_off_before_it_is_connected_to_the_next_one_ends_the_attempt_at_once() -> None:
    members = broken()
    epoch = members.epoch
    members.hear(LAST, stage(1, epoch), 0.2)
    members.hear(FIRST, Gap(epoch, 1, "the stage at last is gone"), 0.3)
    assert members.reason == "stage first broke off: the stage at last is gone"
    attached = {index: message for index, message in members.due(0.3) if isinstance(message, Attach)}
    assert attached[FIRST].pipe_epoch == attached[LAST].pipe_epoch > epoch


def test_a_stage_that_has_not_taken_its_attach_yet_does_not_end_the_attempt_and_neither_does_old_news() -> None:
    members = broken()
    for reason in (NOT_IN_PIPE, f"{NOT_IN_PIPE}, or not any more"):
        members.hear(FIRST, Gap(members.epoch, 1, reason), 0.2)
    members.hear(FIRST, Gap(PipeEpoch(1), 1, "the stage at last is gone"), 0.2)
    members.hear(FIRST, stage(0, members.epoch), 0.3)
    members.hear(LAST, stage(1, members.epoch), 0.3)
    assert members.judge(0.3)


def test_a_spare_that_refuses_does_not_end_an_attempt_without_it() -> None:
    members = broken()
    members.hear(FIRST, stage(0, members.epoch), 0.2)
    members.hear(SPARE, Refused("full", "the stage belongs to target u"), 0.2)
    members.hear(LAST, stage(1, members.epoch), 0.3)
    assert members.judge(0.3)


def test_a_spare_that_breaks_off_while_it_is_probed_does_not_end_an_attempt_without_it() -> None:
    members = broken()
    members.hear(FIRST, stage(0, members.epoch), 0.2)
    members.hear(SPARE, stage(1, members.epoch), 0.2)
    members.hear(SPARE, Gap(members.epoch, 1, "its lease has ended"), 0.2)
    members.hear(LAST, stage(1, members.epoch), 0.3)
    assert members.judge(0.3)


def test_nobody_is_blamed_for_a_stage_that_is_probed_in_vain_while_a_spare_has_its_place() -> None:
    pipe = Pipe(("first", "last"), (stage(0, 1), stage(1, 1)), PipeEpoch(1), 9.0, TargetId("t"))
    members = Membership(pipe, ["spare"], TIMES, 0.0)
    members.hear(SPARE, stage(1, 1), 0.1)
    members.hear(LAST, Broken(), 0.2)
    members.due(0.2)
    for now in (1.0, 1.1, 1.2):  # it is back, and asked for
        members.hear(LAST, stage(1, members.epoch), now)
        members.hear(LAST, Gap(members.epoch, 1, "no"), now)
    members.hear(FIRST, stage(0, members.epoch), 1.3)
    members.hear(SPARE, stage(1, members.epoch), 1.3)
    assert members.judge(1.3)
    assert members.chain == (FIRST, SPARE)
    assert not members.members[FIRST].is_faulty(1.3)


def test_a_stage_that_refuses_ends_the_attempt_and_says_why() -> None:
    members = broken()
    members.hear(LAST, Refused("full", "the stage belongs to target u"), 0.2)
    members.hear(FIRST, stage(0, members.epoch), 0.3)
    assert not members.judge(0.3)
    assert members.reason == "stage last refuses: the stage belongs to target u"


def test_a_stage_that_has_other_weights_now_is_not_taken_and_that_is_said() -> None:
    members = broken()
    members.hear(FIRST, stage(0, members.epoch), 0.2)
    members.hear(LAST, stage(1, members.epoch, fingerprint="other"), 0.2)
    assert not members.judge(0.2)
    assert members.reason == "stage last is not what it was before"
    assert not any(isinstance(message, Attach) for _, message in members.due(0.3))  # nobody has the last layers


def attached_anew(members: Membership, now: float) -> dict[int, Attach]:
    """What is sent when the pipe is down, and all that are asked answer."""
    sent = {index: message for index, message in members.due(now) if isinstance(message, Attach)}
    for index, message in sent.items():
        members.hear(index, stage(0 if index == FIRST else 1, message.pipe_epoch), now)
    return sent


def test_a_stage_that_breaks_off_again_and_again_is_the_last_choice_until_it_is_forgiven() -> None:
    pipe = Pipe(("first", "last"), (stage(0, 1), stage(1, 1)), PipeEpoch(1), 9.0, TargetId("t"))
    members = Membership(pipe, ["spare"], TIMES, 0.0)
    members.hear(SPARE, stage(1, 1), 0.1)
    chains = []
    for now in (1.0, 2.0, 3.0, 4.0):
        members.hear(members.chain[1], Gap(members.pipe_epoch, 1, "no"), now)
        assert not members.judge(now)
        attached_anew(members, now + 0.5)
        assert members.judge(now + 0.5)
        chains.append(members.chain)
    assert chains == [(FIRST, LAST), (FIRST, LAST), (FIRST, SPARE), (FIRST, SPARE)]
    members.hear(SPARE, Broken(), 70.0)
    assert members.reason == "the connection to stage spare broke"
    attached_anew(members, 75.0)
    assert members.judge(75.0)
    assert members.chain == (FIRST, LAST)


def test_a_stage_that_floods_again_and_again_is_the_last_choice() -> None:
    pipe = Pipe(("first", "last"), (stage(0, 1), stage(1, 1)), PipeEpoch(1), 9.0, TargetId("t"))
    members = Membership(pipe, ["spare"], TIMES, 0.0)
    members.hear(SPARE, stage(1, 1), 0.1)
    chains = []
    for now in (1.0, 2.0, 3.0):
        members.hear(LAST, Broken(is_flood=True), now)
        assert members.reason == "stage last sends far more than it is asked for"
        members.hear(LAST, stage(1, 1), now + 0.4)  # it was connected again before the next attempt
        attached_anew(members, now + 0.5)
        assert members.judge(now + 0.5)
        chains.append(members.chain)
    assert chains == [(FIRST, LAST), (FIRST, LAST), (FIRST, SPARE)]


def test_attempts_that_fail_again_and_again_have_pauses() -> None:
    members, now, tried = broken(), 0.1, list[float]()
    while now < 20.0:
        members.hear(LAST, Refused("full", "no"), now)
        members.hear(LAST, stage(1, 1), now)  # it is there all the same
        now += 0.01
        if any(isinstance(message, Attach) and message.next for _, message in members.due(now)):
            tried.append(now)
    assert len(tried) < 20


def test_what_a_spare_says_about_epochs_counts_for_it_alone() -> None:
    pipe = Pipe(("first", "last"), (stage(0, 1), stage(1, 1)), PipeEpoch(1), 9.0, TargetId("t"))
    members = Membership(pipe, ["spare"], TIMES, 0.0, unix_clock=lambda: 1e9)
    members.hear(SPARE, Outdated(PipeEpoch(10**9), ID_OF[0]), 0.1)
    members.hear(LAST, Gap(PipeEpoch(1), 1, "no"), 0.2)
    sent = attached_anew(members, 0.3)
    assert sent[FIRST].pipe_epoch == sent[LAST].pipe_epoch < 10
    assert members.judge(0.3)
    assert {message.pipe_epoch for index, message in members.due(2.0) if index == SPARE} == {10**9 + 1}


def test_an_epoch_that_no_clock_allows_is_not_taken_for_one() -> None:
    members = broken()
    members.hear(LAST, Outdated(PipeEpoch(2**52 - 1), ID_OF[1]), 0.2)
    assert members.reason == f"stage last knows pipe epoch {2**52 - 1}, which cannot be"
    members.hear(LAST, stage(1, members.epoch), 0.3)
    sent = attached_anew(members, 1.0)
    assert sent[FIRST].pipe_epoch == sent[LAST].pipe_epoch < 10
    assert members.judge(1.0)
