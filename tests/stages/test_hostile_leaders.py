"""Whatever a coordinator or the stage before sends, a stage lives, stays small, and serves an honest target then."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zmq
from hostile_leaders import ATTACKS, Attack, attach, passed_on
from stage_driver import Driver, no_draft
from stage_servers import WAIT_S, Running, addresses, pipe_of, serving
from structlog.testing import capture_logs
from toy_stages import plain, toy_stages

from starspec.ids import PipeEpoch
from starspec.log_limit import LINES
from starspec.policy.peer_limits import Allowance
from starspec.sampling.spec import SamplingSpec
from starspec.stages.server import ATTACHES_BURST, ATTACHES_PER_S, MAX_LEASE_S
from starspec.windows.window import Law
from starspec.wire.codec import Decoder, encode
from starspec.wire.messages import Attached, Beat, Detach, Outdated, StageToCoordinator

pytestmark = pytest.mark.timeout(120)

LAW = Law(SamplingSpec(temperature=0.8, seed=3, repetition_penalty=1.1), None, None)
PROMPT = [1, 2, 3]
MAX_GROWTH = 100 * 2**20  # bytes of this process, and so of its stages
NUM_KINDS = 6  # of log lines
UNKNOWN = PipeEpoch(2**52 + 7)
DECODER: Decoder[StageToCoordinator] = Decoder(StageToCoordinator, max_frame_bytes=2**24)


class Mad:
    """A raw socket that may lead a stage."""

    def __init__(self, address: str) -> None:
        self.socket = zmq.Context.instance().socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.sndtimeo = int(1000 * WAIT_S)
        self.socket.connect(address)
        self.epoch = PipeEpoch(0)

    def send(self, parts: list[bytes]) -> None:
        self.socket.send_multipart(parts)

    def hear(self) -> StageToCoordinator:
        assert self.socket.poll(int(1000 * WAIT_S)), "the stage says nothing"
        return DECODER.decode(self.socket.recv_multipart()[0])

    def lead(self) -> None:
        """Attach the stage, whatever epoch it knows."""
        while True:
            self.send([encode(attach(self.epoch + 1))])
            match self.hear():
                case Outdated(pipe_epoch=epoch):
                    self.epoch = epoch
                case Attached(pipe_epoch=epoch):
                    self.epoch = epoch
                    return

    def settle(self, stage: Running) -> None:
        """All that was sent is computed, or dropped."""
        self.send([encode(Beat(UNKNOWN))])
        while getattr(self.hear(), "pipe_epoch", 0) != UNKNOWN:
            pass
        self.send([encode(attach(UNKNOWN))])  # it is answered in turn
        while str(UNKNOWN) not in getattr(self.hear(), "reason", ""):
            pass
        server, until_s = stage.server, time.monotonic() + WAIT_S
        while server._queues or server._inbox._num_waiting or server._inbox._num_controls or server._is_computing:
            assert time.monotonic() < until_s
            time.sleep(0.001)

    def leave(self, stage: Running) -> None:
        """Whatever epoch it is, the stage is free again behind this."""
        for epoch in range(self.epoch, self.epoch + 400):
            self.send([encode(Detach(PipeEpoch(epoch)))])
        self.settle(stage)  # what has not left would be lost with the socket


@contextmanager
def mad_at(stage: Running) -> Iterator[Mad]:
    mad = Mad(stage.address)
    try:
        yield mad
    finally:
        mad.socket.close(0)


def memory() -> int:
    """Bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def check_served(stages: list[Running]) -> None:
    with pipe_of(addresses(stages), wait_s=WAIT_S) as verifier:
        driver = Driver(verifier, no_draft)
        sequence = driver.begin(PROMPT, LAW, 3)
        driver.decode_all()
        verifier.close()
    assert sequence.token_ids == plain(len(stages), PROMPT, LAW.sampling, 3)


@pytest.fixture(scope="module")
def servers() -> Iterator[list[Running]]:
    with serving(toy_stages(2)) as running:
        yield running


@pytest.fixture
def stages(servers: list[Running]) -> list[Running]:
    for each in servers:
        each.server._attaches = Allowance(ATTACHES_PER_S, ATTACHES_BURST)  # the tests before have used it
    return servers


@pytest.mark.parametrize("at", [0, 1], ids=["first", "last"])
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_a_stage_outlives_whoever_leads_it_and_serves_the_next_one(
    attack: Attack, at: int, stages: list[Running]
) -> None:
    before = memory()
    with capture_logs() as logs:
        with mad_at(stages[at]) as mad:
            mad.lead()
            for parts in attack(mad.epoch):
                mad.send(passed_on(parts) if at else parts)
            mad.settle(stages[at])
            mad.leave(stages[at])
        assert memory() - before < MAX_GROWTH
        stages[at].server._attaches = Allowance(ATTACHES_PER_S, ATTACHES_BURST)
        check_served(stages)
    assert all(each.thread.is_alive() for each in stages)
    assert len(logs) <= NUM_KINDS * LINES
    texts = [str(value) for line in logs for value in line.values()]
    assert all(len(text) <= 2000 and text.isprintable() for text in texts)


@pytest.mark.parametrize("at", [0, 1], ids=["first", "last"])
def test_no_stranger_breaks_a_pipe(at: int, stages: list[Running]) -> None:
    num_tokens = 4 + len(ATTACKS)
    with pipe_of(addresses(stages), lease_s=MAX_LEASE_S) as verifier:  # it beats between attacks only
        driver = Driver(verifier, no_draft)
        sequence = driver.begin(PROMPT, LAW, num_tokens)
        for attack in (None, *ATTACKS):
            with mad_at(stages[at]) as mad:
                for parts in [] if attack is None else attack(verifier._members.pipe_epoch):
                    mad.send(passed_on(parts) if at else parts)
                mad.settle(stages[at])
            num_known = len(sequence.token_ids)
            while len(sequence.token_ids) == num_known:
                if not sequence.flights:
                    driver.launch([sequence])
                driver.poll(1.0)
            assert verifier.num_losses == 0, attack
        driver.decode_all()
        verifier.close()
    assert sequence.token_ids == plain(len(stages), PROMPT, LAW.sampling, num_tokens)
