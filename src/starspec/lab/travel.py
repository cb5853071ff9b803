"""When bytes arrive that are sent over a link. Pure: told the time, without sockets and clocks.

A byte waits for the transmitter (bandwidth), then for the way (delay and jitter), then for lost packets in front of it.

      sent ──► transmitter ──────► way ─────────────► in order ───────────────────────► arrives
               mbit_s, shared      delay_ms ± jitter   not before what went before it,
               by connections                          which a lost packet stalls
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random
from typing import Final

from starspec.config.lab import PACKET_BYTES, LinkShape

MAX_CHUNK_BYTES: Final = 256 * 1024
CHUNK_S: Final = 0.001  # bytes that take the transmitter longer travel as several chunks
MIN_WINDOW_BYTES: Final = 64 * 1024
MAX_WINDOW_BYTES: Final = 16 * 2**20  # where no bandwidth bounds it; Linux's own buffers end at 6 MiB by default


@dataclass(slots=True)
class Traffic:
    """What has passed one direction of a link."""

    num_bytes: int = 0  # delivered
    num_losses: int = 0  # packets that were lost, and stalled their connection


class Way:
    """One direction of a link: its shape, and what its connections share.

    Args:
        shape: may be changed at any time; it holds for bytes that are sent later.
        max_window_bytes: of one connection that may be on the way, also without a bandwidth.
    """

    def __init__(self, shape: LinkShape, max_window_bytes: int = MAX_WINDOW_BYTES) -> None:
        self.shape = shape
        self._max_window_bytes = max_window_bytes
        self.traffic = Traffic()
        self._free_s = -math.inf  # when the transmitter has sent all that it was given

    @property
    def chunk_bytes(self) -> int:
        """Bytes that travel together, at most."""
        if self.shape.mbit_s is None:
            return MAX_CHUNK_BYTES
        return min(MAX_CHUNK_BYTES, max(PACKET_BYTES, int(_bytes_per_s(self.shape.mbit_s) * CHUNK_S)))

    @property
    def window_bytes(self) -> int:
        """Bytes of one connection that may be on the way: bandwidth times round trip, as a TCP window has them."""
        if self.shape.mbit_s is None:
            return self._max_window_bytes
        round_trip_s = 2.0 * (self.shape.delay_ms + self.shape.jitter_ms) / 1e3
        return min(self._max_window_bytes, max(MIN_WINDOW_BYTES, int(_bytes_per_s(self.shape.mbit_s) * round_trip_s)))

    def transmitted_s(self, num_bytes: int, sent_s: float) -> float:
        """When the transmitter has sent these bytes. Effects: it is busy until then."""
        if self.shape.mbit_s is None:
            return sent_s
        self._free_s = max(sent_s, self._free_s) + num_bytes / _bytes_per_s(self.shape.mbit_s)
        return self._free_s


class Travel:
    """One direction of one connection.

    Args:
        random: draws jitter and losses.
    """

    def __init__(self, way: Way, random: Random) -> None:
        self._way = way
        self._random = random
        self._last_s = -math.inf  # when the last byte so far arrives

    def arrival_s(self, num_bytes: int, sent_s: float) -> float:
        """When a chunk arrives that is sent at `sent_s`. Chunks arrive in the order of the calls."""
        shape = self._way.shape
        delay_s = (shape.delay_ms + shape.jitter_ms * self._random.uniform(-1.0, 1.0)) / 1e3
        due_s = self._way.transmitted_s(num_bytes, sent_s) + delay_s + self._stalled_s(num_bytes)
        self._last_s = max(self._last_s, due_s)
        return self._last_s

    def _stalled_s(self, num_bytes: int) -> float:
        """Seconds that losses delay a chunk. TCP repairs several losses of one flight together: they count as one."""
        shape = self._way.shape
        if not shape.loss:
            return 0.0
        num_packets = math.ceil(num_bytes / PACKET_BYTES)
        probability, stalled_s, stall_s = 1.0 - (1.0 - shape.loss) ** num_packets, 0.0, shape.stall_s
        while self._random.random() < probability:
            self._way.traffic.num_losses += 1
            stalled_s += stall_s
            stall_s *= 2.0  # the repeated packet may be lost, too: TCP then waits twice as long
            probability = shape.loss
        return stalled_s


def _bytes_per_s(mbit_s: float) -> float:
    return mbit_s * 1e6 / 8.0
