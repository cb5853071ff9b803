"""StarSD's quantities, counted by hand on a virtual clock."""

from __future__ import annotations

import pytest
from hub_toys import Slices, ToyStar, ToyTag
from hypothesis import given
from hypothesis import strategies as st

from starspec.hub.recorder import WINDOW_S, StatsRecorder, _Span, _Window
from starspec.hub.round import MadeProposal
from starspec.ids import LinkId, Tag
from starspec.policy.draft_batch import DraftStep, ScheduledSequence, TagKey
from starspec.policy.fairness import jains_index
from starspec.stats import HubStats

STEP_S = 0.25
S = LinkId("s")


def draft_step(*prefill: bool) -> DraftStep:
    return DraftStep(tuple(ScheduledSequence(TagKey(S, Tag(tag)), 1, each) for tag, each in enumerate(prefill)))


def proposal(made_s: float, link_id: LinkId, num_draft_tokens: int) -> MadeProposal:
    """One that took no draft step after its request."""
    return MadeProposal(
        TagKey(link_id, Tag(1)),
        num_draft_tokens,
        arrived_s=made_s,
        made_s=made_s,
        queue_s=0.0,
        service_s=0.0,
        has_service=False,
        has_prefill=False,
        num_steps=0,
        num_spared=0,
        round_s=None,
    )


@pytest.fixture
def slow_star() -> ToyStar:
    """A hub whose draft steps take STEP_S, with targets a and b."""
    star = ToyStar("a", "b")
    star.runner.step_s = STEP_S
    return star


def test_service_is_d_draft_steps_and_a_draft_step_is_t_s(slow_star: ToyStar) -> None:
    slow_star.send("a", ToyTag(1, [1, 2]).open(4))
    ((_, proposal),) = slow_star.drain()
    stats = slow_star.hub.stats
    assert (stats.t_s.value, stats.service.value, stats.num_draft_steps) == (STEP_S, 4 * STEP_S, 4)
    assert (proposal.queue_s, proposal.service_s) == (0.0, 4 * STEP_S)


def test_the_queueing_time_runs_from_arrival_to_the_first_draft_step(slow_star: ToyStar) -> None:
    slow_star.send("a", ToyTag(1, [1, 2]).open(2))
    arrived_s = slow_star.clock()
    slow_star.step()
    slow_star.hub.handle(LinkId("b"), ToyTag(1, [3, 4]).open(2), arrived_s)  # came during that draft step
    replies = dict(slow_star.drain())
    assert replies["b"].queue_s == STEP_S
    assert slow_star.hub.stats.queue.value == STEP_S / 2  # mean over both


def test_prefill_counts_as_drafting_but_neither_as_t_s_nor_as_s(slow_star: ToyStar) -> None:
    slow_star.send("a", ToyTag(1, [1] * 20).open(2))
    ((_, proposal),) = slow_star.drain()
    stats = slow_star.hub.stats
    assert (stats.num_draft_steps, stats.t_s.count, stats.service.count) == (3, 2, 0)
    assert stats.busy_s == 3 * STEP_S
    assert proposal.service_s == 3 * STEP_S  # but a target must be able to take it off its round trip


def test_an_answer_that_took_no_draft_step_is_no_sample_of_queue_and_service(slow_star: ToyStar) -> None:
    slow_star.send("a", ToyTag(1, [1] * 100).open(2))  # longer than the draft's context
    ((_, proposal),) = slow_star.drain()
    stats = slow_star.hub.stats
    assert (proposal.token_ids, proposal.queue_s, proposal.service_s) == ([], 0.0, 0.0)
    assert (stats.num_proposals, stats.queue.count, stats.service.count) == (1, 0, 0)


def test_idle_is_time_with_tags_open_and_nothing_to_draft(slow_star: ToyStar) -> None:
    hub, clock, tag = slow_star.hub, slow_star.clock, ToyTag(1, [1, 2])
    clock.advance(7.0)  # nobody is there: that is not idling
    slow_star.send("a", tag.open(2))
    slow_star.drain()
    clock.advance(1.5)
    assert hub.status(clock()).stats.idle_s == 1.5  # of a gap that is not over
    slow_star.send("a", tag.verdict([5], 2))
    slow_star.drain()
    slow_star.send("a", tag.close())
    clock.advance(9.0)
    stats = hub.status(clock()).stats
    assert (stats.idle_s, stats.busy_s) == (1.5, 4 * STEP_S)


def test_a_request_that_came_before_the_draft_step_ended_leaves_no_idle_gap() -> None:
    slices = Slices()
    recorder = StatsRecorder(HubStats(), 0.0, slices)
    recorder.mark(2.0, is_idle=True)
    recorder.mark(1.5, is_idle=False)
    recorder.refresh(2.0)
    assert slices.all == []


