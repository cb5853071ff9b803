"""One tag at both ends: what is legal, what is stale, and what heals."""

import msgspec
import pytest

from starspec.errors import LocalProtocolError, PeerProtocolError
from starspec.ids import Epoch, Tag
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.budget import DraftBudget
from starspec.wire.messages import Close, Drawn, Open, Proposal, Reopen, TreeShape, Verdict
from starspec.wire.session import TRANSITIONS, Event, Role, TagSession, TagState

TAG = Tag(7)


def open_tag(epoch: int = 1, wanted: int = 4, token_ids: tuple[int, ...] = (1, 2, 3)) -> Open:
    return Open(TAG, Epoch(epoch), list(token_ids), len(token_ids), SamplingSpec(), wanted)


def verdict(epoch: int, base_len: int, wanted: int = 4) -> Verdict:
    return Verdict(TAG, Epoch(epoch), base_len, [9, 9], wanted)


def proposal(epoch: int, prefix_len: int, num_tokens: int = 2) -> Proposal:
    return Proposal(TAG, Epoch(epoch), prefix_len, list(range(num_tokens)))


def reopen(epoch: int) -> Reopen:
    return Reopen(TAG, Epoch(epoch))


def close(epoch: int) -> Close:
    return Close(TAG, Epoch(epoch))


def facts(session: TagSession) -> tuple[object, ...]:
    return (session.state, session.epoch, session.prefix_len, session.wanted.num_draft_tokens, session.gap)


@pytest.fixture
def target() -> TagSession:
    session = TagSession(Role.TARGET, TAG)
    session.send(open_tag())
    return session


@pytest.fixture
def hub() -> TagSession:
    session = TagSession(Role.HUB, TAG)
    assert session.receive(open_tag()) is not None
    return session


def test_a_round_ends_with_both_ends_at_the_same_place(target: TagSession, hub: TagSession) -> None:
    assert target.receive(hub.send(proposal(1, 3))) is not None
    assert (target.state, hub.state) == (TagState.PROPOSED, TagState.PROPOSED)
    assert hub.receive(target.send(verdict(2, 3))) is not None
    assert facts(target) == facts(hub) == (TagState.DRAFTING, 2, 5, 4, None)


def test_a_verdict_without_a_proposal_is_legal(target: TagSession, hub: TagSession) -> None:
    assert hub.receive(target.send(verdict(2, 3))) is not None
    assert hub.state is TagState.DRAFTING


def test_a_verdict_that_wants_nothing_leaves_the_tag_idle(target: TagSession, hub: TagSession) -> None:
    assert hub.receive(target.send(verdict(2, 3, wanted=0))) is not None
    assert (target.state, hub.state) == (TagState.IDLE, TagState.IDLE)
    with pytest.raises(LocalProtocolError, match="Proposal is not allowed while tag 7 is idle"):
        hub.send(proposal(2, 5))


def test_a_proposal_that_crossed_a_verdict_is_stale(target: TagSession, hub: TagSession) -> None:
    crossing = hub.send(proposal(1, 3))
    target.send(verdict(2, 3))
    before = facts(target)
    assert target.receive(crossing) is None
    assert (facts(target), target.num_stale) == (before, 1)


def test_the_prefix_length_is_a_guard_of_its_own(target: TagSession) -> None:
    assert target.receive(proposal(1, 2)) is None
    assert target.state is TagState.DRAFTING


def test_a_proposal_counts_once(target: TagSession) -> None:
    assert target.receive(proposal(1, 3)) is not None
    assert target.receive(proposal(1, 3)) is None
    assert target.state is TagState.PROPOSED


@pytest.mark.parametrize("message", [open_tag(), verdict(1, 3), close(1)], ids=lambda each: type(each).__name__)
def test_the_hub_drops_what_is_not_newer(hub: TagSession, message: Open | Verdict | Close) -> None:
    before = facts(hub)
    assert hub.receive(message) is None
    assert (facts(hub), hub.num_stale) == (before, 1)


