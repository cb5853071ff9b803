"""Which processes are the stages of a pipe: attempts to attach them, without links."""

from __future__ import annotations

import msgspec
import pytest

from starspec.ids import PipeEpoch, StageId, TargetId
from starspec.policy.stage_liveness import FIRST_ROUND_TRIP_S
from starspec.stages.attempt import LINKING_ROUND_TRIPS
from starspec.stages.member import StageTimes
from starspec.stages.membership import Membership
from starspec.stages.pipe import Pipe
from starspec.wire.messages import Alive, Attach, Attached, Beat, Detach, Gap, Identify, Identity, Outdated, Refused
from starspec.wire.stage_news import Broken
from starspec.wire.stage_session import NOT_IN_PIPE

TIMES = StageTimes(seen_within_s=2.0, wait_s=10.0)
FIRST, LAST, SPARE = range(3)
ID_OF = [StageId(str(index) * 16) for index in range(3)]


def stage(index: int, epoch: int, fingerprint: str = "model", behind: int = LAST) -> Attached:
    """What a member says. The spare has the last layers. Args: behind: the member behind the first one."""
    layer, next_id = (0, ID_OF[behind]) if index == FIRST else (1, None)
    return Attached(PipeEpoch(epoch), layer, layer + 1, 2, fingerprint, 4, 100, ID_OF[index], next_id=next_id)


def up() -> Membership:
    """Two stages that are attached, and the name of a spare."""
    pipe = Pipe(("first", "last"), (stage(FIRST, 1), stage(LAST, 1)), PipeEpoch(1), 9.0, TargetId("t"))
    return Membership(pipe, ["spare"], TIMES, 0.0)


def broken() -> Membership:
    """The last of two stages has broken off, and all are being attached."""
    members = up()
    members.hear(LAST, Gap(PipeEpoch(1), 1, "a traversal is missing"), 0.1)
    assert not members.judge(0.1)
    due = members.due(0.1)
    assert sorted(index for index, message in due if isinstance(message, Attach)) == [FIRST, LAST]
    assert (SPARE, Identify()) in due
    return members


def test_a_pipe_is_up_again_when_all_positions_are_attached() -> None:
    members = broken()
    members.hear(FIRST, stage(FIRST, members.epoch), 0.2)
    assert not members.judge(0.2)
    members.hear(LAST, stage(LAST, members.epoch), 0.3)
    assert members.judge(0.3)
    assert members.is_up


def test_a_connection_that_breaks_is_a_stage_that_is_gone_and_a_spare_is_asked_at_once() -> None:
    members = up()
    members.hear(SPARE, stage(SPARE, 1), 0.1)
    members.hear(LAST, Broken(), 0.2)
    assert members.reason == "the connection to stage last broke"
    attached = {index: message for index, message in members.due(0.2) if isinstance(message, Attach)}
    assert attached[FIRST].next == "spare"
    assert attached[SPARE].pipe_epoch == attached[FIRST].pipe_epoch > 1


def test_a_connection_that_breaks_while_stages_are_attached_ends_the_attempt() -> None:
    members = broken()
    members.hear(FIRST, Broken(), 0.2)
    members.hear(LAST, stage(LAST, members.epoch), 0.3)
    assert not members.judge(0.3)
    assert members.reason == "the connection to stage first broke"


def test_a_stage_that_falls_silent_while_others_are_attached_ends_the_attempt() -> None:
    members = broken()
    epoch, now = members.epoch, 0.2
    members.hear(LAST, stage(LAST, epoch), now)
    while members.members[LAST].is_there:  # it answers no beat
        now += 0.1
        assert now < 2 * FIRST_ROUND_TRIP_S
        members.due(now)
        members.hear(FIRST, Alive(epoch, now), now)
        assert not members.judge(now)
    members.hear(FIRST, stage(FIRST, epoch), now)
    assert not members.judge(now)
    assert members.reason == "stage last does not answer"


def test_whoever_was_told_to_leave_while_others_are_attached_is_attached_again() -> None:
    members = broken()
    members.hear(LAST, stage(LAST, members.epoch), 0.2)
    assert not members.judge(0.2)
    assert members.end() == [(LAST, Detach(members.epoch))]
    members.hear(FIRST, stage(FIRST, members.epoch), 0.3)
    assert not members.judge(0.3)
    sent = attached_anew(members, 0.4)
    assert sent[FIRST].pipe_epoch == sent[LAST].pipe_epoch
    assert members.judge(0.4)


