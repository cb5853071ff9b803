"""The inference loop over the in-memory link: order, containment, statistics."""

from __future__ import annotations

from functools import partial

import pytest
from hub_toys import SAMPLED, ToyRunner, ToyTag
from structlog.testing import capture_logs

from starspec.config import HubConfig, RunAhead
from starspec.hub import children
from starspec.hub.causal import CausalDrafter
from starspec.hub.handshake import HubTerms, admit
from starspec.hub.hub import DraftHub
from starspec.hub.loop import HubLoop
from starspec.ids import LinkId, TargetId
from starspec.log_limit import INTERVAL_S, LINES
from starspec.wire.messages import PROTOCOL_VERSION, Fault, Hello, HubToTarget, Ping, Pong, Reopen
from starspec.wire.transports.base import Arrival, Joined
from starspec.wire.transports.faulty_channel import VirtualClock
from starspec.wire.transports.memory import MemoryHub, MemoryTarget

TERMS = HubTerms(draft_name="toy", vocab_fingerprint="f", max_targets=4, max_draft_tokens=8, lease_s=10.0)


class LoopStar:
    """A hub whose loop turns whenever a target waits."""

    def __init__(self, run_ahead: RunAhead = "off") -> None:
        self.clock = VirtualClock()
        self.runner = ToyRunner()
        config = HubConfig(max_tags=16, max_draft_tokens=8, prefill_chunk=16, run_ahead=run_ahead)
        self.hub = DraftHub(CausalDrafter(self.runner), self.clock, config)
        self.transport = MemoryHub(partial(admit, TERMS), self.clock)
        self.loop = HubLoop(self.hub, self.transport, self.clock)

    def connect(self, name: str) -> MemoryTarget:
        return self.transport.connect(Hello(PROTOCOL_VERSION, TargetId(name), 32, "f"), self.loop.run_once)

    def turns(self) -> None:
        while self.loop.run_once():
            self.hub.check_integrity()


@pytest.fixture
def star() -> LoopStar:
    return LoopStar()


def test_targets_are_answered_each_on_their_own_link(star: LoopStar) -> None:
    links = [star.connect("one"), star.connect("two")]
    tags = [ToyTag(1, [1, 2]), ToyTag(1, [3, 4])]
    for link, tag in zip(links, tags, strict=True):
        link.send([tag.open(3)])
    for link, tag in zip(links, tags, strict=True):
        (proposal,) = link.receive(1.0)
        assert proposal.token_ids == tag.expected(3)
    assert [len(draft_step) for draft_step in star.runner.draft_steps] == [2, 2, 2]


def test_what_arrives_while_a_draft_step_runs_is_in_the_next_one(star: LoopStar) -> None:
    one, two = star.connect("one"), star.connect("two")
    one.send([ToyTag(1, [1, 2]).open(3)])
    star.loop.run_once()
    two.send([ToyTag(1, [3, 4]).open(3)])
    star.loop.run_once()
    assert [len(draft_step) for draft_step in star.runner.draft_steps] == [1, 2]


def test_what_ends_a_draft_step_ahead_is_handled_next() -> None:
    star, tag = LoopStar(run_ahead="chain"), ToyTag(1, [1, 2])
    link = star.connect("one")
    link.send([tag.open(3)])
    (proposal,) = link.receive(1.0)
    assert tag.receive(proposal)
    wrong = (proposal.token_ids[0] + 1) % 8
    star.runner.on_forward = lambda: link.send([tag.verdict([wrong], 3)])
    star.loop.run_once()
    star.runner.on_forward = None
    assert star.hub.stats.num_ahead_nodes == 0, "given up"
    (proposal,) = link.receive(1.0)
    assert proposal.token_ids == tag.expected(3)[:1]


