"""How much work a peer may cause. No clock and no I/O.

Most frames of a peer are answers: a hub sends a proposal for each verdict, a target a verdict for each proposal. So a
peer may send what it was asked for, and some frames more each second. A peer that sends more than that is broken or
hostile, however fast both ends are.

The hub stops reading a target that sends too much, or faster than the hub takes it in. An honest target then sends no
more until the hub has read (`wire/transports/hub_outbox.py`), and others do not wait for it.

A target cannot stop reading one gateway: a ROUTER socket hands over one multipart of each in turn. What a gateway sends
beyond its share waits undecoded, and is dropped where too much of it or of its owner's waits; one of which much is
dropped loses its connection. Reading has a rate, too, so that a flood that is dropped does not take the machine.

The rate limit of a target is an allowance of draft tokens, none of which it was asked for.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Final

UNIT_BYTES: Final = 4096  # a frame is one unit of work, and one more for each so many bytes
MAX_OWED: Final = 4096.0  # units: answers that never came do not add up for ever
WORK_PER_S: Final = 8000.0  # units that all targets together may send unasked: so a flood leaves the hub time to draft
WORK_BURST: Final = 1024.0  # of each target
DRAFT_WORK: Final = 2.0  # units that a target may send for each draft: a verdict, and its features
FEATURES_SHARE: Final = 1 / 16  # of the bytes of features counts: nothing is decoded
UNASKED_PER_S: Final = 100.0  # frames of a hub: Faults, Reopens, probes of a link whose port a stranger has touched
UNASKED_BURST: Final = 200.0
NONSENSE_PER_S: Final = 1.0  # frames of a hub that are not valid messages
NONSENSE_BURST: Final = 32.0
PUBLIC_PER_S: Final = 20.0  # unasked answers on the hub's public port; beyond them the hub breaks the rules
PUBLIC_BURST: Final = 40.0
MAX_BACKLOG: Final = 4096  # messages of one target that wait for the hub; beyond it the target's socket is not read
TOKEN_BYTES: Final = 36  # of a token id in memory: a number of Python, and a place in a list
MAX_HELD_TOKENS: Final = 8 * 2**20  # of all sequences that a hub holds, if nothing is kept of a token but itself
SERVING_PER_S: Final = 2000.0  # units that all gateways together may cause at a target: so a flood leaves it time
SERVING_BURST: Final = 256.0  # of all gateways together, and of each
ASK_WORK: Final = 8.0  # units of an Ask, which is answered with the status
BAD_WORK: Final = 16.0  # units of a frame that is not a valid message, besides what it takes to read it twice
MAX_HELD_WORK: Final = 32768.0  # units of all gateways that wait at a target: 128 MiB
# Units that a stage may send to its coordinator; beyond them it is left alone for a while. Over one connection, so many
# multiparts may come to a stage; beyond them it is ended.
STAGE_PER_S: Final = 8000.0
STAGE_BURST: Final = 8192.0  # two answers that are as large as a frame may be
EXCESS_PER_S: Final = 64.0  # frames of a gateway for which there is no room; beyond them its connection ends
EXCESS_BURST: Final = 256.0
READ_PER_S: Final = 65536.0  # units of all gateways that a target reads, 256 MiB; the rest waits, and counts as unread
READ_UNITS: Final = 16384.0  # of them at once
READ_FRAMES: Final = 2048  # of gateways that a target reads between two short steps: to drop one takes microseconds
RATE_BURST_S: Final = 1.0  # a target with a rate limit may save up the draft tokens of so many seconds


class Allowance:
    """Units of work that one peer may cause: a token bucket, and the units that it was asked for. O(1) each.

    Args:
        per_s: units that may come unasked each second.
        burst: units that may come unasked at once: so many are saved up.
    """

    def __init__(self, per_s: float, burst: float) -> None:
        self._per_s = per_s
        self._burst = burst
        self._unasked = burst
        self._owed = 0.0
        self._filled_s = float("-inf")

    def set_rate(self, per_s: float) -> None:
        """Change the units that may come unasked each second, also for the time since the last `take`."""
        self._per_s = per_s

    def owe(self, num_units: float) -> None:
        """The peer was asked for so many units more."""
        self._owed = min(MAX_OWED, self._owed + num_units)

    def take(self, num_units: float, now: float) -> bool:
        """The peer has sent so many units, which count first against what it was asked for.

        Returns: False if they are more than it may send. They count all the same, so that it has to wait.
        """
        asked = min(self._owed, num_units)
        self._owed -= asked
        if asked < num_units:
            self._refill(now)
            self._unasked -= num_units - asked
        return self._unasked >= 0.0

    def has_units(self, now: float, num_reserved: float = 0.0) -> bool:
        """Whether the peer may send more, besides so many units that are reserved. One that sent too much has to wait.

        What is sent then may be more than there is: it counts in full.
        """
        return self.num_units(now) > num_reserved and self._unasked >= 0.0

    def num_units(self, now: float) -> float:
        """Units that the peer may send now; negative if it has sent too much."""
        self._refill(now)
        return self._unasked + self._owed

    def _refill(self, now: float) -> None:
        since_s = max(0.0, now - self._filled_s)
        self._unasked = min(self._burst, self._unasked + self._per_s * since_s)
        self._filled_s = max(self._filled_s, now)


def work_of(frames: Sequence[Sized]) -> float:
    """Units of these frames."""
    return len(frames) + sum(map(len, frames)) / UNIT_BYTES


def spared_by_features(num_bytes: int) -> float:
    """Units that `work_of` counts too much for features of so many bytes."""
    return (1.0 - FEATURES_SHARE) * num_bytes / UNIT_BYTES


def share_of_work(num_targets: int) -> float:
    """Units a second that each of so many targets may send unasked."""
    return WORK_PER_S / num_targets


def has_room_for(num_units: float, num_own: float, num_of_owner: float, num_held: float) -> bool:
    """Whether so much more of a gateway may wait at a target.

    An owner's gateways may have as much waiting as there is room left then, and one of them as much as is left of that
    for the others. So there is always room for another owner, and for another gateway of each.

    Args:
        num_own: units of this gateway that wait already.
        num_of_owner: units of all gateways of its owner that wait.
        num_held: units of all gateways that wait.
    """
    room_of_owner = (MAX_HELD_WORK - (num_held - num_of_owner)) / 2
    return num_own + num_units <= room_of_owner - num_of_owner


def backlog_of(num_bytes: int) -> int:
    """What a message that takes so many bytes of memory counts for while it waits for the hub."""
    return 1 + num_bytes // UNIT_BYTES


def should_pause(backlog: int, *, has_sent_too_much: bool) -> bool:
    """Whether to stop reading a target.

    Args:
        backlog: `backlog_of` its messages that wait for the hub, added up.
        has_sent_too_much: more than its allowance.
    """
    return has_sent_too_much or backlog >= MAX_BACKLOG


def has_caught_up(backlog: int) -> bool:
    """Whether a target may be read again as far as its backlog goes. Its allowance must permit it, too."""
    return backlog < MAX_BACKLOG // 2


def rate_limit(tokens_per_s: float) -> Allowance:
    """The allowance of a target that may get so many draft tokens each second."""
    return Allowance(tokens_per_s, tokens_per_s * RATE_BURST_S)
