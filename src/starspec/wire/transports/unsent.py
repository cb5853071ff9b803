"""How much a process may hold for one peer that does not read.

ZeroMQ bounds the frames that it queues for a connection, but not their bytes. So of the frames that are sent over
it, one in each STEP_BYTES is tracked: ZeroMQ tells when it has handed that one to the kernel.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

import zmq

from starspec.wire.transports.sockets import Socket

MAX_UNSENT_BYTES: Final = 32 * 2**20  # a round of answers to 256 sequences that verify by rejection, and some more
MAX_LARGE_BYTES: Final = 256 * 2**20  # texts of all sequences for a new hub; hidden states of a prompt on a slow link
STEP_BYTES: Final = 2**20  # to track a frame takes some 50 us


class Unsent:
    """What was sent over one connection and has not left ZeroMQ, to the nearest STEP_BYTES.

    Args:
        most: bytes of it.
    """

    def __init__(self, most: int = MAX_UNSENT_BYTES) -> None:
        self._most = most
        self._tracked: deque[tuple[zmq.MessageTracker, int]] = deque()  # bytes up to there since the one before
        self._num_tracked = 0  # the sum of these bytes
        self._num_since = 0

    @property
    def has_too_much(self) -> bool:
        """Whether the peer does not read what it is sent."""
        while self._tracked and self._tracked[0][0].done:
            self._num_tracked -= self._tracked.popleft()[1]
        return self._num_tracked + self._num_since > self._most

    def send(self, socket: Socket, frames: Sequence[bytes | memoryview]) -> None:
        """Send a multipart without waiting. A large one is not copied, so nobody may change it later.

        Args:
            frames: those of a ROUTER begin with the peer.
        Raises: zmq.Again if the peer does not read, another ZMQError if it is gone.
        """
        if self.has_too_much:
            raise zmq.Again
        num_bytes = sum(map(len, frames))
        if self._num_since + num_bytes < STEP_BYTES:
            socket.send_multipart(frames, zmq.NOBLOCK)
            self._num_since += num_bytes
            return
        socket.copy_threshold = 0  # else short frames are not tracked
        tracker = socket.send_multipart(frames, zmq.NOBLOCK, copy=False, track=True)
        assert tracker is not None
        self._tracked.append((tracker, self._num_since + num_bytes))
        self._num_tracked += self._num_since + num_bytes
        self._num_since = 0
