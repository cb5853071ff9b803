"""A hub may send what it was asked for, and its texts are harmless."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from starspec.errors import PeerProtocolError
from starspec.ids import Epoch, Tag
from starspec.quoting import MAX_TEXT_LEN, readable
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.budget import DraftBudget
from starspec.wire.codec import MAX_ANSWER_BYTES, MAX_MESSAGES, SHORT_FRAME_BYTES, Decoder, encode, max_answer_bytes
from starspec.wire.messages import (
    Drawn,
    Fault,
    Goodbye,
    HubPublicReply,
    HubToTarget,
    Message,
    Open,
    Ping,
    Pong,
    Proposal,
    Refused,
    Rejected,
    TargetToGateway,
    Top,
    Verdict,
    Welcome,
)
from starspec.wire.transports.hub_inbox import NONSENSE_BURST, UNASKED_BURST, HubInbox

NASTY = "\x1b[2J\r\nERROR all is lost \u202e" * 100


def opened(num_draft_tokens: int, method: str = "coupled") -> Open:
    return Open(Tag(1), Epoch(1), [1], 1, SamplingSpec(), num_draft_tokens, method=method)  # type: ignore[arg-type]


def longest(num_nodes: int, *, is_drawn: bool, num_stated: int = 0) -> bytes:
    """The longest proposal of so many nodes; with advice if any likeliest tokens are to be stated."""
    top, ids = 2**31 - 1, [2**31 - 1 - each for each in range(num_nodes)]
    support = [top - each for each in range(64)]
    drawn = [Drawn(node, support[:16], support, [1 / 64] * 64) for node in range(-1, num_nodes)]
    proposal = Proposal(Tag(2**53 - 1), Epoch(2**53 - 1), top, ids, [-1] * num_nodes, 1e9, 1e9)
    if num_stated:
        tops = [Top(node, support[:num_stated], [-1e-9] * num_stated) for node in range(-1, num_nodes)]
        proposal = msgspec.structs.replace(proposal, tops=tops, logprobs=[-1e-9] * num_nodes)
    return encode(msgspec.structs.replace(proposal, drawn=drawn) if is_drawn else proposal)


@pytest.mark.parametrize("is_drawn", [False, True])
@pytest.mark.parametrize("num_nodes", [0, 1, 5, 64])
@pytest.mark.parametrize("num_stated", [0, 8, 32])
def test_every_honest_answer_fits(num_nodes: int, is_drawn: bool, num_stated: int) -> None:
    budget = replace(DraftBudget.chain(num_nodes), has_logprobs=num_stated > 0, num_stated=num_stated)
    frame = longest(num_nodes, is_drawn=is_drawn, num_stated=num_stated)
    assert len(frame) <= max_answer_bytes(budget, is_drawn=is_drawn) <= MAX_ANSWER_BYTES


def test_an_answer_longer_than_the_request_allows_is_not_decoded() -> None:
    inbox = HubInbox(100)
    inbox.note_sent(opened(4))
    frame = b"\xc1" * (max_answer_bytes(DraftBudget.chain(4), is_drawn=False) + 1)  # 0xc1 starts no MessagePack value
    messages, [error] = inbox.decode([frame], 1.0)
    assert not messages
    assert "the limit is" in str(error)
    inbox.note_sent(opened(4, "rejection"))
    _, [error] = inbox.decode([frame], 1.0)
    assert "the limit is" not in str(error)


def test_a_hub_may_answer_everything_at_once_however_much_it_is() -> None:
    inbox = HubInbox(100)
    for number in range(2, 2000):
        inbox.note_sent(Verdict(Tag(1), Epoch(number), 1, [1], 4))
        inbox.note_sent(Ping(number))
    for _ in range(4):
        messages, errors = inbox.decode([encode(Pong(1))] * 999, 1.0)
        assert (len(messages), errors, inbox.breach) == (999, [], "")


def test_a_hub_that_sends_more_than_it_was_asked_for_breaks_the_rules() -> None:
    inbox = HubInbox(100)
    num_taken = 0
    while not inbox.breach:
        num_taken += len(inbox.decode([encode(Pong(1))], 1.0)[0])
    assert num_taken == UNASKED_BURST
    assert "more than it was asked for" in inbox.breach


def test_a_multipart_without_end_breaks_the_rules() -> None:
    inbox = HubInbox(100)
    for number in range(2 * MAX_MESSAGES):
        inbox.note_sent(Ping(number))
    assert inbox.decode([encode(Pong(1))] * (MAX_MESSAGES + 1), 1.0) == ([], [])
    assert inbox.breach


def test_nonsense_now_and_then_is_dropped_and_again_and_again_ends_the_link() -> None:
    inbox = HubInbox(100)
    for second in range(100):
        assert inbox.decode([b"?"], float(second))[1]
        assert not inbox.breach
    for _ in range(int(NONSENSE_BURST) + 1):
        inbox.decode([b"?"], 100.0)
    assert "breaks the protocol again and again" in inbox.breach


@pytest.mark.parametrize(
    ("union", "message"),
    [
        (HubToTarget, Fault(NASTY)),
        (HubToTarget, Goodbye(NASTY)),
        (HubPublicReply, Refused("full", NASTY)),
        (HubPublicReply, Welcome(2, "l", 1, NASTY, 4, 10.0)),  # type: ignore[arg-type]
        (TargetToGateway, Rejected("r", NASTY)),  # type: ignore[arg-type]
    ],
    ids=lambda each: type(each).__name__,
)
def test_texts_of_peers_are_short_and_printable(union: object, message: Message) -> None:
    decoded = Decoder(union).decode(encode(message))
    texts = [value for value in msgspec.structs.asdict(decoded).values() if isinstance(value, str)]
    assert all(len(text) <= MAX_TEXT_LEN and text.isprintable() for text in texts)
    assert any("\\x1b[2J\\r\\nERROR all is lost" in text for text in texts)


def test_so_are_errors_that_quote_a_frame() -> None:
    with pytest.raises(PeerProtocolError) as caught:
        Decoder(HubToTarget).decode(msgspec.msgpack.encode({"type": NASTY}))
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) <= MAX_TEXT_LEN + 60


def test_a_text_that_is_fine_stays_as_it_is() -> None:
    text = "der Hub ist voll: später"
    assert readable(text) == text
    assert readable(readable(NASTY)) == readable(NASTY)
    assert len(encode(Fault("\U0001f600" * MAX_TEXT_LEN))) < SHORT_FRAME_BYTES