def without_link() -> Membership:
    """As `broken`. The first stage is attached, answers beats, and does not get to the last one in time."""
    members = broken()
    members.hear(SPARE, stage(SPARE, 1), 0.2)
    members.hear(LAST, stage(LAST, members.epoch), 0.2)
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
    members.hear(LAST, stage(LAST, epoch), 0.2)
    members.hear(FIRST, Gap(epoch, 1, "the stage at last is gone"), 0.3)
    assert members.reason == "stage first broke off: the stage at last is gone"
    attached = {index: message for index, message in members.due(0.3) if isinstance(message, Attach)}
    assert attached[FIRST].pipe_epoch == attached[LAST].pipe_epoch > epoch


def test_a_stage_that_has_not_taken_its_attach_yet_does_not_end_the_attempt_and_neither_does_old_news() -> None:
    members = broken()
    for reason in (NOT_IN_PIPE, f"{NOT_IN_PIPE}, or not any more"):
        members.hear(FIRST, Gap(members.epoch, 1, reason), 0.2)
    members.hear(FIRST, Gap(PipeEpoch(1), 1, "the stage at last is gone"), 0.2)
    members.hear(FIRST, stage(FIRST, members.epoch), 0.3)
    members.hear(LAST, stage(LAST, members.epoch), 0.3)
    assert members.judge(0.3)


def test_a_spare_that_refuses_does_not_end_an_attempt_without_it() -> None:
    members = broken()
    members.hear(FIRST, stage(FIRST, members.epoch), 0.2)
    members.hear(SPARE, Refused("full", "the stage belongs to target u"), 0.2)
    members.hear(LAST, stage(LAST, members.epoch), 0.3)
    assert members.judge(0.3)


def test_a_spare_that_breaks_off_while_it_is_probed_does_not_end_an_attempt_without_it() -> None:
    members = broken()
    members.hear(FIRST, stage(FIRST, members.epoch), 0.2)
    members.hear(SPARE, stage(SPARE, members.epoch), 0.2)
    members.hear(SPARE, Gap(members.epoch, 1, "its lease has ended"), 0.2)
    members.hear(LAST, stage(LAST, members.epoch), 0.3)
    assert members.judge(0.3)


def test_nobody_is_blamed_for_a_stage_that_is_probed_in_vain_while_a_spare_has_its_place() -> None:
    members = up()
    members.hear(SPARE, stage(SPARE, 1), 0.1)
    members.hear(LAST, Broken(), 0.2)
    members.due(0.2)
    for now in (1.0, 1.1, 1.2):  # it is back, and asked for
        members.hear(LAST, stage(LAST, members.epoch), now)
        members.hear(LAST, Gap(members.epoch, 1, "no"), now)
    members.hear(FIRST, stage(FIRST, members.epoch, behind=SPARE), 1.3)
    members.hear(SPARE, stage(SPARE, members.epoch), 1.3)
    assert members.judge(1.3)
    assert members.chain == (FIRST, SPARE)
    assert not members.members[FIRST].is_faulty(1.3)


def test_a_stage_that_refuses_ends_the_attempt_and_says_why() -> None:
    members = broken()
    members.hear(LAST, Refused("full", "the stage belongs to target u"), 0.2)
    members.hear(FIRST, stage(FIRST, members.epoch), 0.3)
    assert not members.judge(0.3)
    assert members.reason == "stage last refuses: the stage belongs to target u"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"fingerprint": "other"}, "it has another model, or other weights"),
        ({"start": 0, "end": 1}, "it has layers 0:1, not 1:2"),
        ({"num_rows": 1}, "it has 1 rows, and the stages 4: give it a higher --max-num-seqs"),
    ],
)
def test_a_stage_that_is_another_one_now_is_not_taken_and_that_is_said(change: dict[str, object], why: str) -> None:
    members = broken()
    members.hear(FIRST, stage(FIRST, members.epoch), 0.2)
    members.hear(LAST, msgspec.structs.replace(stage(LAST, members.epoch), **change), 0.2)
    assert not members.judge(0.2)
    assert members.reason == f"stage last is not what it was before: {why}"
    assert not any(isinstance(message, Attach) for _, message in members.due(0.3))  # nobody has the last layers


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"start": 0, "end": 1}, "stage last is not what it was before: it has layers 0:1, not 1:2"),
        ({"fingerprint": "other"}, "stage last fits no place: it has another model, or other weights"),
        ({"start": 0, "end": 2}, "stage last fits no place: it has layers 0:2, and no stage has these"),
    ],
)
def test_a_stage_that_is_another_one_when_it_is_found_again_is_told_of_until_it_is_right(
    change: dict[str, object], why: str
) -> None:
    """Both stages have died, and this one is back before the other one."""
    members = up()
    for index in (FIRST, LAST):
        members.hear(index, Broken(), 0.1)
    members.judge(0.1)
    members.hear(LAST, Identity(ID_OF[LAST]), 1.0)
    assert [index for index, message in members.due(2.0) if isinstance(message, Attach)] == [LAST]
    members.hear(LAST, msgspec.structs.replace(stage(LAST, members.epoch), **change), 2.1)
    members.judge(2.1)
    assert (members.reason, members.left_out()) == (why, [why])
    members.hear(FIRST, Identity(ID_OF[FIRST]), 2.2)
    assert not any(isinstance(message, Attach) for index, message in members.due(2.2) if index == LAST)
    members.hear(LAST, Broken(), 3.0)
    members.hear(LAST, Identity(ID_OF[LAST]), 4.0)
    members.due(5.0)
    members.hear(LAST, stage(LAST, members.epoch), 5.1)
    members.judge(5.1)
    attached_anew(members, 5.2)
    assert members.judge(5.2)


