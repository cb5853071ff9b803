"""How much a server may hold for one peer that does not read.

ZeroMQ bounds the frames that it queues for a connection, but not their bytes. So of the frames that are sent over
it, one in each STEP_BYTES is tracked: ZeroMQ tells when it has handed that one to the kernel.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import zmq

from starspec.wire.transports.sockets import Socket

MAX_UNSENT_BYTES: Final = 32 * 2**20  # a round of answers to 256 sequences that verify by rejection, and some more
STEP_BYTES: Final = 2**20  # to track a frame takes some 50 us


class Unsent:
    """What was sent over one connection of a ROUTER and has not left ZeroMQ, to the nearest STEP_BYTES."""

    def __init__(self) -> None:
        self._tracked: deque[tuple[zmq.MessageTracker, int]] = deque()  # bytes up to there since the one before
        self._num_tracked = 0  # the sum of these bytes
        self._num_since = 0

    @property
    def has_too_much(self) -> bool:
        """Whether the peer does not read what it is sent."""
        while self._tracked and self._tracked[0][0].done:
            self._num_tracked -= self._tracked.popleft()[1]
        return self._num_tracked + self._num_since > MAX_UNSENT_BYTES

    def send(self, socket: Socket, peer: bytes, frame: bytes) -> None:
        """Send one frame without waiting.

        Raises: zmq.Again if the peer does not read, another ZMQError if it is gone.
        """
        if self.has_too_much:
            raise zmq.Again
        if self._num_since + len(frame) < STEP_BYTES:
            socket.send_multipart([peer, frame], zmq.NOBLOCK)
            self._num_since += len(frame)
            return
        socket.copy_threshold = 0  # else short frames are not tracked
        tracker = socket.send_multipart([peer, frame], zmq.NOBLOCK, copy=False, track=True)
        assert tracker is not None
        self._tracked.append((tracker, self._num_since + len(frame)))
        self._num_tracked += self._num_since + len(frame)
        self._num_since = 0
