"""The hub and the targets of `bench wire`: the real ones, with the times of requests and proposals."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from multiprocessing.connection import Connection

from starspec.bench.wire.times import Interval
from starspec.cache.ragged import RaggedCache
from starspec.config import HubConfig, ModelConfig
from starspec.harness.decode import Job, decode
from starspec.harness.star import IDLE_WAIT_S, TargetTransportAround, connected_target, hub_loop, loaded_causal
from starspec.ids import LinkId, Tag
from starspec.models.loading.load import load_runner
from starspec.models.loading.tokenizer import load_tokenizer
from starspec.models.runner import ForwardOutput, ModelInfo, ModelRunner, Segment
from starspec.sampling.spec import SamplingSpec
from starspec.stats import TargetStats
from starspec.wire.messages import (
    HubToTarget,
    Proposal,
    TargetToHub,
    Verdict,
)
from starspec.wire.transports.base import Arrival, HubTransport, HubTransportStats, TargetTransport


class RequestLog:
    """The time of every request of a verdict, from receiving its bytes to writing its proposal.

    It wraps the hub's transport and is also the `Tracer` of that transport. The transport writes replies to one target
    in the order in which the hub sends them. Requests of `Open` do not count, because their answer includes the
    prefill.

    While the hub runs, events are only appended; `requests` matches them afterwards.
    """

    def __init__(self) -> None:
        self._arrivals: list[Sequence[Arrival]] = []
        self._replies: list[Mapping[LinkId, Sequence[HubToTarget]]] = []
        self._written: list[tuple[LinkId, float]] = []  # seconds

    def slice(self, track: str, name: str, start_s: float, end_s: float, **args: str | float) -> None:  # noqa: ARG002 (as Tracer)
        """As Tracer: a slice named "reply" ends when the reply was written."""
        if name == "reply":
            self._written.append((LinkId(str(args["link"])), end_s))

    def note_arrivals(self, arrivals: Sequence[Arrival]) -> None:
        """Note what the hub receives."""
        self._arrivals.append(arrivals)

    def note_replies(self, replies: Mapping[LinkId, Sequence[HubToTarget]]) -> None:
        """Note what the hub sends. Messages of one link are written together."""
        self._replies.append(replies)

    @property
    def requests(self) -> list[Interval]:
        """All requests, in order of their ends."""
        asked_s = {
            (arrival.link_id, arrival.message.tag, arrival.message.epoch): arrival.arrived_at
            for arrival in chain.from_iterable(self._arrivals)
            if isinstance(arrival.message, Verdict) and arrival.message.num_draft_tokens
        }
        leaving: defaultdict[LinkId, deque[Sequence[HubToTarget]]] = defaultdict(deque)
        for link_id, messages in chain.from_iterable(replies.items() for replies in self._replies):
            leaving[link_id].append(messages)
        requests = []
        for link_id, written_s in self._written:
            for each in leaving[link_id].popleft():
                if isinstance(each, Proposal) and (link_id, each.tag, each.epoch) in asked_s:
                    requests.append(Interval(asked_s[link_id, each.tag, each.epoch], written_s))
        return requests


class LoggedTransport:
    """A hub's transport that writes into a log what passes."""

    def __init__(self, transport: HubTransport, log: RequestLog) -> None:
        self._transport = transport
        self._log = log

    @property
    def stats(self) -> HubTransportStats:
        return self._transport.stats

    def receive(self, timeout_s: float) -> list[Arrival]:
        arrivals = self._transport.receive(timeout_s)
        self._log.note_arrivals(arrivals)
        return arrivals

    def receive_ahead(self) -> list[Arrival]:
        arrivals = self._transport.receive_ahead()
        self._log.note_arrivals(arrivals)
        return arrivals

    def send(self, replies: Mapping[LinkId, Sequence[HubToTarget]]) -> None:
        self._log.note_replies(replies)
        self._transport.send(replies)

    def close(self) -> None:
        self._transport.close()