def attached_anew(members: Membership, now: float) -> dict[int, Attach]:
    """What is sent when the pipe is down, and all that are asked answer."""
    sent = {index: message for index, message in members.due(now) if isinstance(message, Attach)}
    for index, message in sent.items():
        behind = SPARE if message.next == "spare" else LAST
        members.hear(index, stage(index, message.pipe_epoch, behind=behind), now)
    return sent


def test_a_stage_that_breaks_off_again_and_again_is_the_last_choice_until_it_is_forgiven() -> None:
    members = up()
    members.hear(SPARE, stage(SPARE, 1), 0.1)
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
    members = up()
    members.hear(SPARE, stage(SPARE, 1), 0.1)
    chains = []
    for now in (1.0, 2.0, 3.0):
        members.hear(LAST, Broken(is_flood=True), now)
        assert members.reason == "stage last sends far more than it is asked for"
        members.hear(LAST, stage(LAST, 1), now + 0.4)  # it was connected again before the next attempt
        attached_anew(members, now + 0.5)
        assert members.judge(now + 0.5)
        chains.append(members.chain)
    assert chains == [(FIRST, LAST), (FIRST, LAST), (FIRST, SPARE)]


def test_attempts_that_fail_again_and_again_have_pauses() -> None:
    members, now, tried = broken(), 0.1, list[float]()
    while now < 20.0:
        members.hear(LAST, Refused("full", "no"), now)
        members.hear(LAST, stage(LAST, 1), now)  # it is there all the same
        now += 0.01
        if any(isinstance(message, Attach) and message.next for _, message in members.due(now)):
            tried.append(now)
    assert len(tried) < 20


def test_what_a_spare_says_about_epochs_counts_for_it_alone() -> None:
    pipe = Pipe(("first", "last"), (stage(FIRST, 1), stage(LAST, 1)), PipeEpoch(1), 9.0, TargetId("t"))
    members = Membership(pipe, ["spare"], TIMES, 0.0, unix_clock=lambda: 1e9)
    members.hear(SPARE, Outdated(PipeEpoch(10**9), ID_OF[SPARE]), 0.1)
    members.hear(LAST, Gap(PipeEpoch(1), 1, "no"), 0.2)
    sent = attached_anew(members, 0.3)
    assert sent[FIRST].pipe_epoch == sent[LAST].pipe_epoch < 10
    assert members.judge(0.3)
    assert {message.pipe_epoch for index, message in members.due(2.0) if index == SPARE} == {10**9 + 1}


def test_an_epoch_that_no_clock_allows_is_not_taken_for_one() -> None:
    members = broken()
    members.hear(LAST, Outdated(PipeEpoch(2**52 - 1), ID_OF[1]), 0.2)
    assert members.reason == f"stage last knows pipe epoch {2**52 - 1}, which cannot be"
    members.hear(LAST, stage(LAST, members.epoch), 0.3)
    sent = attached_anew(members, 1.0)
    assert sent[FIRST].pipe_epoch == sent[LAST].pipe_epoch < 10
    assert members.judge(1.0)


def to_spare(members: Membership, now: float) -> list[object]:
    return [message for index, message in members.due(now) if index == SPARE]


def test_a_spare_is_asked_who_it_is_before_it_is_attached() -> None:
    members = up()
    assert to_spare(members, 0.1) == [Identify()]
    members.hear(SPARE, Identity(ID_OF[SPARE]), 0.2)
    [attach] = to_spare(members, 1.0)
    assert isinstance(attach, Attach)
    assert attach.pipe_epoch > members.pipe_epoch


