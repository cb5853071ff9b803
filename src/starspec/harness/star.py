"""A hub and its targets for measuring, each in a child process: the real loops and the real sockets."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from starspec.config import HubConfig, ModelConfig
from starspec.engine.engine import TargetEngine
from starspec.engine.remote_drafts import RemoteDrafts
from starspec.errors import PeerLost
from starspec.fingerprint import vocab_fingerprint
from starspec.harness.decode import make_engine
from starspec.hub.build import LoadedDrafter, build_hub, terms_of
from starspec.hub.causal import CausalDrafter
from starspec.hub.handshake import admit
from starspec.hub.loop import HubLoop
from starspec.ids import TargetId
from starspec.models.runner import BatchRunner, ModelRunner
from starspec.policy.length.fixed import FixedLength
from starspec.speculation.budget import DraftBudget
from starspec.stats import HubStats, TargetStats
from starspec.tracing import Tracer
from starspec.wire.messages import PROTOCOL_VERSION, Hello, HubStatus, HubToTarget, TargetToHub, Welcome
from starspec.wire.transports.base import HubTransport, TargetTransport
from starspec.wire.transports.zmq_hub import ZmqHub
from starspec.wire.transports.zmq_target import ZmqTarget

IDLE_WAIT_S: Final = 0.05  # longest wait of one turn of the hub's loop
CONNECT_S: Final = 30.0
DEADLINE_S: Final = 5.0  # of modelled time: a later proposal would be a fault, not a measurement


class TargetTransportAround:
    """Passes every call on to another transport. A measurement that notes messages derives from this."""

    def __init__(self, transport: TargetTransport) -> None:
        self._transport = transport

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
        self._transport.send(messages)

    def receive(self, timeout_s: float) -> list[HubToTarget]:
        return self._transport.receive(timeout_s)

    def close(self) -> None:
        self._transport.close()


def loaded_causal(runner: ModelRunner, model: ModelConfig) -> LoadedDrafter:
    """A drafter for targets of any vocabulary. Args: runner: the draft, loaded from `model`."""
    return LoadedDrafter(CausalDrafter(runner), None, model.num_rows, 0)


@contextmanager
def hub_loop(
    loaded: LoadedDrafter,
    config: HubConfig,
    *,
    trace: Tracer | None = None,
    transport_trace: Tracer | None = None,
    around: Callable[[HubTransport], HubTransport] = lambda transport: transport,
) -> Iterator[tuple[HubLoop, int]]:
    """Build a hub that answers no status requests. The caller runs `turn`.

    Args:
        trace: of the hub's steps.
        transport_trace: of its transport.
        around: wraps the transport, to note what passes.
    Yields: the loop, and the port that the hub listens on.
    """
    transport = ZmqHub(
        config.host,
        config.port,
        partial(admit, terms_of(loaded, config)),
        lambda: HubStatus(loaded.drafter.name, HubStats()),
        trace=transport_trace,
    )
    try:
        yield HubLoop(build_hub(loaded, config, trace=trace), around(transport)), transport.port
    finally:
        transport.close()


@contextmanager
def connected_target(
    name: str,
    runner: BatchRunner,
    tokenizer: Any,
    endpoint: str,
    num_draft_tokens: int,
    stats: TargetStats,
    *,
    deadline_s: float = DEADLINE_S,
    trace: Tracer | None = None,
    around: Callable[[TargetTransport], TargetTransport] = lambda transport: transport,
) -> Iterator[TargetEngine]:
    """A target whose drafts come from the hub at `endpoint`.

    Args:
        num_draft_tokens: of a chain; 0 = plain decoding.
        deadline_s: longest wait for a proposal.
        around: wraps the transport, to note what passes.
    Raises: PeerLost if the hub does not answer.
    """
    info = runner.info
    fingerprint = vocab_fingerprint(tokenizer)
    hello = Hello(PROTOCOL_VERSION, TargetId(name), info.vocab_size, fingerprint, info.num_layers, info.hidden_size)
    policy = FixedLength(DraftBudget.chain(num_draft_tokens))
    drafts = RemoteDrafts(around(ZmqTarget(endpoint, hello)), policy, stats, deadline_s=deadline_s)
    engine = make_engine(runner, tokenizer, drafts, stats, trace=trace)
    try:
        await_hub(lambda: drafts.is_connected, drafts.poll)
        yield engine
    finally:
        drafts.shutdown()


def await_hub(is_connected: Callable[[], bool], poll: Callable[[], object]) -> None:
    """Poll until connected. Raises: PeerLost after CONNECT_S."""
    give_up_s = time.monotonic() + CONNECT_S
    while not is_connected():
        if time.monotonic() > give_up_s:
            raise PeerLost(f"the benchmark's hub did not answer within {CONNECT_S:.0f} s")
        poll()
        time.sleep(0.01)
