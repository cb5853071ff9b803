"""Whatever a peer sends, the hub goes on serving everybody else: 10^5 broken frames against a live one."""

from __future__ import annotations

import contextlib
import random
import threading
from itertools import pairwise

import psutil
import pytest
import zmq

from starspec.ids import Epoch, Tag, TargetId
from starspec.sampling.spec import SamplingSpec
from starspec.wire.codec import encode
from starspec.wire.messages import PROTOCOL_VERSION, Ask, Close, Fault, Goodbye, Hello, Open, Ping, Pong, Verdict

pytestmark = pytest.mark.system

NUM_FRAMES = 100_000
NUM_ATTACKERS = 4
NUM_WAVES = 5  # the first allocates what stays; a leak shows in each of the others, a settling allocator in some
MAX_GROWTH_BYTES = 80 * NUM_FRAMES // NUM_WAVES  # 80 a frame
SAMPLING = SamplingSpec(temperature=0.8, logit_bias={3: 1.0}, end_token_ids=(2,))
SEEDS = [
    encode(message)
    for message in (
        Hello(PROTOCOL_VERSION, TargetId("x"), 100, "f"),
        Ask(PROTOCOL_VERSION),
        Open(Tag(1), Epoch(1), list(range(60)), 60, SAMPLING, 4),
        Verdict(Tag(1), Epoch(2), 60, [1, 2, 3], 4),
        Close(Tag(1), Epoch(3)),
        Ping(0),
        Ping(3),
        Goodbye("x"),
        Fault("x"),
    )
]


def mutant(rng: random.Random) -> list[bytes]:
    """A multipart of one to three frames that were messages once, or never."""
    return [mutate(bytearray(rng.choice(SEEDS)), rng) for _ in range(rng.choice((1, 1, 1, 2, 3)))]


def mutate(frame: bytearray, rng: random.Random) -> bytes:
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(frame) + 1)
        match rng.randrange(6):
            case 0:
                frame[at : at + 1] = rng.randbytes(1)
            case 1:  # a length or a type that lies: the leading bytes of maps, arrays, strings, numbers
                frame[at : at + 1] = bytes([rng.choice((0x80, 0x8F, 0x90, 0xDC, 0xDD, 0xDF, 0xDB, 0xCF, 0xCB, 0xC0))])
            case 2:
                del frame[at : at + rng.randint(1, 8)]
            case 3:
                frame[at:at] = frame[: rng.randint(1, 16)]
            case 4:
                del frame[at:]
            case 5:
                frame[:] = rng.randbytes(rng.randint(0, 80))
    return bytes(frame)


class Attacker(threading.Thread):
    """Sends mutants to the public port, to a port of its own that it attached to, and to somebody else's."""

    def __init__(self, star, endpoint: str, victim_port: int, seed: int) -> None:
        super().__init__()
        self._dice = random.Random(seed)
        self._star = star
        self._endpoint = endpoint
        self._victim = f"{endpoint.rsplit(':', 1)[0]}:{victim_port}"
        self._seed = seed
        self.num_sent = 0

    def run(self) -> None:
        public = self._star.raw(self._endpoint)
        stranger = self._star.raw(self._victim, b"stranger-%d" % self._seed)
        own = self._attach()
        while self.num_sent < NUM_FRAMES // NUM_WAVES // NUM_ATTACKERS:
            for raw in (public, stranger, own, own):
                self._send(raw.socket)
            if not own.socket.poll(0, zmq.POLLOUT):  # a mutant was a Goodbye: the port is gone
                own.close()
                own = self._attach()

    def _send(self, socket: zmq.Socket) -> None:
        frames = mutant(self._dice)
        with contextlib.suppress(zmq.Again):  # the hub cut this connection
            socket.poll(100, zmq.POLLOUT)
            socket.send_multipart(frames, zmq.NOBLOCK)
            self.num_sent += len(frames)
        while socket.poll(0):
            socket.recv_multipart()

    def _attach(self):
        raw = self._star.raw(self._endpoint)
        name = f"attacker-{self._seed}"
        raw.attach(Hello(PROTOCOL_VERSION, TargetId(name), 100, "f"))
        return raw


def test_a_hub_survives_a_hundred_thousand_mutated_frames(star) -> None:
    # apart: what the attackers' queues took, and their allocator keeps, is not a leak of a hub
    hub = star.hub_process(is_open=True)
    honest = star.connected(hub.endpoint, "honest")
    assert honest.welcome is not None
    process = psutil.Process(hub.process.pid)
    ping(honest, 1)
    num_pings = 1
    sizes = [process.memory_info().rss]
    for wave in range(NUM_WAVES):
        seeds = range(wave * NUM_ATTACKERS, (wave + 1) * NUM_ATTACKERS)
        attackers = [Attacker(star, hub.endpoint, honest.welcome.port, seed) for seed in seeds]
        for attacker in attackers:
            attacker.start()
        while any(attacker.is_alive() for attacker in attackers):
            num_pings += 1
            ping(honest, num_pings)
        assert sum(attacker.num_sent for attacker in attackers) >= NUM_FRAMES // NUM_WAVES
        sizes.append(process.memory_info().rss)
    newcomer = star.connected(hub.endpoint, "newcomer")
    ping(newcomer, 1)
    growths = [after - before for before, after in pairwise(sizes)]
    assert min(growths[1:]) < MAX_GROWTH_BYTES, growths
    status = star.raw(hub.endpoint).greet(Ask(PROTOCOL_VERSION))
    assert status.stats.num_frames_rejected > NUM_FRAMES // 4
    assert honest.num_connects == 1
    assert num_pings > 20


def ping(target, sequence: int) -> None:
    target.send([Ping(sequence)])
    assert target.receive(10.0) == [Pong(sequence)]
