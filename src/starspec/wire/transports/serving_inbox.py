"""What gateways have sent to one target and it has not decoded yet. No I/O and no clock.

A target decodes on the thread that runs its model, so each frame of a gateway costs all clients time. All gateways
share an allowance of work by their owners, as `policy/queue_turns.py` says, and the connections of an owner share that
of the owner. Those that caused the least of late go first, one frame each in turn; so an honest gateway does not wait
behind one that floods, and what comes in a burst waits instead of being lost.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from typing import Final

from starspec.ids import PeerId
from starspec.policy.peer_limits import (
    EXCESS_BURST,
    EXCESS_PER_S,
    SERVING_BURST,
    SERVING_PER_S,
    Allowance,
    has_room_for,
    work_of,
)
from starspec.wire.keys import NO_KEY, NamedKey
from starspec.wire.transports.unsent import Unsent

MAX_PEERS: Final = 4096  # gateways that are known


class _Owner:
    """Who has one or more gateways."""

    def __init__(self, name: str) -> None:
        self.name: Final = name
        self.allowance: Final = Allowance(SERVING_PER_S, SERVING_BURST)
        self.gateways: Final[OrderedDict[PeerId, _Gateway]] = OrderedDict()  # the one heard last at the end
        self.waiting: Final[dict[PeerId, _Gateway]] = {}  # those with frames
        self.num_held = 0.0  # units of their frames

    def turns(self, now: float) -> Iterator[_Gateway]:
        """Its gateways whose next frame may be decoded, as often as the allowances permit."""
        ready = sorted(self.waiting.values(), key=lambda each: each.allowance.num_units(now), reverse=True)
        while ready := [each for each in ready if each.frames and each.allowance.has_units(now)]:
            for gateway in ready:
                if not self.allowance.has_units(now):
                    return
                yield gateway

    def share(self, per_s: float) -> None:
        """It may cause so much work, and its gateways share that."""
        self.allowance.set_rate(per_s)
        for gateway in self.waiting.values():
            gateway.allowance.set_rate(per_s / len(self.waiting))


class _Gateway:
    """One connection of a gateway, and what it has not read."""

    def __init__(self, peer: PeerId, key: NamedKey, owner: _Owner) -> None:
        self.peer: Final = peer
        self.key: Final = key
        self.owner: Final = owner
        self.allowance: Final = Allowance(SERVING_PER_S, SERVING_BURST)
        self.frames: Final[deque[bytes]] = deque()  # that wait
        self.num_held = 0.0  # units of `frames`
        self.fd = -1  # of the connection over which the last frames came
        self.unsent: Final = Unsent()
        self.excess: Final = Allowance(EXCESS_PER_S, EXCESS_BURST)  # frames for which there was no room

    def hold(self, num_units: float) -> None:
        """So much more of it waits."""
        self.num_held += num_units
        self.owner.num_held += num_units


class ServingInbox:
    """The waiting frames of all gateways."""

    def __init__(self) -> None:
        self._gateways: dict[PeerId, _Gateway] = {}
        self._owners: dict[str, _Owner] = {}  # of these gateways
        self._allowance = Allowance(SERVING_PER_S, SERVING_BURST)  # of all together
        self._num_held = 0.0  # units that wait
        self.num_dropped = 0  # frames that did not fit, or whose gateway was forgotten

    def key(self, peer: PeerId) -> NamedKey:
        """The key of this connection."""
        gateway = self._gateways.get(peer)
        return NO_KEY if gateway is None else gateway.key

    def owner_of(self, peer: PeerId) -> str:
        """Whose gateway this is; empty if it is not known."""
        gateway = self._gateways.get(peer)
        return "" if gateway is None else gateway.owner.name

    def unsent(self, peer: PeerId) -> tuple[Unsent, int]:
        """What this peer has not read, and the descriptor of its connection; -1 if it is not known."""
        gateway = self._gateways.get(peer)
        return (Unsent(), -1) if gateway is None else (gateway.unsent, gateway.fd)

    def note_connection(self, peer: PeerId, fd: int) -> None:
        """What came last from a known peer came over this descriptor."""
        self._gateways[peer].fd = fd

    def knows(self, peer: PeerId) -> bool:
        """Something came from this peer. Returns: whether it is known, or else is to be added."""
        if (gateway := self._gateways.get(peer)) is not None:
            gateway.owner.gateways.move_to_end(peer)
        return gateway is not None

    def add(self, peer: PeerId, key: NamedKey, owner: str) -> None:
        """A new peer with this key. Effects: another one may be forgotten."""
        owned = self._owners.setdefault(owner, _Owner(owner))
        self._gateways[peer] = owned.gateways[peer] = _Gateway(peer, key, owned)
        if len(self._gateways) > MAX_PEERS:
            self._forget_one()

    def has_room(self, peer: PeerId, num_units: float) -> bool:
        """Whether so much more of a known peer may wait."""
        gateway = self._gateways[peer]
        return has_room_for(num_units, gateway.num_held, gateway.owner.num_held, self._num_held)

    def may_exceed(self, peer: PeerId, num_frames: int, now: float) -> bool:
        """There is no room for so many frames of a known peer. Returns: whether that may happen, now and then."""
        return self._gateways[peer].excess.take(num_frames, now)

    def put(self, peer: PeerId, frames: Sequence[bytes]) -> None:
        """Let these frames of a known peer wait."""
        gateway, num_units = self._gateways[peer], work_of(frames)
        gateway.frames.extend(frames)
        gateway.hold(num_units)
        self._num_held += num_units
        if frames:
            gateway.owner.waiting[peer] = gateway

    def take(self, now: float) -> Iterator[tuple[PeerId, bytes]]:
        """The frames that may be decoded now, each counted as work; those of one peer in order of arrival."""
        owners = [each for each in self._owners.values() if each.waiting]
        for owner in owners:
            owner.share(SERVING_PER_S / len(owners))
        owners.sort(key=lambda each: each.allowance.num_units(now), reverse=True)
        all_turns = deque(owner.turns(now) for owner in owners)
        while all_turns and self._allowance.has_units(now):
            turns = all_turns.popleft()
            if (gateway := next(turns, None)) is not None:
                yield gateway.peer, self._pop(gateway, now)
                all_turns.append(turns)

    def charge(self, peer: PeerId, num_units: float, now: float) -> None:
        """A frame of this peer caused so much more work than its size tells."""
        self._allowance.take(num_units, now)
        if (gateway := self._gateways.get(peer)) is not None:
            gateway.allowance.take(num_units, now)
            gateway.owner.allowance.take(num_units, now)

    def _pop(self, gateway: _Gateway, now: float) -> bytes:
        frame = gateway.frames.popleft()
        num_units = work_of([frame])
        gateway.hold(-num_units)
        self._num_held -= num_units
        if not gateway.frames:
            del gateway.owner.waiting[gateway.peer]
        self.charge(gateway.peer, num_units, now)
        return frame

    def _forget_one(self) -> None:
        """Forget the gateway that has been silent the longest, of the owner with the most."""
        owner = max(self._owners.values(), key=lambda each: len(each.gateways))
        peer, gateway = owner.gateways.popitem(last=False)
        del self._gateways[peer]
        owner.waiting.pop(peer, None)
        if not owner.gateways:
            del self._owners[owner.name]
        self._num_held -= gateway.num_held
        gateway.hold(-gateway.num_held)
        self.num_dropped += len(gateway.frames)