@pytest.mark.parametrize("missed", [verdict(3, 5), verdict(3, 3), verdict(2, 4)], ids=["both", "epoch", "base_len"])
def test_a_verdict_that_does_not_follow_makes_the_hub_ask_for_all(hub: TagSession, missed: Verdict) -> None:
    assert hub.receive(missed) is None
    assert (hub.state, hub.num_stale) == (TagState.ABSENT, 0)
    assert hub.gap == reopen(missed.epoch)
    assert hub.send(hub.gap) == reopen(missed.epoch)
    assert hub.gap is None


def test_a_verdict_for_a_tag_that_the_hub_never_held_makes_it_ask_for_all() -> None:
    session = TagSession(Role.HUB, TAG)
    assert session.receive(verdict(5, 9)) is None
    assert session.gap == reopen(5)


def test_reopen_then_open_makes_a_tag_whole(target: TagSession, hub: TagSession) -> None:
    target.send(verdict(2, 3))  # lost on the way
    hub.receive(target.send(verdict(3, 5)))
    assert hub.gap is not None
    assert target.receive(hub.send(hub.gap)) is not None
    assert not target.is_held
    hub.receive(target.send(open_tag(4, token_ids=tuple(range(7)))))
    assert facts(target) == facts(hub) == (TagState.DRAFTING, 4, 7, 4, None)


def test_a_reopen_from_before_the_last_open_is_stale(target: TagSession) -> None:
    assert target.receive(reopen(1)) is not None
    target.send(open_tag(2))
    assert target.receive(reopen(1)) is None
    assert target.state is TagState.DRAFTING


def test_a_second_reopen_changes_nothing(target: TagSession) -> None:
    target.send(verdict(2, 3))
    assert target.receive(reopen(1)) is not None
    assert target.receive(reopen(2)) is None
    assert target.receive(proposal(2, 5)) is None
    assert target.num_stale == 2


def test_after_reopen_the_target_must_open_before_it_sends_verdicts(target: TagSession) -> None:
    target.receive(reopen(1))
    with pytest.raises(LocalProtocolError, match="needs Open before a verdict"):
        target.send(verdict(2, 3))
    assert target.epoch == 1


def test_a_lost_link_leaves_only_open_or_close(target: TagSession, hub: TagSession) -> None:
    target.lose()
    assert target.receive(proposal(1, 3)) is None
    with pytest.raises(LocalProtocolError):
        target.send(verdict(2, 3))
    hub.lose()
    assert hub.receive(target.send(open_tag(2))) is not None
    assert facts(hub) == facts(target)


def test_nothing_follows_close(target: TagSession, hub: TagSession) -> None:
    late = hub.send(proposal(1, 3))
    assert hub.receive(target.send(close(2))) is not None
    assert target.receive(late) is None
    assert target.receive(reopen(1)) is None
    for session in (target, hub):
        session.lose()
        assert session.state is TagState.CLOSED
    for message in (open_tag(3), verdict(3, 3), close(3)):
        with pytest.raises(LocalProtocolError):
            target.send(message)
        with pytest.raises(PeerProtocolError, match="is not allowed while tag 7 is closed"):
            hub.receive(message)


ILLEGAL_FROM_THE_HUB = [
    (proposal(2, 3), "Proposal of epoch 2, but tag 7 is at 1"),
    (reopen(2), "Reopen of epoch 2, but tag 7 is at 1"),
    (proposal(1, 3, num_tokens=5), "5 draft tokens proposed, 4 wanted"),
    (open_tag(2), "a target received Open, which only a target may send"),
    (Proposal(Tag(8), Epoch(1), 3, []), "tag 7 was handed a message of tag 8"),
]


@pytest.mark.parametrize(("message", "sentence"), ILLEGAL_FROM_THE_HUB, ids=[text for _, text in ILLEGAL_FROM_THE_HUB])
def test_an_illegal_message_of_the_hub_raises_and_changes_nothing(
    target: TagSession, message: Proposal, sentence: str
) -> None:
    before = facts(target)
    with pytest.raises(PeerProtocolError, match=sentence):
        target.receive(message)
    assert facts(target) == before


def test_an_unwanted_proposal_raises_and_changes_nothing(target: TagSession) -> None:
    target.send(verdict(2, 3, wanted=0))
    with pytest.raises(PeerProtocolError, match="Proposal is not allowed while tag 7 is idle"):
        target.receive(proposal(2, 5))
    assert target.state is TagState.IDLE


