"""Hubs that are hostile or mad, as frames behind a real `ZmqTarget`, under one virtual clock.

Everything that a hub can make a target do costs virtual time: each frame that the target reads, each byte of it, and
each token that it sends. So a flood slows the target here as it does on a real machine.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import msgspec
from toy import VOCAB_SIZE, next_of

from starspec.ids import Epoch, LinkId, Tag, TargetId
from starspec.wire.codec import MAX_ANSWER_BYTES, Decoder, encode
from starspec.wire.messages import (
    PROTOCOL_VERSION,
    Close,
    Fault,
    Goodbye,
    HandshakeMessage,
    Hello,
    Message,
    Open,
    Ping,
    Pong,
    Proposal,
    Refused,
    Reopen,
    TargetToHub,
    Verdict,
    Welcome,
)
from starspec.wire.session import Role, TagSession
from starspec.wire.transports.zmq_target import ZmqTarget

DRAFT_S = 0.004  # from request to proposal
JUST_IN_TIME_S = 0.12  # a target waits for so long for a proposal, and hardly longer
DOUBT_S = 0.07  # less than two tokens are worth to the target
FRAME_S = 20e-6  # what it costs a target to read and decode a frame,
BYTE_S = 10e-9  # and each of its bytes
SENT_S = 20e-6  # what it costs to send a message,
TOKEN_S = 1e-6  # and each of its tokens: more than in truth, so that an `Open` shows
CONNECT_S = 2e-3  # what it costs to open a socket
QUEUE_LEN = 512  # multiparts that wait at the target's end
Frames = list[bytes]


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class FakeSocket:
    """As TargetSocket."""

    def __init__(
        self,
        clock: Clock,
        hear: Callable[[FakeSocket, Frames], None],
        spam: Callable[[FakeSocket], None],
    ) -> None:
        self._clock, self._hear, self._spam = clock, hear, spam
        self.arriving: deque[tuple[float, Frames]] = deque()
        self.is_broken = self.is_closed = self.has_cut = False
        clock.now += CONNECT_S

    def put(self, frames: Frames, delay_s: float = 0.0) -> None:
        """The hub sends a multipart, which is lost if the queue is full or the connection broken."""
        if any(len(frame) > MAX_ANSWER_BYTES for frame in frames):
            self.is_broken = True  # as ZeroMQ does, before it has read the frame
        elif len(self.arriving) < QUEUE_LEN and not self.is_broken:
            self.arriving.append((self._clock.now + delay_s, frames))

    def send(self, frames: Sequence[bytes]) -> bool:
        if not self.is_broken:
            self._hear(self, list(frames))
        return True

    def read(self) -> Iterator[Frames]:
        while not self.is_closed:
            self._spam(self)
            ready = next((each for each in self.arriving if each[0] <= self._clock.now), None)
            if ready is None:
                return
            self.arriving.remove(ready)
            self._clock.now += sum(FRAME_S + BYTE_S * len(frame) for frame in ready[1])
            yield ready[1]

    def wait(self, timeout_s: float) -> None:
        self._spam(self)
        due_s = min((at_s for at_s, _ in self.arriving), default=float("inf"))
        self._clock.now = max(self._clock.now, min(due_s, self._clock.now + timeout_s))

    def events(self) -> Iterator[tuple[int, int]]:
        return iter([(1, 1)] if self.is_broken else [])

    def close(self, linger_ms: int = 0) -> None:
        self.is_closed = True


class FakeNet:
    """As SocketFactory: the only host is the hub."""

    def __init__(self, hub: GoodHub, clock: Clock) -> None:
        self._hub, self._clock = hub, clock
        self.num_connects = 0

    def has_new_key(self) -> bool:
        return False

    def connect_public(self, endpoint: str) -> FakeSocket:
        self.num_connects += 1
        return FakeSocket(self._clock, self._hub.hear_public, self._hub.spam_public)

    def connect_own(self, endpoint: str, identity: bytes) -> FakeSocket:
        self.num_connects += 1
        self._hub.begin_link()
        return FakeSocket(self._clock, self._hub.hear, self._hub.spam)

    def close(self) -> None:
        pass


class GoodHub:
    """Drafts what the toy target says next. The others derive from it."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.dice = random.Random(3)
        self.begun_s = clock.now
        self.num_opens = 0
        self.begin_link()

    def begin_link(self) -> None:
        self.sessions: dict[Tag, TagSession] = {}
        self.ids: dict[Tag, list[int]] = {}

    def hear_public(self, socket: FakeSocket, frames: Frames) -> None:
        hello = Decoder(HandshakeMessage).decode(frames[0])
        assert isinstance(hello, Hello)
        self.greet(socket)

    def greet(self, socket: FakeSocket) -> None:
        self.say(socket, self.terms())

    def terms(self) -> Welcome:
        return Welcome(PROTOCOL_VERSION, LinkId("l"), 1, "toy", 64, 10.0)

    def hear(self, socket: FakeSocket, frames: Frames) -> None:
        for frame in frames:
            message: TargetToHub = Decoder(TargetToHub).decode(frame)
            num_tokens = len(message.token_ids) if isinstance(message, Open | Verdict) else 0
            self.clock.now += SENT_S + TOKEN_S * num_tokens
            self.handle(socket, message)

    def handle(self, socket: FakeSocket, message: TargetToHub) -> None:
        match message:
            case Ping(sequence=sequence):
                self.say(socket, Pong(sequence))
            case Open(tag=tag) | Verdict(tag=tag):
                self.num_opens += isinstance(message, Open)
                session = self.sessions.setdefault(tag, TagSession(Role.HUB, tag))
                if session.receive(message) is None:
                    if session.gap:
                        self.say(socket, session.send(session.gap))
                    return
                self.ids[tag] = [*(self.ids[tag] if isinstance(message, Verdict) else []), *message.token_ids]
                if message.num_draft_tokens:
                    self.answer(socket, session, message.num_draft_tokens)
            case Close(tag=tag):
                self.sessions.pop(tag, None)
                self.ids.pop(tag, None)

    def answer(self, socket: FakeSocket, session: TagSession, num: int) -> None:
        self.say(socket, session.send(self.proposal(session, num)), DRAFT_S)

    def proposal(self, session: TagSession, num: int, is_wrong: bool = False) -> Proposal:
        path = list(self.ids[session.tag])
        for _ in range(num):
            path.append((next_of(path) + is_wrong) % VOCAB_SIZE)
        return Proposal(session.tag, session.epoch, session.prefix_len, path[-num:])

    def say(self, socket: FakeSocket, message: Message, delay_s: float = 0.0) -> None:
        socket.put([encode(message)], delay_s)

    def spam(self, socket: FakeSocket) -> None:
        """What it sends to a target's own port all the time."""

    def spam_public(self, socket: FakeSocket) -> None:
        """The same on the public port."""


