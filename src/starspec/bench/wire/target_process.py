"""A target of a wire benchmark: the real engine and link, with a note of when proposals were asked for and came."""

from __future__ import annotations

import time
from collections.abc import Sequence
from multiprocessing.connection import Connection

from starspec.bench.wire.clock import Interval
from starspec.config import ModelConfig
from starspec.engine.remote_drafts import RemoteDrafts
from starspec.errors import PeerLost
from starspec.fingerprint import vocab_fingerprint
from starspec.harness.decode import Job, decode, make_engine
from starspec.ids import Tag, TargetId
from starspec.models.loading.load import load_runner
from starspec.models.loading.tokenizer import load_tokenizer
from starspec.policy.length.fixed import FixedLength
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.budget import DraftBudget
from starspec.stats import TargetStats
from starspec.wire.messages import (
    PROTOCOL_VERSION,
    Hello,
    HubToTarget,
    Proposal,
    TargetToHub,
    Verdict,
    Welcome,
)
from starspec.wire.transports.base import TargetTransport
from starspec.wire.transports.zmq_target import ZmqTarget

CONNECT_S = 30.0
DEADLINE_S = 5.0  # a proposal later than this would be a fault, not a measurement
MAX_TOKENS = 64  # of one request


class TimedTransport:
    """A target's transport that notes how long each verdict waited for its proposal.

    The time runs from before the verdict is encoded until after the proposal is decoded. What `Open` asks for is not
    noted: its answer includes the prompt.
    """

    def __init__(self, transport: TargetTransport) -> None:
        self._transport = transport
        self._asked: dict[tuple[Tag, int], float] = {}
        self.requests: list[Interval] = []

    @property
    def is_connected(self) -> bool:
        return self._transport.is_connected

    @property
    def num_connects(self) -> int:
        return self._transport.num_connects

    @property
    def welcome(self) -> Welcome | None:
        return self._transport.welcome

    def send(self, messages: Sequence[TargetToHub]) -> None:
        now = time.monotonic()
        for message in messages:
            if isinstance(message, Verdict) and message.num_draft_tokens:
                self._asked[message.tag, message.epoch] = now
        self._transport.send(messages)

    def receive(self, timeout_s: float) -> list[HubToTarget]:
        messages = self._transport.receive(timeout_s)
        now = time.monotonic()
        for message in messages:
            if isinstance(message, Proposal) and (message.tag, message.epoch) in self._asked:
                self.requests.append(Interval(self._asked.pop((message.tag, message.epoch)), now))
        return messages

    def close(self) -> None:
        self._transport.close()


def run_target(
    parent: Connection, endpoint: str, name: str, model: ModelConfig, num_draft_tokens: int, num_requests: int
) -> None:
    """Connect, wait for the parent's word, decode until enough proposals have come, and tell when.

    Sends: True once connected; at the end a list of Interval.
    Raises: PeerLost if the hub does not answer.
    """
    runner = load_runner(model)
    tokenizer = load_tokenizer(model.model)
    hello = Hello(PROTOCOL_VERSION, TargetId(name), runner.info.vocab_size, vocab_fingerprint(tokenizer))
    transport = TimedTransport(ZmqTarget(endpoint, hello))
    stats = TargetStats()
    drafts = RemoteDrafts(transport, FixedLength(DraftBudget.chain(num_draft_tokens)), stats, deadline_s=DEADLINE_S)
    engine = make_engine(runner, tokenizer, drafts, stats)
    try:
        _connect(transport, drafts)
        parent.send(True)
        parent.recv()
        seed = sum(name.encode())
        while len(transport.requests) < num_requests:
            seed += 1
            sampling = SamplingSpec(temperature=0.0, end_token_ids=runner.info.eos_token_ids)
            prompt = tuple((seed * 31 + index) % 400 + 8 for index in range(16))
            decode(engine, [Job(name, prompt, sampling, MAX_TOKENS)], batch_size=1)
        parent.send(transport.requests)
    finally:
        drafts.shutdown()


def _connect(transport: TimedTransport, drafts: RemoteDrafts) -> None:
    give_up_s = time.monotonic() + CONNECT_S
    while not transport.is_connected:
        if time.monotonic() > give_up_s:
            raise PeerLost(f"the benchmark's hub did not answer within {CONNECT_S:.0f} s")
        drafts.poll()
        time.sleep(0.01)