def test_what_is_there_is_sent_while_a_draft_step_runs_ahead() -> None:
    star, tag = LoopStar(run_ahead="chain"), ToyTag(1, [1, 2])
    link = star.connect("one")
    link.send([tag.open(3)])
    (proposal,) = link.receive(1.0)
    assert tag.receive(proposal)
    star.loop.run_once()
    first, second = tag.expected(2)
    star.runner.on_forward = lambda: link.send([tag.verdict([first], 3)])
    star.loop.run_once()
    star.runner.on_forward = None
    (proposal,) = link.receive(0.0)
    assert proposal.token_ids == [second]
    assert star.hub.stats.num_outcomes == 0, "the verdict is handled after the draft step"
    assert tag.receive(proposal)
    link.send([tag.verdict(tag.expected(1), 3)])
    (proposal,) = link.receive(1.0)
    assert proposal.token_ids == tag.expected(3)[: len(proposal.token_ids)] != []
    assert star.hub.stats.num_hits == 2


def test_a_verdict_that_cannot_be_answered_ahead_ends_no_draft_step(monkeypatch: pytest.MonkeyPatch) -> None:
    star, tags = LoopStar(run_ahead="chain"), [ToyTag(1, [1, 2]), ToyTag(2, [3, 4])]
    link = star.connect("one")
    for tag in tags:
        link.send([tag.open(3)])
        (proposal,) = link.receive(1.0)
        assert tag.receive(proposal)
    star.loop.run_once()

    def broken(*what: object) -> None:
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr("starspec.hub.sequence.DraftSequence.after_verdict", broken)
    star.runner.on_forward = lambda: link.send([tags[0].verdict(tags[0].expected(1), 3)])
    star.loop.run_once()
    star.runner.on_forward = None
    assert star.hub.status(star.clock()).stats.num_tags == 2
    (proposal,) = link.receive(1.0)
    assert proposal.token_ids == tags[0].expected(3)[: len(proposal.token_ids)] != [], "after the draft step"


def test_a_turn_without_anything_to_do_says_so(star: LoopStar) -> None:
    star.connect("one")
    star.turns()
    assert star.loop.run_once() is False


def test_a_target_that_disconnects_frees_its_rows(star: LoopStar) -> None:
    link = star.connect("one")
    link.send([ToyTag(1, [1, 2]).open(3)])
    star.loop.run_once()
    link.close()
    star.turns()
    assert (star.runner.cache.rows.leased, star.hub.status(star.clock()).stats.num_targets) == (frozenset(), 0)


def test_a_failing_forward_is_survived_and_the_target_is_asked_to_open_its_tag_anew(star: LoopStar) -> None:
    link, tag = star.connect("one"), ToyTag(1, [1, 2])
    star.runner.is_broken = True
    link.send([tag.open(3)])
    (reopen,) = link.receive(1.0)
    assert tag.receive(reopen)
    star.runner.is_broken = False
    star.clock.advance(2.0)
    link.send([tag.open(3)])
    (proposal,) = link.receive(1.0)
    assert proposal.token_ids == tag.expected(3)


