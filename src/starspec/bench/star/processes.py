"""The hub and the targets of `bench star`: each a process of its own, over real sockets."""

from __future__ import annotations

import itertools
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from starspec.config import HubConfig, ModelConfig, SpeculativeConfig
from starspec.engine.engine import TargetEngine
from starspec.fingerprint import vocab_fingerprint
from starspec.harness.decode import Job
from starspec.harness.star import DEADLINE_S, IDLE_WAIT_S, await_hub, connected_target, hub_loop
from starspec.hub.build import load_drafter
from starspec.hub.checks import suited_to
from starspec.ids import RequestId, Tag, TargetId
from starspec.models.loading.load import load_runner
from starspec.models.loading.tokenizer import load_tokenizer
from starspec.models.resolve import resolve_draft
from starspec.models.runner import BatchRunner
from starspec.models.synthetic.spec import parse_synthetic
from starspec.observe.trace import Trace
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.budget import DraftBudget
from starspec.stats import TargetStats
from starspec.wire.messages import PROTOCOL_VERSION, Hello, Open, Proposal, TargetToHub, TreeShape, Verdict
from starspec.wire.session import Role, TagSession
from starspec.wire.transports.zmq_target import ZmqTarget

MAX_TOKENS = 3000  # of one request; long, because each new request costs a prefill


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One measurement of a target."""

    num_draft_tokens: int  # of a chain; 0 = plain decoding
    warm_up_s: float
    seconds: float
    seed: int = 0  # of the requests: turns with the same seed get the same requests
    slow_motion: float = 1.0  # modelled forwards of hub and targets take so many times as long
    trace_folder: Path | None = None  # where hub and targets write their parts of a trace; None = no trace


@dataclass(frozen=True, slots=True)
class TargetTimes:
    """The measurements of one target in one turn."""

    num_tokens: int
    num_rounds: int
    num_proposals: int  # with at least one token
    seconds: float
    wait_s: float  # the hub's response time, a round
    link_s: float  # t_c, a round
    verify_s: float = 0.0  # t_v, a round

    @property
    def tokens_per_s(self) -> float:
        """O_i."""
        return self.num_tokens / self.seconds


def run_hub(
    parent: Connection,
    model: ModelConfig,
    config: HubConfig,
    trace_folder: Path | None = None,
    target: str | None = None,
) -> None:
    """Serve until the parent sends None. For every other message of the parent, send the statistics.

    Args:
        model: a draft model, or an EAGLE head.
        target: the model that a head drafts for.
    Sends: the public port; then a HubStats for each word.
    """
    draft = resolve_draft(SpeculativeConfig(model=model.model))
    loaded, trace_file = load_drafter(draft, model, model.num_rows, target), _trace_file(trace_folder, "hub")
    trace = Trace("hub") if trace_file else None
    with hub_loop(loaded, suited_to(draft, config), trace=trace, transport_trace=trace) as (loop, port):
        parent.send(port)
        while True:
            if parent.poll():
                if parent.recv() is None:
                    break
                parent.send(loop.status().stats)
            loop.run_once(IDLE_WAIT_S)
        if trace is not None and trace_file is not None:
            trace.write(trace_file)


def run_target(parent: Connection, name: str, model: ModelConfig) -> None:
    """Measure one turn after the other until the parent sends None.

    A turn: connect to a hub, wait for a message of the parent, decode requests one by one.

    Receives: the endpoint of a hub and a Turn, for each turn.
    Sends: True once loaded; for each turn True once connected, and TargetTimes at its end.
    Raises: PeerLost if the hub does not answer.
    """
    runner = load_runner(model)
    parent.send(True)
    while (word := parent.recv()) is not None:
        _take_turn(parent, name, runner, *word)


def _take_turn(parent: Connection, name: str, runner: BatchRunner, endpoint: str, turn: Turn) -> None:
    with attached(name, runner, load_tokenizer(runner.info.name), endpoint, turn) as target:
        parent.send(True)
        parent.recv()
        requests = Requests(target.engine, _synthetic_jobs(f"{name}-{turn.seed}"))
        requests.serve_for(turn.warm_up_s)  # no pause follows: a target that pauses may lose its admission
        parent.send(target.measure(lambda: requests.serve_for(turn.seconds)))
        requests.end()


@dataclass(frozen=True, slots=True)
class AttachedTarget:
    """A target that is connected to a hub for one turn."""

    engine: TargetEngine
    stats: TargetStats
    trace: Trace | None
    trace_file: Path | None

    def measure(self, work: Callable[[], int]) -> TargetTimes:
        """Time some work that returns its number of emitted tokens. Effects: writes the trace."""
        num_rounds, num_proposals = self.stats.num_rounds, self.stats.acceptance.num_drafts
        started_s = time.monotonic()
        num_tokens = work()
        seconds = time.monotonic() - started_s
        if self.trace is not None and self.trace_file is not None:
            self.trace.write(self.trace_file)
        return TargetTimes(
            num_tokens,
            self.stats.num_rounds - num_rounds,
            self.stats.acceptance.num_drafts - num_proposals,
            seconds,
            self.stats.wait.value,
            self.stats.t_c.value,
            self.stats.t_v.value,
        )


@contextmanager
def attached(name: str, runner: BatchRunner, tokenizer: Any, endpoint: str, turn: Turn) -> Iterator[AttachedTarget]:
    """Connect to a hub. Raises: PeerLost if it does not answer."""
    stats, trace = TargetStats(), Trace(name) if turn.trace_folder else None
    deadline_s = DEADLINE_S * turn.slow_motion
    with connected_target(
        name, runner, tokenizer, endpoint, turn.num_draft_tokens, stats, deadline_s=deadline_s, trace=trace
    ) as engine:
        yield AttachedTarget(engine, stats, trace, _trace_file(turn.trace_folder, name))


def _trace_file(folder: Path | None, name: str) -> Path | None:
    return None if folder is None else folder / f"{name}.json"


class Requests:
    """An endless stream of requests, one at a time."""

    def __init__(self, engine: TargetEngine, jobs: Iterator[Job]) -> None:
        self._engine = engine
        self._jobs = jobs
        self._running: RequestId | None = None

    def serve_for(self, seconds: float) -> int:
        """Returns: tokens emitted."""
        end_s, num_tokens = time.monotonic() + seconds, 0
        while time.monotonic() < end_s:
            if self._running is None:
                job = next(self._jobs)
                self._running = RequestId(job.name)
                self._engine.submit(self._running, job.spec)
            for output in self._engine.step().values():
                num_tokens += len(output.token_ids)
                if output.finish_reason is not None:
                    self._running = None
        return num_tokens

    def end(self) -> None:
        """Abort the running request, so that the engine is idle."""
        if self._running is not None:
            self._engine.abort(self._running)
            self._running = None
        while self._engine.has_work:
            self._engine.step()


def _synthetic_jobs(name: str) -> Iterator[Job]:
    for seed in itertools.count(zlib.crc32(name.encode())):
        prompt = tuple((seed >> index) % 400 + 8 for index in range(16))  # successive seeds give different prompts
        yield Job(f"request-{seed}", prompt, SamplingSpec(temperature=0.0, end_token_ids=()), MAX_TOKENS)


NUM_TAGS: Final = 4  # sequences; while one is answered, the others wait
PROMPT: Final = tuple(range(8, 24))
SAID: Final = 7  # the token of every verdict
SAMPLING: Final = SamplingSpec(temperature=0.0, end_token_ids=())
WAIT_S: Final = 0.05


@dataclass(slots=True)
class _GreedyTag:
    session: TagSession
    budget: DraftBudget

    def open(self) -> Open:
        shape, num_tokens = TreeShape.of(self.budget), self.budget.num_draft_tokens
        prompt = list(PROMPT)
        return self.session.send(
            Open(self.session.tag, self.session.next_epoch, prompt, len(prompt), SAMPLING, num_tokens, shape)
        )

    def verdict(self) -> Verdict:
        shape, num_tokens = TreeShape.of(self.budget), self.budget.num_draft_tokens
        session = self.session
        return session.send(Verdict(session.tag, session.next_epoch, session.prefix_len, [SAID], num_tokens, shape))


def run_greedy(parent: Connection, name: str, model: ModelConfig) -> None:
    """A greedy target: it asks for one proposal after another, verifies nothing and takes no time.

    Messages with the parent are those of `run_target`; a round is a proposal here.

    Args:
        model: the synthetic target, for its vocabulary.
    Raises: PeerLost if the hub does not answer.
    """
    hello = Hello(
        PROTOCOL_VERSION,
        TargetId(name),
        parse_synthetic(model.model).vocab,
        vocab_fingerprint(load_tokenizer(model.model)),
    )
    parent.send(True)
    while (word := parent.recv()) is not None:
        endpoint, turn = word
        _take_greedy_turn(parent, ZmqTarget(endpoint, hello), turn)


def _take_greedy_turn(parent: Connection, transport: ZmqTarget, turn: Turn) -> None:
    try:
        await_hub(lambda: transport.is_connected, lambda: transport.receive(0.0))
        parent.send(True)
        parent.recv()
        budget = DraftBudget.chain(turn.num_draft_tokens)
        tags = {number: _GreedyTag(TagSession(Role.TARGET, Tag(number)), budget) for number in range(1, NUM_TAGS + 1)}
        transport.send([tag.open() for tag in tags.values()])
        _serve_greedily(turn.warm_up_s, transport, tags)
        num_rounds = _serve_greedily(turn.seconds, transport, tags)
        parent.send(TargetTimes(num_rounds, num_rounds, num_rounds, turn.seconds, wait_s=0.0, link_s=0.0))
    finally:
        transport.close()


def _serve_greedily(seconds: float, transport: ZmqTarget, tags: dict[int, _GreedyTag]) -> int:
    """Returns: number of received proposals."""
    end_s, num_rounds = time.monotonic() + seconds, 0
    while time.monotonic() < end_s:
        answers: list[TargetToHub] = []
        for message in transport.receive(WAIT_S):
            if isinstance(message, Proposal) and tags[message.tag].session.receive(message) is not None:
                num_rounds += 1
                answers.append(tags[message.tag].verdict())
        transport.send(answers)
    return num_rounds