class Silent(GoodHub):
    def hear_public(self, socket: FakeSocket, frames: Frames) -> None:
        pass


class NeverAttaches(GoodHub):
    def handle(self, socket: FakeSocket, message: TargetToHub) -> None:
        pass


class FloodsPublicPort(GoodHub):
    def spam_public(self, socket: FakeSocket) -> None:
        socket.put([encode(Fault("?"))])

    def greet(self, socket: FakeSocket) -> None:
        pass


class OtherVersion(GoodHub):
    def greet(self, socket: FakeSocket) -> None:
        self.say(socket, Refused.for_version(PROTOCOL_VERSION + 1))


class RefusesAtOnce(GoodHub):
    def greet(self, socket: FakeSocket) -> None:
        self.say(socket, Refused("full", "no", retry_after_s=0.0))


class ChangesTerms(GoodHub):
    """And says goodbye soon, so that the next terms come."""

    def terms(self) -> Welcome:
        num = self.dice.choice([0, 1, 64])
        return Welcome(
            PROTOCOL_VERSION, LinkId("l"), 1, "toy", num, 0.1, is_plain_speed_wanted=self.dice.random() < 0.5
        )

    def answer(self, socket: FakeSocket, session: TagSession, num: int) -> None:
        self.say(socket, Goodbye("other terms"), 0.001)


class Dies(GoodHub):
    """In the middle of its first answer, whenever it is found."""

    def answer(self, socket: FakeSocket, session: TagSession, num: int) -> None:
        socket.is_broken = True


class Mute(GoodHub):
    """Answers pings and nothing else."""

    def answer(self, socket: FakeSocket, session: TagSession, num: int) -> None:
        pass


class Frozen(GoodHub):
    """Completes the handshake, and is silent then."""

    def handle(self, socket: FakeSocket, message: TargetToHub) -> None:
        if message == Ping(0):
            super().handle(socket, message)


class Slow(GoodHub):
    """Right, and later than any wait."""

    def answer(self, socket: FakeSocket, session: TagSession, num: int) -> None:
        self.say(socket, session.send(self.proposal(session, num)), 1.0)