def test_load_and_proposal_rate_look_at_the_last_seconds_only() -> None:
    stats = HubStats()
    recorder = StatsRecorder(stats, 0.0)
    recorder.add_step(0.0, 1.0, draft_step(False))
    recorder.add_proposal(proposal(1.0, S, 4))
    recorder.mark(1.0, is_idle=True)
    recorder.refresh(2.0)
    assert (stats.load, stats.proposals_per_s) == (0.5, 0.5)
    recorder.mark(10.0, is_idle=False)
    recorder.add_step(10.0, 11.0, draft_step(False))
    recorder.add_proposal(proposal(11.0, S, 4))
    recorder.refresh(11.0)
    assert (stats.load, stats.proposals_per_s) == (1.0 / WINDOW_S, 1.0 / WINDOW_S)


def test_an_empty_proposal_is_no_draft_round() -> None:
    stats = HubStats()
    recorder = StatsRecorder(stats, 0.0)
    recorder.add_proposal(proposal(1.0, S, 0))
    recorder.refresh(1.0)
    assert (stats.num_proposals, stats.proposals_per_s) == (1, 0.0)


def test_fairness_is_of_what_targets_got_whether_they_waited_for_it_or_not() -> None:
    stats = HubStats()
    recorder = StatsRecorder(stats, 0.0)
    ahead, asked = LinkId("ahead"), LinkId("asked")
    recorder.add_step_ahead(0.0, 1.0, 1, 4)
    recorder.add_proposal(proposal(1.0, ahead, 4))  # a hit: nobody waited for a draft step of it
    recorder.add_step(1.0, 2.0, DraftStep((ScheduledSequence(TagKey(asked, Tag(1)), 4, is_prefill=False),)))
    recorder.add_proposal(proposal(2.0, asked, 4))
    recorder.refresh(2.0, {ahead: 1.0, asked: 1.0})
    assert stats.fairness == 1.0
    recorder.refresh(2.0, {ahead: 1.0, asked: 3.0})
    assert stats.fairness == pytest.approx(jains_index([4.0, 4.0 / 3.0]))


def test_idle_time_that_was_told_is_never_taken_back() -> None:
    stats = HubStats()
    recorder = StatsRecorder(stats, 0.0)
    recorder.mark(1.0, is_idle=True)
    recorder.refresh(10.0)
    recorder.mark(9.5, is_idle=False)  # the request had come, and was not read yet
    recorder.refresh(10.1)
    assert stats.idle_s == 9.0


def test_old_spans_are_forgotten() -> None:
    recorder = StatsRecorder(HubStats(), 0.0)
    for second in range(1000):
        recorder.add_step(second, second + 0.5, draft_step(False))
    assert len(recorder._busy._spans) <= WINDOW_S + 1


@given(st.lists(st.tuples(st.floats(0.0, 2.0), st.floats(0.0, 2.0)), max_size=40), st.floats(0.0, 5.0))
def test_a_window_is_the_sum_of_what_lies_in_it(steps: list[tuple[float, float]], later_s: float) -> None:
    """Gaps and lengths of spans; looked at after each, and once more when nothing has come for a while."""
    window, spans, now = _Window(), [], 0.0
    for gap_s, length_s in [*steps, (later_s, 0.0)]:
        spans.append(_Span(now + gap_s, now + gap_s + length_s))
        now = spans[-1].end_s
        window.add(spans[-1])
        since_s = now - WINDOW_S
        assert window.seconds(since_s) == pytest.approx(sum(each.seconds_since(since_s) for each in spans), abs=1e-9)
        assert window.count(since_s) == sum(each.end_s > since_s for each in spans)
    assert window.seconds(now + WINDOW_S) == window.count(now + WINDOW_S) == 0


def test_the_trace_shows_draft_steps_prefill_and_idle_gaps() -> None:
    slices = Slices()
    recorder = StatsRecorder(HubStats(), 0.0, slices)
    recorder.add_step(0.0, 1.0, draft_step(False, True))
    recorder.add_step(1.0, 2.0, draft_step(False))
    recorder.mark(2.0, is_idle=True)
    recorder.mark(2.5, is_idle=True)
    recorder.mark(3.0, is_idle=False)
    assert slices.all == [
        ("draft", "prefill", 0.0, 1.0),
        ("draft", "draft step", 1.0, 2.0),
        ("idle", "idle", 2.0, 3.0),
    ]


def test_the_status_is_a_copy(slow_star: ToyStar) -> None:
    status = slow_star.hub.status(0.0)
    slow_star.send("a", ToyTag(1, [1, 2]).open(2))
    slow_star.drain()
    assert (status.draft_name, status.stats.num_tags, status.stats.t_s.count) == ("toy", 0, 0)