class TimedRunner:
    """A runner that notes the start and end of its forwards."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self.forwards: list[Interval] = []

    @property
    def info(self) -> ModelInfo:
        return self._runner.info

    @property
    def cache(self) -> RaggedCache:
        return self._runner.cache

    def forward(
        self,
        segments: Sequence[Segment],
        feature_layers: Sequence[int] = (),
        *,
        is_obsolete: Callable[[], bool] | None = None,
    ) -> ForwardOutput:
        started_s = time.monotonic()
        output = self._runner.forward(segments, feature_layers, is_obsolete=is_obsolete)
        self.forwards.append(Interval(started_s, time.monotonic()))
        return output


def run_hub(parent: Connection, model: ModelConfig) -> None:
    """Serve until the parent says anything. Then send when requests waited and when the drafter computed.

    Sends: the public port; at the end two lists of Interval, requests and forwards, each in order of their ends.
    """
    log = RequestLog()
    runner = TimedRunner(load_runner(model))
    with hub_loop(
        loaded_causal(runner, model),
        HubConfig(port=0),
        transport_trace=log,
        around=lambda transport: LoggedTransport(transport, log),
    ) as (loop, port):
        parent.send(port)
        is_stopping = threading.Event()  # checking it costs nothing; checking a pipe costs a system call
        threading.Thread(target=_watch, args=(parent, is_stopping), name="bench-stop", daemon=True).start()
        while not is_stopping.is_set():
            loop.run_once(IDLE_WAIT_S)
        parent.send((log.requests, runner.forwards))


def _watch(parent: Connection, is_stopping: threading.Event) -> None:
    """Wait until the parent says something or ends."""
    parent.poll(None)
    is_stopping.set()


MAX_TOKENS = 64  # of one request


class TimedTransport(TargetTransportAround):
    """A target's transport that notes how long each verdict waited for its proposal.

    The time runs from before the verdict is encoded until the proposal is decoded. Requests of `Open` do not count,
    because their answer includes the prefill.
    """

    def __init__(self, transport: TargetTransport, requests: list[Interval]) -> None:
        super().__init__(transport)
        self._asked: dict[tuple[Tag, int], float] = {}
        self.requests = requests

    def send(self, messages: Sequence[TargetToHub]) -> None:
        now = time.monotonic()
        for message in messages:
            if isinstance(message, Verdict) and message.num_draft_tokens:
                self._asked[message.tag, message.epoch] = now
        super().send(messages)

    def receive(self, timeout_s: float) -> list[HubToTarget]:
        messages = super().receive(timeout_s)
        now = time.monotonic()
        for message in messages:
            if isinstance(message, Proposal) and (message.tag, message.epoch) in self._asked:
                self.requests.append(Interval(self._asked.pop((message.tag, message.epoch)), now))
        return messages


def run_target(
    parent: Connection, endpoint: str, name: str, model: ModelConfig, num_draft_tokens: int, num_requests: int
) -> None:
    """Connect, wait for the parent's word, decode until `num_requests` proposals have come, and send when.

    Sends: True once connected; at the end a list of Interval.
    Raises: PeerLost if the hub does not answer.
    """
    runner, tokenizer = load_runner(model), load_tokenizer(model.model)
    requests: list[Interval] = []

    def timed(transport: TargetTransport) -> TargetTransport:
        return TimedTransport(transport, requests)

    with connected_target(name, runner, tokenizer, endpoint, num_draft_tokens, TargetStats(), around=timed) as engine:
        parent.send(True)
        parent.recv()
        seed = sum(name.encode())
        while len(requests) < num_requests:
            seed += 1
            sampling = SamplingSpec(temperature=0.0, end_token_ids=runner.info.eos_token_ids)
            prompt = tuple((seed * 31 + index) % 400 + 8 for index in range(16))
            decode(engine, [Job(name, prompt, sampling, MAX_TOKENS)], batch_size=1)
        parent.send(requests)