class Wrong(GoodHub):
    def answer(self, socket: FakeSocket, session: TagSession, num: int) -> None:
        self.say(socket, session.send(self.proposal(session, num, is_wrong=True)), DRAFT_S)


class WrongJustInTime(GoodHub):
    def answer(self, socket: FakeSocket, session: TagSession, num: int) -> None:
        self.say(socket, session.send(self.proposal(session, num, is_wrong=True)), JUST_IN_TIME_S)


class OneTokenJustInTime(GoodHub):
    """Each proposal is right, and short for the time it took."""

    def answer(self, socket: FakeSocket, session: TagSession, num: int) -> None:
        self.say(socket, session.send(self.proposal(session, 1)), JUST_IN_TIME_S)


class GoodAndBadByTurns(GoodHub):
    def answer(self, socket: FakeSocket, session: TagSession, num: int) -> None:
        is_good = int(self.clock.now - self.begun_s) % 4 < 1
        proposal = self.proposal(session, num, is_wrong=not is_good)
        self.say(socket, session.send(proposal), DRAFT_S if is_good else JUST_IN_TIME_S)


class FoundAndLostByTurns(GoodHub):
    """Answers for half a second, and then not even pings."""

    def handle(self, socket: FakeSocket, message: TargetToHub) -> None:
        if (self.clock.now - self.begun_s) % 1.0 < 0.5:
            super().handle(socket, message)


class Reopens(GoodHub):
    def answer(self, socket: FakeSocket, session: TagSession, num: int) -> None:
        self.say(socket, Reopen(session.tag, session.epoch))


class ReopensAfterProposals(GoodHub):
    def answer(self, socket: FakeSocket, session: TagSession, num: int) -> None:
        super().answer(socket, session, num)
        self.say(socket, Reopen(session.tag, session.epoch), 2 * DRAFT_S)


class ReopensUnasked(GoodHub):
    def spam(self, socket: FakeSocket) -> None:
        for session in self.sessions.values():
            socket.put([encode(Reopen(session.tag, max(Epoch(1), session.epoch)))])


class Declines(GoodHub):
    def answer(self, socket: FakeSocket, session: TagSession, num: int) -> None:
        self.say(socket, Proposal(session.tag, session.epoch, session.prefix_len, [], retry_after_s=1e-9))


class Empty(GoodHub):
    def answer(self, socket: FakeSocket, session: TagSession, num: int) -> None:
        self.say(socket, Proposal(session.tag, session.epoch, session.prefix_len, []), JUST_IN_TIME_S)


class Doubts(GoodHub):
    """Drafts for long, and proposes nothing in the end."""

    def answer(self, socket: FakeSocket, session: TagSession, num: int) -> None:
        nothing = Proposal(session.tag, session.epoch, session.prefix_len, [], service_s=DOUBT_S)
        self.say(socket, session.send(nothing), DOUBT_S)


class DoubtsAllButOne(Doubts):
    """For one tag it proposes one token, which is wrong."""

    def answer(self, socket: FakeSocket, session: TagSession, num: int) -> None:
        if session.tag != 1:
            super().answer(socket, session, num)
        else:
            self.say(socket, session.send(self.proposal(session, 1, is_wrong=True)), DOUBT_S)


class FloodsPongs(GoodHub):
    def spam(self, socket: FakeSocket) -> None:
        socket.put([encode(Pong(7))])


class DripsPongs(GoodHub):
    """One in each millisecond, and no answer: a wait never ends for silence."""

    sent_s = 0.0

    def answer(self, socket: FakeSocket, session: TagSession, num: int) -> None:
        pass

    def spam(self, socket: FakeSocket) -> None:
        if self.clock.now >= self.sent_s + 0.001:
            self.sent_s = self.clock.now
            socket.put([encode(Pong(7))])


class FloodsPings(GoodHub):
    """Only a target may send them."""

    def spam(self, socket: FakeSocket) -> None:
        socket.put([encode(Ping(7))])


class FloodsFaults(GoodHub):
    def spam(self, socket: FakeSocket) -> None:
        socket.put([encode(Fault("\x1b[2J\r\n" * 400))])


class FloodsGarbage(GoodHub):
    def spam(self, socket: FakeSocket) -> None:
        socket.put([self.dice.randbytes(200)])


class FloodsFrames(GoodHub):
    """Of one multipart."""

    def answer(self, socket: FakeSocket, session: TagSession, num: int) -> None:
        socket.put([encode(Pong(7))] * 1025)