def test_a_law_that_fails_costs_its_own_tag_only_and_no_pause(star: LoopStar, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise ValueError("no such law")

    monkeypatch.setattr(children, "propose_token", fail)
    link, hit, spared = star.connect("one"), ToyTag(1, [1, 2], SAMPLED), ToyTag(2, [3, 4])
    with capture_logs() as logs:
        link.send([hit.open(2), spared.open(2)])
        replies = {type(each).__name__: each for each in (*link.receive(1.0), *link.receive(1.0))}
    assert (replies["Reopen"].tag, replies["Proposal"].token_ids) == (1, spared.expected(2))
    assert [each["event"].partition(";")[0] for each in logs] == ["drafts of some tags failed"]
    newcomer = ToyTag(3, [5])
    link.send([newcomer.open(2)])
    assert [each.token_ids for each in link.receive(1.0)] == [newcomer.expected(2)]


def test_a_message_that_breaks_the_hub_costs_its_own_tag_only(star: LoopStar, monkeypatch: pytest.MonkeyPatch) -> None:
    link, hit, spared = star.connect("one"), ToyTag(1, [1, 2]), ToyTag(2, [3, 4])
    link.send([hit.open(1), spared.open(1)])
    tokens = {message.tag: message.token_ids for message in link.receive(1.0)}
    note_commit = star.hub._drafter.note_commit

    def broken_for_one(sequence: object, *what: object) -> None:
        if sequence.key.tag == 1:
            raise RuntimeError("a bug of ours")
        note_commit(sequence, *what)

    monkeypatch.setattr(star.hub._drafter, "note_commit", broken_for_one)
    link.send([hit.verdict(tokens[1], 1), spared.verdict(tokens[2], 1)])
    replies: list[HubToTarget] = []
    while messages := link.receive(1.0):
        replies += messages
    star.hub.check_integrity()
    assert {type(message).__name__: message.tag for message in replies} == {"Reopen": 1, "Proposal": 2}
    assert all(tag.receive(message) for tag in (hit, spared) for message in replies if message.tag == tag.session.tag)


def test_an_open_that_breaks_the_hub_leaves_a_tag_that_can_be_opened_again(
    star: LoopStar, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, tag = star.connect("one"), ToyTag(1, [1, 2])
    with monkeypatch.context() as patch:
        patch.setattr("starspec.hub.hub.DraftSequence", None)
        link.send([tag.open(1)])
        (reopen,) = link.receive(1.0)
    assert isinstance(reopen, Reopen)
    assert tag.receive(reopen)
    link.send([tag.open(1)])
    (proposal,) = link.receive(1.0)
    assert proposal.token_ids == tag.expected(1)


def test_an_event_that_breaks_the_hub_stops_nobody(star: LoopStar) -> None:
    link = star.connect("one")
    star.turns()
    link_id = link.welcome.link_id
    twice = Arrival(link_id, TargetId("one"), Joined(Hello(PROTOCOL_VERSION, TargetId("one"), 32, "f")), 0.0)
    star.transport._arrivals.append(twice)
    link.send([Ping(1)])
    assert link.receive(1.0) == [Pong(1)]


def test_a_targets_fault_is_noted_and_nothing_else(star: LoopStar) -> None:
    link = star.connect("one")
    link.send([Fault("what was that"), Ping(1)])
    assert link.receive(1.0) == [Pong(1)]


def test_faults_and_failures_that_a_target_causes_do_not_fill_the_log(
    star: LoopStar, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = star.connect("one")
    with capture_logs() as logs:
        link.send([Fault("what was that")] * 100)
        star.turns()
        monkeypatch.setattr(star.hub, "handle", None)  # whatever comes, it fails
        link.send([Ping(number) for number in range(100)])
        star.turns()
    assert len(logs) == 2 * LINES
    star.clock.advance(INTERVAL_S)
    with capture_logs() as logs:
        link.send([Fault("what was that")])
        star.turns()
    assert [each["num_left_out"] for each in logs] == [100 - LINES]


def test_a_message_for_a_link_that_is_gone_is_dropped(star: LoopStar) -> None:
    star.transport._arrivals.append(Arrival(LinkId("gone"), TargetId("x"), ToyTag(1, [1]).open(1), 0.0))
    star.turns()
    assert star.hub.status(star.clock()).stats.num_tags == 0


def test_the_status_has_what_the_transport_kept_away_from_the_hub(star: LoopStar) -> None:
    star.transport.stats.num_frames_rejected = 3
    star.transport.stats.num_leases_expired = 2
    star.transport.stats.num_refused = 4
    star.transport.stats.num_dropped = 5
    stats = star.loop.status().stats
    assert (stats.num_frames_rejected, stats.num_leases_expired) == (3, 2)
    assert (stats.num_refused, stats.num_dropped) == (4, 5)