ILLEGAL_HERE = [
    (Role.TARGET, open_tag(1), "sent where tag 7 has epoch 2"),
    (Role.TARGET, verdict(3, 3), "sent where tag 7 has epoch 2"),
    (Role.TARGET, verdict(2, 4), "verdict on 4 tokens, committed are 3"),
    (Role.TARGET, proposal(1, 3), "a target never sends Proposal"),
    (Role.HUB, proposal(1, 2), "proposal from 2 tokens, committed are 3"),
    (Role.HUB, proposal(1, 3, num_tokens=5), "5 draft tokens proposed, 4 wanted"),
    (Role.HUB, proposal(2, 3), "sent where tag 7 has epoch 1"),
    (Role.HUB, verdict(2, 3), "a hub never sends Verdict"),
]


@pytest.mark.parametrize(("role", "message", "sentence"), ILLEGAL_HERE, ids=[text for _, _, text in ILLEGAL_HERE])
def test_an_illegal_message_of_our_own_raises_and_changes_nothing(
    target: TagSession, hub: TagSession, role: Role, message: Open, sentence: str
) -> None:
    session = target if role is Role.TARGET else hub
    before = facts(session)
    with pytest.raises(LocalProtocolError, match=sentence):
        session.send(message)
    assert facts(session) == before


def test_every_state_can_be_reached_and_only_closed_is_final() -> None:
    reached = {TagState.ABSENT}.union(*(row.values() for row in TRANSITIONS.values()))
    assert reached == set(TagState) == set(TRANSITIONS)
    assert [state for state, row in TRANSITIONS.items() if not row] == [TagState.CLOSED]
    assert {event for row in TRANSITIONS.values() for event in row} == set(Event)


def test_a_proposal_deeper_than_asked_for_is_refused_though_it_has_no_more_nodes() -> None:
    session = TagSession(Role.TARGET, Tag(1))
    shape = TreeShape(2, 4)
    session.send(Open(Tag(1), session.next_epoch, [1, 2, 3], 3, SamplingSpec(), 8, shape))
    deep = Proposal(Tag(1), session.epoch, 3, [1, 2, 3])
    with pytest.raises(PeerProtocolError, match="3 tokens deep, 2 steps wanted"):
        session.receive(deep)
    assert session.receive(Proposal(Tag(1), session.epoch, 3, [1, 2, 3], [-1, 0, 0])) is not None


def test_probabilities_that_were_not_asked_for_are_refused() -> None:
    drawn = [Drawn(-1, [5], [5], [1.0])]
    for method, is_legal in (("coupled", False), ("rejection", True)):
        target, hub = TagSession(Role.TARGET, TAG), TagSession(Role.HUB, TAG)
        opened = Open(TAG, Epoch(1), [1, 2, 3], 3, SamplingSpec(), 4, method=method)
        hub.receive(target.send(opened))
        proposed = Proposal(TAG, Epoch(1), 3, [5], drawn=drawn)
        if is_legal:
            assert target.receive(hub.send(proposed)) is proposed
            continue
        with pytest.raises(LocalProtocolError, match="which were not asked for"):
            hub.send(proposed)
        with pytest.raises(PeerProtocolError, match="which were not asked for"):
            target.receive(proposed)
        assert target.state is TagState.DRAFTING


@pytest.mark.parametrize("budget", [DraftBudget.chain(5, 0.3), DraftBudget(12, 4, 3), DraftBudget(12, 4, 3, 0.3)])
def test_what_is_asked_for_arrives_as_it_was_asked_for(budget: DraftBudget) -> None:
    opened = Open(TAG, Epoch(1), [1, 2, 3], 3, SamplingSpec(), budget.num_draft_tokens, TreeShape.of(budget))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(opened), type=Open).budget == budget
    assert TreeShape.of(DraftBudget.chain(5)) is None, "a plain chain needs no shape"


@pytest.mark.parametrize("p_min", [-0.1, 1.1, float("nan"), float("inf")])
def test_a_probability_that_is_none_is_refused(p_min: float) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(TreeShape(2, 4, p_min)), type=TreeShape)