class Goodbyes(GoodHub):
    def answer(self, socket: FakeSocket, session: TagSession, num: int) -> None:
        self.say(socket, Goodbye("\x00" * 3000))


class AnswersGarbage(GoodHub):
    def answer(self, socket: FakeSocket, session: TagSession, num: int) -> None:
        socket.put([self.dice.randbytes(self.dice.randrange(1, 2000))], DRAFT_S)


class Edited(GoodHub):
    """Answers with an altered proposal."""

    def edit(self, proposal: Proposal) -> Proposal:
        raise NotImplementedError

    def answer(self, socket: FakeSocket, session: TagSession, num: int) -> None:
        self.say(socket, self.edit(self.proposal(session, num)), DRAFT_S)


class HugeProposals(Edited):
    def edit(self, proposal: Proposal) -> Proposal:
        return msgspec.structs.replace(proposal, token_ids=[7] * 300_000)


class LongProposals(Edited):
    """As long as a socket lets through."""

    def edit(self, proposal: Proposal) -> Proposal:
        return msgspec.structs.replace(proposal, token_ids=[7] * 60_000)


class TooManyTokens(Edited):
    def edit(self, proposal: Proposal) -> Proposal:
        return msgspec.structs.replace(proposal, token_ids=proposal.token_ids * 3)


class WrongEpochs(Edited):
    def edit(self, proposal: Proposal) -> Proposal:
        return msgspec.structs.replace(proposal, epoch=Epoch(proposal.epoch + self.dice.randrange(1, 9)))


class StaleEpochs(Edited):
    def edit(self, proposal: Proposal) -> Proposal:
        return msgspec.structs.replace(proposal, epoch=Epoch(max(1, proposal.epoch - 1)))


class WrongPrefix(Edited):
    def edit(self, proposal: Proposal) -> Proposal:
        return msgspec.structs.replace(proposal, prefix_len=proposal.prefix_len + 1)


class WrongTags(Edited):
    def edit(self, proposal: Proposal) -> Proposal:
        return msgspec.structs.replace(proposal, tag=Tag(proposal.tag + 1000))


class OutOfVocabulary(Edited):
    def edit(self, proposal: Proposal) -> Proposal:
        return msgspec.structs.replace(proposal, token_ids=[VOCAB_SIZE] * len(proposal.token_ids))


class WrongShape(Edited):
    """Parents that come later."""

    def edit(self, proposal: Proposal) -> Proposal:
        return msgspec.structs.replace(proposal, parents=list(range(len(proposal.token_ids))))


class Repeats(GoodHub):
    """Each proposal, many times."""

    def answer(self, socket: FakeSocket, session: TagSession, num: int) -> None:
        proposal = session.send(self.proposal(session, num, is_wrong=True))
        for _ in range(100):
            self.say(socket, proposal, DRAFT_S)


HOSTILE: list[type[GoodHub]] = [
    Silent,
    NeverAttaches,
    FloodsPublicPort,
    OtherVersion,
    RefusesAtOnce,
    ChangesTerms,
    Dies,
    Mute,
    Frozen,
    Slow,
    Wrong,
    WrongJustInTime,
    OneTokenJustInTime,
    GoodAndBadByTurns,
    FoundAndLostByTurns,
    Reopens,
    ReopensAfterProposals,
    ReopensUnasked,
    Declines,
    Empty,
    Doubts,
    FloodsPongs,
    DripsPongs,
    FloodsPings,
    FloodsFaults,
    FloodsGarbage,
    FloodsFrames,
    Goodbyes,
    AnswersGarbage,
    HugeProposals,
    LongProposals,
    TooManyTokens,
    WrongEpochs,
    StaleEpochs,
    WrongPrefix,
    WrongTags,
    OutOfVocabulary,
    WrongShape,
    Repeats,
]

BUSY: list[type[GoodHub]] = [  # what they do depends on how many tags there are
    Mute,
    Wrong,
    WrongJustInTime,
    OneTokenJustInTime,
    FoundAndLostByTurns,
    Reopens,
    ReopensUnasked,
    Declines,
    Repeats,
]


def linked_to(hub: GoodHub, clock: Clock) -> ZmqTarget:
    """A target's end of a link with this hub."""
    hello = Hello(PROTOCOL_VERSION, TargetId("t"), VOCAB_SIZE, "f")
    return ZmqTarget("tcp://127.0.0.1:7", hello, clock=clock, sockets=FakeNet(hub, clock))  # type: ignore[arg-type]
