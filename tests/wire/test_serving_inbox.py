"""What gateways may cause at a target: in virtual time, so all that counts is who gets how much."""

from __future__ import annotations

from collections import Counter

from starspec.ids import PeerId
from starspec.policy.peer_limits import MAX_HELD_WORK, SERVING_BURST, SERVING_PER_S, UNIT_BYTES, work_of
from starspec.wire.keys import NO_KEY, NamedKey
from starspec.wire.transports import serving_inbox
from starspec.wire.transports.serving_inbox import ServingInbox

HONEST = PeerId(b"honest")
LONGEST = bytes(256 * UNIT_BYTES)
STEP_S = 0.05  # of the target's engine


def floods(number: int) -> list[PeerId]:
    return [PeerId(b"flood-%d" % each) for each in range(number)]


class Inbox(ServingInbox):
    """As the target's port fills it: what does not fit is dropped."""

    def arrive(self, peer: PeerId, frames: list[bytes], owner: str | None = None) -> bool:
        if not self.knows(peer):
            self.add(peer, NO_KEY, str(peer) if owner is None else owner)
        has_room = self.has_room(peer, work_of(frames))
        if has_room:
            self.put(peer, frames)
        return has_room

    def turn(self, now: float) -> list[tuple[PeerId, bytes]]:
        return list(self.take(now))


def test_frames_of_one_gateway_come_out_in_order() -> None:
    inbox, frames = Inbox(), [b"%d" % number for number in range(100)]
    inbox.arrive(HONEST, frames[:40])
    inbox.arrive(HONEST, frames[40:])
    assert inbox.turn(0.0) == [(HONEST, frame) for frame in frames]
    assert inbox.turn(1.0) == []


def test_a_burst_beyond_the_allowance_waits_and_nothing_of_it_is_lost() -> None:
    inbox, frames = Inbox(), [b"%d" % number for number in range(3000)]
    assert inbox.arrive(HONEST, frames)
    taken, now = [], 0.0
    while len(taken) < len(frames):
        turn = [frame for _, frame in inbox.turn(now)]
        assert len(turn) <= SERVING_BURST + 1
        taken += turn
        now += STEP_S
    assert taken == frames
    assert now < len(frames) / SERVING_PER_S + 2 * STEP_S, "a gateway alone may use all of the work"


def test_however_many_connections_flood_they_get_no_more_work_together() -> None:
    for number in (1, 10, 200):
        inbox, num_units, now = Inbox(), 0.0, 0.0
        for _ in range(100):
            for peer in floods(number):
                inbox.arrive(peer, [b"x"] * 100)
            num_units += sum(work_of([frame]) for _, frame in inbox.turn(now))
            now += STEP_S
        assert num_units <= SERVING_BURST + SERVING_PER_S * now + 2


def test_an_honest_gateway_does_not_wait_behind_floods() -> None:
    for number, frame in ((1, b"x"), (1, LONGEST), (10, b"x"), (10, LONGEST)):
        inbox, waits, now = Inbox(), [], 0.0
        for _ in range(100):
            for peer in floods(number):
                inbox.arrive(peer, [frame] * 100 if frame == b"x" else [frame])
            inbox.turn(now)
            now += STEP_S
        for _ in range(20):
            assert inbox.arrive(HONEST, [bytes(20 * UNIT_BYTES)])
            sent_s = now
            while not any(peer == HONEST for peer, _ in inbox.turn(now)):
                for peer in floods(number):
                    inbox.arrive(peer, [frame])
                now += STEP_S
            waits.append(now - sent_s)
            now += 0.25
        assert max(waits) <= 0.2, (number, len(frame), max(waits))


def test_what_waits_is_bounded_and_leaves_room_for_others() -> None:
    inbox, num_held = Inbox(), Counter[PeerId]()
    for _ in range(2000):
        for peer in floods(12):
            num_held[peer] += 10 * inbox.arrive(peer, [b""] * 10)
    assert 0.7 * MAX_HELD_WORK < num_held.total() <= MAX_HELD_WORK
    assert inbox.arrive(HONEST, [b""] * 2000)


def test_work_that_shows_only_later_counts_too() -> None:
    inbox = Inbox()
    inbox.arrive(HONEST, [b"x", b"y"])
    for _ in inbox.take(0.0):
        inbox.charge(HONEST, 2 * SERVING_BURST, 0.0)
    assert inbox.turn(0.1) == []
    assert inbox.turn(1.0) == [(HONEST, b"y")]


def test_an_owner_gets_no_more_by_more_connections() -> None:
    inbox, now = Inbox(), 0.0
    taken: Counter[PeerId] = Counter()
    for _ in range(200):
        for peer in [*floods(20), HONEST]:
            inbox.arrive(peer, [b"x"] * 200, "honest" if peer == HONEST else "hostile")
        taken.update(peer for peer, _ in inbox.turn(now))
        now += STEP_S
    assert taken[HONEST] >= 0.49 * taken.total()
    assert min(taken[peer] for peer in floods(20)) >= 0.9 * (taken.total() - taken[HONEST]) / 20, "they share alike"


def test_an_owner_whose_connections_flood_leaves_room_for_others_and_for_more_of_its_own() -> None:
    inbox = Inbox()
    for _ in range(300):
        for peer in floods(20):
            inbox.arrive(peer, [b""] * 100, "hostile")
    assert not inbox.has_room(floods(1)[0], 200)
    assert inbox.arrive(PeerId(b"another"), [b""] * 500, "hostile")
    assert inbox.arrive(HONEST, [b""] * 4000, "honest")


def test_of_the_owner_with_the_most_gateways_the_silent_one_is_forgotten_with_what_it_sent(monkeypatch) -> None:
    monkeypatch.setattr(serving_inbox, "MAX_PEERS", 4)
    inbox = Inbox()
    one, two, three, four = floods(4)
    inbox.add(HONEST, NamedKey(b"d", "d"), "honest")
    for peer, frames in ((one, [b"x", b"y"]), (two, [b"z"]), (three, [])):
        inbox.add(peer, NamedKey(b"a", "a"), "hostile")
        inbox.put(peer, frames)
    assert inbox.knows(one)
    assert not inbox.knows(four)
    inbox.add(four, NamedKey(b"b", "b"), "hostile")
    assert [inbox.key(each).name for each in (one, two, HONEST)] == ["a", "", "d"]
    assert (inbox.owner_of(one), inbox.owner_of(two), inbox.owner_of(HONEST)) == ("hostile", "", "honest")
    assert inbox.num_dropped == 1
    assert inbox.turn(0.0) == [(one, b"x"), (one, b"y")]
    inbox.charge(two, 1.0, 0.0)
