"""Which proposal answered which request, and when it left: the pairing that the cost of the wire rests on."""

from starspec.bench.wire.processes import RequestLog
from starspec.bench.wire.times import Interval
from starspec.ids import Epoch, LinkId, Tag, TargetId
from starspec.sampling.spec import SamplingSpec
from starspec.wire.messages import Open, Pong, Proposal, Verdict
from starspec.wire.transports.base import Arrival

A, B = LinkId("a"), LinkId("b")


def asked(link: LinkId, tag: int, epoch: int, at_s: float, num_draft_tokens: int = 4) -> Arrival:
    return Arrival(link, TargetId(link), Verdict(Tag(tag), Epoch(epoch), 3, [1], num_draft_tokens), at_s)


def proposed(tag: int, epoch: int) -> Proposal:
    return Proposal(Tag(tag), Epoch(epoch), 4, [1, 2])


def written(log: RequestLog, link: LinkId, at_s: float) -> None:
    log.slice("wire", "reply", at_s - 0.1, at_s, link=link)


def test_each_request_ends_when_its_own_proposal_was_written() -> None:
    log = RequestLog()
    log.note_arrivals([asked(A, 1, 2, 10.0), asked(B, 1, 2, 11.0), asked(A, 7, 5, 12.0)])
    log.note_replies({B: [proposed(1, 2)]})
    log.note_replies({A: [Pong(3), proposed(7, 5)], B: [Pong(4)]})
    log.note_replies({A: [proposed(1, 2)]})
    written(log, B, 20.0)
    written(log, A, 21.0)
    written(log, B, 22.0)
    written(log, A, 23.0)
    assert log.requests == [Interval(11.0, 20.0), Interval(12.0, 21.0), Interval(10.0, 23.0)]


def test_what_travels_together_ends_together() -> None:
    log = RequestLog()
    log.note_arrivals([asked(A, 1, 2, 10.0), asked(A, 2, 2, 10.5)])
    log.note_replies({A: [proposed(1, 2), proposed(2, 2)]})
    written(log, A, 20.0)
    assert log.requests == [Interval(10.0, 20.0), Interval(10.5, 20.0)]


def test_prompts_and_verdicts_that_want_nothing_are_no_requests() -> None:
    log = RequestLog()
    opened = Open(Tag(1), Epoch(1), [1, 2, 3], 3, SamplingSpec(temperature=0.0), 4)
    log.note_arrivals([Arrival(A, TargetId(A), opened, 9.0), asked(A, 2, 2, 10.0, num_draft_tokens=0)])
    log.note_replies({A: [proposed(1, 1), proposed(2, 2)]})
    written(log, A, 20.0)
    log.slice("wire", "Verdict", 1.0, 2.0, link=A)  # of the other direction
    assert log.requests == []


def test_what_was_never_written_is_no_request() -> None:
    log = RequestLog()
    log.note_arrivals([asked(A, 1, 2, 10.0), asked(A, 1, 3, 12.0)])
    log.note_replies({A: [proposed(1, 2)]})
    log.note_replies({A: [proposed(1, 3)]})
    written(log, A, 20.0)
    assert log.requests == [Interval(10.0, 20.0)]