def test_a_spare_that_is_a_stage_under_another_name_is_never_attached_and_that_is_told_once() -> None:
    members, now = up(), 0.0
    while now < 10.0:
        now += 0.5
        assert set(map(type, to_spare(members, now))) <= {Identify}
        for index in (FIRST, LAST):
            members.hear(index, Alive(members.pipe_epoch, now), now)
        members.hear(SPARE, Identity(ID_OF[LAST]), now)
        assert not members.judge(now)
    assert members.is_up
    assert members.left_out() == ["last and spare are the same stage: list it once in --stages and --spares"]


def test_a_stage_out_of_reach_has_its_place_under_its_second_name_and_then_not_under_the_first() -> None:
    members = up()
    members.hear(SPARE, Identity(ID_OF[LAST]), 0.1)
    members.hear(LAST, Broken(), 0.2)
    [attach] = to_spare(members, 0.8)
    members.hear(SPARE, msgspec.structs.replace(stage(SPARE, attach.pipe_epoch), stage_id=ID_OF[LAST]), 0.9)
    sent = {index: message for index, message in members.due(1.0) if isinstance(message, Attach)}
    assert sent[FIRST].next == "spare"
    members.hear(LAST, Identity(ID_OF[LAST]), 1.1)  # it is in reach again
    assert (LAST, Identify()) in members.due(1.8)
    for index in (FIRST, SPARE):
        members.hear(index, msgspec.structs.replace(stage(index, members.epoch), stage_id=ID_OF[min(index, LAST)]), 1.9)
    assert members.judge(1.9)
    assert members.chain == (FIRST, SPARE)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"fingerprint": "other"}, "it has another model, or other weights"),
        ({"num_layers": 3}, "it has another model, or other weights"),
        ({"start": 0, "end": 2}, "it has layers 0:2, and no stage has these"),
        ({"dtype": "float32"}, "it computes in float32, and the stages in : give all the same --dtype"),
        ({"num_rows": 3}, "it has 3 rows, and the stages 4: give it a higher --max-num-seqs"),
        ({"max_len": 99}, "its rows have 99 places, and those of the stages 100: see --max-model-len"),
    ],
)
def test_a_spare_that_can_take_no_place_is_told_of_until_it_can(change: dict[str, object], why: str) -> None:
    members, what = up(), stage(SPARE, 2)
    for now in (0.1, 0.2):
        members.hear(SPARE, msgspec.structs.replace(what, **change), now)
    assert members.left_out() == [f"stage spare fits no place: {why}"]
    assert members.members[SPARE].why_unfit
    members.hear(SPARE, what, 0.3)
    assert members.members[SPARE].why_unfit is None
    members.hear(LAST, Broken(), 0.4)
    assert any(index == SPARE and isinstance(message, Attach) for index, message in members.due(0.4))


def test_a_spare_that_refuses_or_dies_before_it_is_used_is_told_of() -> None:
    members = up()
    for now in (0.1, 0.2):
        members.hear(SPARE, Refused("version", "it speaks another version"), now)
    assert members.left_out() == ["stage spare refuses: it speaks another version"]
    members.hear(SPARE, stage(SPARE, 2), 0.3)
    members.hear(SPARE, Broken(), 0.4)
    assert members.left_out() == ["the connection to stage spare broke"]
    assert members.is_up


def test_a_link_over_which_traversals_do_not_pass_is_gone_round_although_both_ends_live() -> None:
    members = up()
    members.hear(SPARE, stage(SPARE, 2), 0.1)
    for index, number in ((FIRST, 3), (LAST, 2)):
        members.hear(index, Alive(members.pipe_epoch, 0.0, number=number), 0.2)
    members.lose_idle(10.0, 0.3)
    assert members.reason == "what stage first has computed has not reached stage last for 10.0 s"
    attached = {index: message for index, message in members.due(0.3) if isinstance(message, Attach)}
    assert attached[FIRST].next == "spare"


def test_if_all_stages_wait_for_the_same_traversal_it_is_the_link_to_none_of_them() -> None:
    members = up()
    members.hear(SPARE, stage(SPARE, 2), 0.1)
    for index in (FIRST, LAST):
        members.hear(index, Alive(members.pipe_epoch, 0.0, number=3), 0.2)
    members.lose_idle(10.0, 0.3)
    assert members.reason == "nothing has landed for 10.0 s, and all stages are idle"
    attached = {index: message for index, message in members.due(0.3) if isinstance(message, Attach)}
    assert attached[FIRST].next == "last"
