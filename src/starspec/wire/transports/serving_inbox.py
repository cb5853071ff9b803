"""What gateways have sent to one target and it has not decoded yet. No I/O and no clock.

A target decodes on the thread that runs its model, so each frame of a gateway costs all clients time. All gateways
share an allowance of work. Those that caused the least of late go first, one frame each in turn; so an honest gateway
does not wait behind one that floods, and what comes in a burst waits instead of being lost.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from typing import Final

from starspec.ids import PeerId
from starspec.policy.peer_limits import SERVING_BURST, SERVING_PER_S, Allowance, has_room_for, work_of

MAX_PEERS: Final = 4096  # gateways that are known; the one that has been silent the longest is forgotten


class _Gateway:
    """One connection of a gateway."""

    def __init__(self, peer: PeerId, key_name: str) -> None:
        self.peer: Final = peer
        self.key_name: Final = key_name
        self.allowance: Final = Allowance(SERVING_PER_S, SERVING_BURST)
        self.frames: Final[deque[bytes]] = deque()  # that wait
        self.num_held = 0.0  # units of `frames`


class ServingInbox:
    """The waiting frames of all gateways."""

    def __init__(self) -> None:
        self._gateways: OrderedDict[PeerId, _Gateway] = OrderedDict()  # the one heard last at the end
        self._waiting: dict[PeerId, _Gateway] = {}  # those with frames
        self._allowance = Allowance(SERVING_PER_S, SERVING_BURST)  # of all together
        self._num_held = 0.0  # units that wait
        self.num_dropped = 0  # frames that did not fit, or whose gateway was forgotten

    def key_name(self, peer: PeerId) -> str:
        """The name of the key of this connection; empty if it is not known."""
        gateway = self._gateways.get(peer)
        return "" if gateway is None else gateway.key_name

    def note(self, peer: PeerId, key_name: str) -> bool:
        """Something came from this peer, whose key has this name. Returns: whether the peer is a new one.

        Effects: the peer that has been silent the longest may be forgotten.
        """
        is_new = peer not in self._gateways
        if is_new:
            self._gateways[peer] = _Gateway(peer, key_name)
            if len(self._gateways) > MAX_PEERS:
                self._forget_one()
        self._gateways.move_to_end(peer)
        return is_new

    def has_room(self, peer: PeerId, num_units: float) -> bool:
        """Whether so much more of a noted peer may wait."""
        return has_room_for(num_units, self._gateways[peer].num_held, self._num_held)

    def put(self, peer: PeerId, frames: Sequence[bytes]) -> None:
        """Let these frames of a noted peer wait."""
        gateway, num_units = self._gateways[peer], work_of(frames)
        gateway.frames.extend(frames)
        gateway.num_held += num_units
        self._num_held += num_units
        if frames:
            self._waiting[peer] = gateway

    def take(self, now: float) -> Iterator[tuple[PeerId, bytes]]:
        """The frames that may be decoded now, each counted as work; those of one peer in order of arrival."""
        share = SERVING_PER_S / max(1, len(self._waiting))
        for gateway in self._waiting.values():
            gateway.allowance.set_rate(share)
        ready = sorted(self._waiting.values(), key=lambda each: each.allowance.num_units(now), reverse=True)
        while ready := [each for each in ready if each.frames and each.allowance.has_units(now)]:
            for gateway in ready:
                if not self._allowance.has_units(now):
                    return
                yield gateway.peer, self._pop(gateway, now)

    def charge(self, peer: PeerId, num_units: float, now: float) -> None:
        """A frame of this peer caused so much more work than its size tells."""
        self._allowance.take(num_units, now)
        if (gateway := self._gateways.get(peer)) is not None:
            gateway.allowance.take(num_units, now)

    def _pop(self, gateway: _Gateway, now: float) -> bytes:
        frame = gateway.frames.popleft()
        num_units = work_of([frame])
        gateway.num_held -= num_units
        self._num_held -= num_units
        if not gateway.frames:
            del self._waiting[gateway.peer]
        self.charge(gateway.peer, num_units, now)
        return frame

    def _forget_one(self) -> None:
        peer, gateway = self._gateways.popitem(last=False)
        self._waiting.pop(peer, None)
        self._num_held -= gateway.num_held
        self.num_dropped += len(gateway.frames)
