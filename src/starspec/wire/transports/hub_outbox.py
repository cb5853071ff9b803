"""What a target has sent to its hub and the hub has not read, and what waits behind that. No I/O and no clock.

The hub's ZeroMQ takes in whatever arrives, although the hub may read no further for a while. So the target counts: the
hub answers each `Ping` 0 when it has read what came before. Once WINDOW_BYTES were sent ahead of these answers, the
rest waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from starspec.wire.codec import encode
from starspec.wire.messages import Ping, Pong
from starspec.wire.transports.sockets import MAX_MULTIPART_BYTES, multiparts
from starspec.wire.transports.unsent import MAX_LARGE_BYTES

WINDOW_BYTES: Final = 32 * 2**20  # that the hub has not read: features of a prompt, on a fast link to a busy hub
STEP_BYTES: Final = MAX_MULTIPART_BYTES  # behind which the hub is asked
ASK: Final = Ping(0)
ASK_FRAME: Final = encode(ASK)
PROBE: Final = Pong(2**31 - 1)  # of a hub that asks whether its target is there: no answer to an ASK


class HubOutbox:
    """The frames of one link, from the handshake to its end.

    Args:
        note_asked: told each Ping 0 that is sent.
    """

    def __init__(self, note_asked: Callable[[Ping], None]) -> None:
        self._note_asked = note_asked
        self._waiting: deque[bytes] = deque()
        self._num_waiting = 0  # bytes of these
        self._asked: deque[int] = deque()  # for each Ping 0 that is not answered: bytes that were sent up to it
        self._num_asked = 0  # the sum of these
        self._num_since = 0  # bytes sent behind the last Ping 0

    @property
    def has_too_much(self) -> bool:
        """Whether the hub does not read what it is sent."""
        return self._num_waiting > MAX_LARGE_BYTES

    def put(self, frames: Sequence[bytes]) -> None:
        """Let these frames wait for their turn."""
        self._waiting.extend(frames)
        self._num_waiting += sum(map(len, frames))

    def ask(self) -> None:
        """Let a Ping 0 wait for its turn. It also keeps the lease."""
        self.put([ASK_FRAME])

    def take(self) -> Iterator[Sequence[bytes]]:
        """The multiparts that may be sent now, in order."""
        while self._waiting and self._num_asked + self._num_since <= WINDOW_BYTES:
            yield from multiparts(self._step())

    def note_answered(self) -> None:
        """A Pong 0 has come: the hub has read everything before the oldest Ping 0."""
        if self._asked:
            self._num_asked -= self._asked.popleft()

    def _step(self) -> list[bytes]:
        """The next frames, up to where the hub is asked."""
        frames: list[bytes] = []
        while self._waiting and self._num_since < STEP_BYTES:
            frame = self._waiting.popleft()
            self._num_waiting -= len(frame)
            self._num_since += len(frame)
            frames.append(frame)
            if frame == ASK_FRAME:
                self._count_asked()
        if self._num_since >= STEP_BYTES:
            frames.append(ASK_FRAME)
            self._count_asked()
        return frames

    def _count_asked(self) -> None:
        self._asked.append(self._num_since)
        self._num_asked += self._num_since
        self._num_since = 0
        self._note_asked(ASK)
