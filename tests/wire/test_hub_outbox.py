"""How far a target sends ahead of what its hub has read: any order of sends and answers."""

from __future__ import annotations

from collections import deque

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from starspec.wire.codec import MAX_FRAME_BYTES
from starspec.wire.messages import Ping
from starspec.wire.transports.hub_outbox import ASK_FRAME, STEP_BYTES, WINDOW_BYTES, HubOutbox
from starspec.wire.transports.unsent import MAX_LARGE_BYTES

SIZES = st.sampled_from([1, 100, STEP_BYTES // 3, MAX_FRAME_BYTES])


class Exchange(RuleBasedStateMachine):
    """A target, and a hub that reads when it likes."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Ping] = []
        self.outbox = HubOutbox(self.asked.append)
        self.put: deque[bytes] = deque()  # not sent yet
        self.sent: deque[bytes] = deque()  # not read yet
        self.num_answered = 0

    @rule(sizes=st.lists(SIZES, max_size=60))
    def send(self, sizes: list[int]) -> None:
        frames = [bytes(size) for size in sizes]
        self.put += frames
        self.outbox.put(frames)
        self._push()

    @rule()
    def keep_alive(self) -> None:
        self.put.append(ASK_FRAME)
        self.outbox.ask()
        self._push()

    @rule(num=st.integers(1, 100))
    def read(self, num: int) -> None:
        for _ in range(min(num, len(self.sent))):
            if self.sent.popleft() == ASK_FRAME:
                self.num_answered += 1
                self.outbox.note_answered()
        self._push()

    def _push(self) -> None:
        for multipart in self.outbox.take():
            for frame in multipart:
                self.sent.append(frame)
                if self.put and frame == self.put[0]:
                    self.put.popleft()
                else:
                    assert frame == ASK_FRAME, "the outbox asks of its own accord, and nothing else is added"

    @invariant()
    def no_more_than_the_window_is_unread_and_nothing_waits_without_need(self) -> None:
        num_unread = sum(map(len, self.sent))
        assert num_unread <= WINDOW_BYTES + STEP_BYTES + MAX_FRAME_BYTES + len(ASK_FRAME) * len(self.sent)
        assert not self.put or num_unread > WINDOW_BYTES
        assert len(self.asked) == self.num_answered + sum(frame == ASK_FRAME for frame in self.sent)
        assert self.outbox.has_too_much == (sum(map(len, self.put)) > MAX_LARGE_BYTES)


TestExchange = Exchange.TestCase


def test_a_hub_that_answers_too_often_does_no_harm() -> None:
    outbox = HubOutbox(lambda _: None)
    outbox.note_answered()
    outbox.put([bytes(MAX_FRAME_BYTES)] * 100)
    num_sent = sum(len(frame) for multipart in outbox.take() for frame in multipart)
    assert WINDOW_BYTES < num_sent <= WINDOW_BYTES + STEP_BYTES + MAX_FRAME_BYTES + 1000
