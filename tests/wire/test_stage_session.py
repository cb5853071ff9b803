"""The state machines of a stage and of its rows: what follows is taken, and everything else changes nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starspec.errors import PeerProtocolError
from starspec.ids import PipeEpoch, RowEpoch, RowLease, TargetId
from starspec.wire.messages import (
    PROTOCOL_VERSION,
    Attach,
    Beat,
    Detach,
    Gap,
    Outdated,
    Refused,
    Retract,
    RowChange,
    Traversal,
    WindowHead,
)
from starspec.wire.stage_session import RowSession, RowState, StageSession, StageState, StaleTraversal

LEASE_S = 2.0
NUMBERS = st.integers(1, 6)


def attach(epoch: int, target: str = "t") -> Attach:
    return Attach(PROTOCOL_VERSION, TargetId(target), PipeEpoch(epoch), LEASE_S)


def traversal(epoch: int, number: int) -> Traversal:
    return Traversal(PipeEpoch(epoch), number, [], [])


def attached(epoch: int = 3) -> StageSession:
    session = StageSession()
    assert session.attach(attach(epoch), 0.0) is None
    return session


def window(lease: int, base: int, num_tokens: int, path: tuple[int, ...] = (), epoch: int = 0, parents=None):
    return WindowHead(0, RowLease(lease), RowEpoch(epoch), base, num_tokens, num_tokens, path, parents)


def held(lease: int = 1) -> RowSession:
    row = RowSession(0)
    row.change(RowChange("lease", 0, RowLease(lease)))
    return row


def test_traversals_in_order_are_taken() -> None:
    session = attached()
    assert [session.take(traversal(3, number)) for number in (1, 2, 3)] == [None] * 3


@given(st.lists(NUMBERS, min_size=1, max_size=12))
def test_only_the_next_traversal_is_ever_computed(numbers: list[int]) -> None:
    session, computed = attached(), []
    for number in numbers:
        try:
            if session.take(traversal(3, number)) is None:
                computed.append(number)
        except StaleTraversal:
            assert number < session.next_number
    assert computed == list(range(1, len(computed) + 1))
    is_broken = any(number > 1 + max((*numbers[:at], 0)) for at, number in enumerate(numbers))
    assert (session.state is StageState.BROKEN) == is_broken


def test_a_gap_breaks_the_stage_until_it_is_attached_anew() -> None:
    session = attached()
    assert session.take(traversal(3, 2)) == Gap(PipeEpoch(3), 1, "traversal 2 of pipe epoch 3 does not follow")
    assert isinstance(session.take(traversal(3, 1)), Gap)
    assert session.attach(attach(4), 1.0) is None
    assert session.take(traversal(4, 1)) is None


def test_traversals_of_an_older_pipe_are_dropped_without_an_answer() -> None:
    session = attached()
    with pytest.raises(StaleTraversal):
        session.take(traversal(2, 1))
    assert (session.num_stale, session.state) == (1, StageState.ATTACHED)


def test_a_traversal_of_a_pipe_that_the_stage_does_not_know_is_answered_with_its_epoch() -> None:
    fresh = StageSession()
    assert fresh.take(traversal(7, 4)) == Gap(PipeEpoch(7), 1, "traversal 4 of pipe epoch 7 does not follow")
    assert fresh.state is StageState.DETACHED


def test_a_pipe_epoch_is_never_used_again() -> None:
    session = attached(3)
    assert session.attach(attach(3), 0.0) == Outdated(PipeEpoch(3), session.stage_id)
    assert session.hear(Detach(PipeEpoch(3)), 0.0)
    assert session.attach(attach(3), 0.0) == Outdated(PipeEpoch(3), session.stage_id)


def test_a_stage_belongs_to_one_target_while_its_lease_lasts() -> None:
    session = attached()
    refusal = session.attach(attach(9, "other"), 0.5)
    assert isinstance(refusal, Refused)
    assert refusal.reason == "the stage belongs to target t"
    assert session.attach(attach(9, "t"), 0.5) is None  # its own coordinator came back
    assert session.attach(attach(10, "other"), 0.5 + LEASE_S) is None


def test_another_protocol_version_is_refused() -> None:
    refusal = StageSession().attach(Attach(PROTOCOL_VERSION + 1, TargetId("t"), PipeEpoch(1), LEASE_S), 0.0)
    assert isinstance(refusal, Refused)
    assert refusal.code == "version"


def test_beats_of_this_pipe_and_no_others_keep_the_lease() -> None:
    session = attached(3)
    assert session.hear(Beat(PipeEpoch(3)), 1.5)
    assert not session.hear(Beat(PipeEpoch(2)), 3.0)
    assert not session.end_lease(3.4)
    assert session.end_lease(3.5)
    assert session.state is StageState.DETACHED
    assert not session.end_lease(99.0)
    assert not session.hear(Beat(PipeEpoch(3)), 99.0)


def test_a_row_has_one_occupant_at_a_time_and_leases_rise() -> None:
    row = held(5)
    for wrong in (RowChange("lease", 0, RowLease(6)), RowChange("free", 0, RowLease(4))):
        with pytest.raises(PeerProtocolError):
            row.change(wrong)
    row.change(RowChange("free", 0, RowLease(5)))
    assert row.state is RowState.FREE
    with pytest.raises(PeerProtocolError):
        row.change(RowChange("lease", 0, RowLease(5)))
    with pytest.raises(PeerProtocolError):
        row.is_stale(window(5, 0, 1))


def test_windows_before_a_retract_are_stale_and_later_ones_are_not() -> None:
    row = held()
    row.retract(Retract(PipeEpoch(1), 0, RowLease(9), RowEpoch(7)))  # of somebody else
    row.retract(Retract(PipeEpoch(1), 0, RowLease(1), RowEpoch(2)))
    row.retract(Retract(PipeEpoch(1), 0, RowLease(1), RowEpoch(1)))  # came late
    assert [row.is_stale(window(1, 0, 1, epoch=epoch)) for epoch in (0, 1, 2, 3)] == [True, True, False, False]


def test_what_was_taken_back_can_be_written_again() -> None:
    row = held()
    row.move(window(1, 0, 6))
    row.move(window(1, 6, 3))  # the whole chain is presumed
    row.move(window(1, 2, 4))  # it was refused from token 2 on
    assert (row.length, row.written) == (2, 6)


def test_a_path_of_a_tree_follows_only_its_own_forward() -> None:
    row = held()
    row.move(window(1, 0, 4, parents=(-1, 0, 0, 2)))
    with pytest.raises(PeerProtocolError):
        row.move(window(1, 2, 1))  # the first branch is not known to be right
    row.move(window(1, 0, 1, (0, 2, 3)))
    assert row.length == 3
    with pytest.raises(PeerProtocolError):
        row.move(window(1, 0, 1, (0, 2, 3)))


@given(st.lists(st.tuples(st.integers(0, 12), st.lists(st.integers(0, 5), unique=True), st.integers(1, 5))))
def test_a_row_never_stands_on_what_it_has_not_written(moves) -> None:
    row, written = held(), 0
    for base, path, num_tokens in moves:
        before = (row.length, row.written, row.is_chain)
        try:
            row.move(window(1, base, num_tokens, tuple(sorted(path))))
        except PeerProtocolError:
            assert (row.length, row.written, row.is_chain) == before
            continue
        assert row.length <= written
        written = row.written
