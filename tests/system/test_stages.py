"""A target in stages: real processes and sockets, a tiny model. Its tokens are those of the model that is not cut.

So they are while a stage is killed, stopped or cut off in the middle of answers, also behind keys. Without anybody in
its place, requests end.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import zmq

from stages import config_of, saved
from starspec.config import LengthConfig, ModelConfig, PipeConfig, RemoteConfig, SpeculativeConfig, TargetConfig
from starspec.config.lab import LabLink, LinkShape
from starspec.engine.build import make_drafts
from starspec.engine.drafts import NoDrafts
from starspec.engine.engine import TargetEngine
from starspec.harness.decode import Job, decode, make_engine
from starspec.harness.servers import StarspecServer, free_port
from starspec.ids import RequestId, TargetId
from starspec.lab import LabThread
from starspec.models.loading.load import load_info, load_runner
from starspec.models.loading.tokenizer import load_tokenizer
from starspec.sampling.spec import SamplingSpec
from starspec.stages.attach import attach
from starspec.stages.coordinator import RemoteVerifier
from starspec.stages.open import LEASE_S, open_stages
from starspec.stats import TargetStats
from starspec.windows.verifier import Verifier
from starspec.wire.codec import MAX_FRAME_BYTES, Decoder, encode
from starspec.wire.keys import generate_keys, load_keys
from starspec.wire.messages import PROTOCOL_VERSION, Ask, EngineOutput, Rejected, Submit, TargetStatus, TargetToGateway
from starspec.wire.transports.sockets import Context, make_socket
from starspec.wire.transports.waiting import Waiting
from starspec.wire.transports.zmq_pipe import ZmqPipe

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]

MAX_LEN = 100
MODEL = ("--dtype", "float32", "--max-model-len", str(MAX_LEN))
LAYERS = {"first half": "0:2", "last half": "2:4", "third quarter": "2:3", "last quarter": "3:4", "spare": "2:4"}
THREE = ("first half", "third quarter", "last quarter")
NUM_TOKENS = 80
LIMIT_S = 100.0
SEEN_WITHIN_S = 5.0  # 2 s on a machine with enough cores
DRAFTING = json.dumps({"length": {"policy": "fixed"}, "num_speculative_tokens": 3, "remote": {"deadline_ms": 5000}})
PROMPTS = ((5, 9, 13, 2, 44), (7,), (8, 8, 8, 30, 31, 32, 33, 34, 35), (11, 3))
SAMPLINGS = (SamplingSpec(temperature=0.0), SamplingSpec(temperature=0.9, seed=4, frequency_penalty=0.4))
JOBS = [
    Job(f"{number}-{prompt[0]}", prompt, sampling, NUM_TOKENS)
    for number, sampling in enumerate(SAMPLINGS)
    for prompt in PROMPTS
]


def _model(folder: Path) -> ModelConfig:
    return config_of(folder, num_rows=8, numerics="invariant")


class Star:
    """Stages and a hub, to which one target after another can be started."""

    def __init__(
        self, stack: ExitStack, folder: Path, layers: Mapping[str, str] = LAYERS, keys: Path | None = None
    ) -> None:
        self._stack = stack
        self._keys = keys
        self._links = () if keys is None else ("--keys", str(keys))
        self._model = ("--model", str(folder), *MODEL)
        port = free_port()
        self.hub = self.start("draft", "--draft", str(folder), *MODEL, "--port", str(port), *self._links)
        self.drafts = ("--hub", f"tcp://127.0.0.1:{port}", "--speculative-config", DRAFTING)
        self.stages = {name: self.stage(each) for name, each in layers.items()}
        self.endpoints = {name: stage.wait_ready() for name, stage in self.stages.items()}
        self.hub.wait_ready()

    def start(self, *arguments: str) -> StarspecServer:
        server = StarspecServer(*arguments)
        self._stack.callback(server.end)
        return server

    def stage(self, layers: str, *options: str, endpoint: str = "tcp://127.0.0.1:0") -> StarspecServer:
        return self.start("stage", *self._model, "--layers", layers, "--listen", endpoint, *self._links, *options)

    def target(self, *names: str, options: Sequence[str] = ()) -> StarspecServer:
        stages = ("--stages", ",".join(self.endpoints[each] for each in names))
        usual = ("--port", "0", "--name", "cut", "--lease", "300")  # the clients here say nothing while they wait
        return self.start("target", *self._model, *usual, *stages, *options, *self.drafts, *self._links)

    @contextmanager
    def client(self, *names: str, options: Sequence[str] = ()) -> Iterator[Client]:
        """Of a new target with these stages, which ends behind the block."""
        target = self.target(*names, options=options)
        client = Client(target, self._keys)
        try:
            yield client
        finally:
            client.close()
            target.end()

    @contextmanager
    def far_engine(self, folder: Path, in_flight: int, delay_ms: float) -> Iterator[TargetEngine]:
        """The engine of a target in this process, with two stages behind a lab."""
        names, shape = ("first half", "last half"), LinkShape(delay_ms=delay_ms)
        with LabThread(*(LabLink(name=each, to=self.endpoints[each], shape=shape) for each in names)) as lab:
            pipe = PipeConfig(stages=tuple(lab.endpoint(each) for each in names), in_flight=in_flight)
            # the others' name: they may take over stages that its farewell does not reach before the lab is closed
            config, waiting = TargetConfig(name="cut", pipe=pipe), Waiting()
            verifier, _ = open_stages(config, _model(folder), waiting)
            with self._engine(verifier, config, folder, waiting) as engine:
                yield engine

    @contextmanager
    def engine_beside(self, folder: Path, lab: LabThread) -> Iterator[TargetEngine]:
        """The engine of a target in this process that reaches two stages and a spare without the lab's link.

        It tells the first stage that the second one is behind the link, so nothing else passes there.
        """
        reached = [self.endpoints["first half"], self.endpoints["last half"]]
        config, waiting, spares = TargetConfig(name="cut"), Waiting(), [self.endpoints["spare"]]
        link = ZmqPipe(reached, None, False, config.pipe.silence_s, waiting, spares=spares)
        limit_s = time.monotonic() + LIMIT_S
        while link.missing:
            assert time.monotonic() < limit_s, link.missing
            link.receive(0.1)
        told = [reached[0], lab.endpoint()]
        pipe = attach(link, told, TargetId("cut"), lease_s=LEASE_S, timeout_s=LIMIT_S, clock=time.monotonic)
        info = load_info(_model(folder))
        verifier = RemoteVerifier(link, pipe, info, depth=2, clock=time.monotonic, spares=spares)
        with self._engine(verifier, config, folder, waiting) as engine:
            yield engine

    @contextmanager
    def _engine(
        self, verifier: Verifier, config: TargetConfig, folder: Path, waiting: Waiting
    ) -> Iterator[TargetEngine]:
        """Of these stages, with drafts of the hub."""
        tokenizer, stats = load_tokenizer(str(folder)), TargetStats()
        remote = RemoteConfig(endpoint=self.drafts[1], deadline_ms=5000)
        fixed = SpeculativeConfig(length=LengthConfig(policy="fixed"), num_speculative_tokens=3, remote=remote)
        drafts = make_drafts(config, fixed, verifier.info, tokenizer, stats, waiting)
        try:
            yield TargetEngine(verifier, tokenizer, drafts, config, stats)
        finally:
            drafts.shutdown()
            verifier.close()

    def restart(self, name: str) -> None:
        """A stage that was killed is started again at its address."""
        self.stages[name] = self.stage(LAYERS[name], endpoint=self.endpoints[name])


@dataclass
class Answer:
    """What a request has got so far."""

    token_ids: list[int] = field(default_factory=list)
    end: EngineOutput | Rejected | None = None

    @property
    def is_whole(self) -> bool:
        return isinstance(self.end, EngineOutput) and self.end.finish_reason == "length"

    @property
    def why(self) -> tuple[int | str | None, int | str | None]:
        """Why it ended: the kind of end, and the reason."""
        if isinstance(self.end, EngineOutput):
            return self.end.finish_reason, self.end.stop_reason
        return (None, None) if self.end is None else (self.end.status, self.end.message)


class Client:
    """A gateway that asks one target."""

    def __init__(self, target: StarspecServer, keys: Path | None = None) -> None:
        self.target = target
        self.got: dict[str, Answer] = {}
        self._status: TargetStatus | None = None
        self._context = Context()
        self._socket = make_socket(self._context, zmq.DEALER, MAX_FRAME_BYTES)
        self._socket.immediate = False
        if keys is not None:
            own = load_keys(keys, "gateway")
            assert own is not None
            own.secure_client(self._socket, own.public_key_of("target"))
        self._socket.connect(target.wait_ready())
        self._decoder: Decoder[TargetToGateway] = Decoder(TargetToGateway)

    def submit(self, jobs: Sequence[Job], num_draft_tokens: int | None = None) -> None:
        """All at once. Args: num_draft_tokens: 0 = plainly."""
        for job in jobs:
            self.got[job.name] = Answer()
            spec = replace(job, num_draft_tokens=num_draft_tokens).spec
            self._socket.send_multipart([encode(Submit(RequestId(job.name), spec))])

    def answers(self, jobs: Sequence[Job], num_draft_tokens: int | None = None) -> dict[str, list[int]]:
        """Of requests that are all answered whole."""
        self.submit(jobs, num_draft_tokens)
        return self.whole_answers()

    def whole_answers(self) -> dict[str, list[int]]:
        """What has been submitted is answered whole, and then no row is taken."""
        self.wait(lambda: all(each.end for each in self.got.values()))
        assert all(each.is_whole for each in self.got.values()), self.got
        status = self.status()
        assert status.num_free_rows == status.num_rows
        return {name: each.token_ids for name, each in self.got.items()}

    def answer_again(self, job: Job) -> None:
        """Ask until the target takes requests again."""
        limit_s = time.monotonic() + LIMIT_S
        while not self.got[job.name].is_whole:
            assert time.monotonic() < limit_s
            self.submit([job])
            self.wait(lambda: self.got[job.name].end is not None)

    def wait(self, is_enough: Callable[[], bool]) -> None:
        limit_s = time.monotonic() + LIMIT_S
        while not is_enough():
            assert time.monotonic() < limit_s, self.got
            for frame in self._socket.recv_multipart() if self._socket.poll(100) else ():
                self._hear(self._decoder.decode(frame))

    def status(self) -> TargetStatus:
        self._status = None
        self._socket.send_multipart([encode(Ask(PROTOCOL_VERSION))])
        self.wait(lambda: self._status is not None)
        assert self._status is not None
        return self._status

    def _hear(self, message: TargetToGateway) -> None:
        match message:
            case EngineOutput():
                answer = self.got[message.request_id]
                answer.token_ids += message.token_ids
                answer.end = None if message.finish_reason is None else message
            case Rejected():
                self.got[message.request_id].end = message
            case TargetStatus():
                self._status = message

    def close(self) -> None:
        self._socket.close(0)
        self._context.term()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved("llama", tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def expected(folder: Path) -> dict[str, list[int]]:
    """The answers of the whole model."""
    runner = load_runner(config_of(folder, num_rows=8, numerics="invariant"))
    results = decode(make_engine(runner, load_tokenizer(str(folder)), NoDrafts()), JOBS, batch_size=8)
    return {job.name: result.token_ids for job, result in zip(JOBS, results, strict=True)}


@pytest.fixture(scope="module")
def star(folder: Path) -> Iterator[Star]:
    with ExitStack() as stack:
        yield Star(stack, folder)


def begin(client: Client) -> None:
    """Ask, half with drafts and half without. Every request gets some tokens, and not all of them get all."""
    client.submit(JOBS[::2])
    client.submit(JOBS[1::2], num_draft_tokens=0)
    client.wait(lambda: all(len(each.token_ids) > 2 for each in client.got.values()))
    assert not all(each.end for each in client.got.values())


def test_stages_in_the_wrong_order_are_refused_in_one_sentence(star: Star) -> None:
    target = star.target("last half", "first half")
    assert target.process.wait(LIMIT_S) == 2
    assert "starspec: no stage has layers 0:2, before" in target.output()


def test_tokens_are_those_of_the_whole_model_with_drafts_and_without(
    star: Star, expected: dict[str, list[int]]
) -> None:
    with star.client(*THREE) as client:
        assert client.answers(JOBS) == expected
        assert client.answers(JOBS, num_draft_tokens=0) == expected


def test_several_windows_of_one_sequence_are_in_flight_over_links_of_40_ms(
    star: Star, folder: Path, expected: dict[str, list[int]]
) -> None:
    with star.far_engine(folder, in_flight=4, delay_ms=40.0) as engine:
        jobs = [JOBS[0], JOBS[4]]  # greedy, and sampled with penalties
        results = decode(engine, jobs, batch_size=1)
        assert [each.token_ids for each in results] == [expected[each.name] for each in jobs]
        assert engine.stats.num_ahead_windows > 10


def test_each_stage_that_is_killed_and_started_again_goes_on_with_the_same_tokens(
    star: Star, expected: dict[str, list[int]]
) -> None:
    with star.client(*THREE, options=("--stage-wait", str(LIMIT_S))) as client:
        for number, name in enumerate(THREE, 1):
            begin(client)
            star.stages[name].end(signal.SIGKILL)
            star.restart(name)
            assert client.whole_answers() == expected
            assert client.target.output().count("the stages are attached anew") >= number


@pytest.mark.parametrize("cut", ["between the stages", "before the target"])
def test_a_stage_that_a_partition_cuts_off_goes_on_with_the_same_tokens_when_the_link_is_whole(
    star: Star, expected: dict[str, list[int]], cut: str
) -> None:
    with LabThread(LabLink(to=star.endpoints["last half"])) as lab, ExitStack() as stack:
        is_between = cut == "between the stages"
        first = star.stage("0:2", "--next", lab.endpoint() if is_between else star.endpoints["last half"])
        stack.callback(first.end)
        star.endpoints |= {"told": first.wait_ready(), "last": lab.endpoint()}
        last = "last half" if is_between else "last"
        with star.client("told", last, options=("--stage-wait", str(LIMIT_S))) as client:
            begin(client)
            lab.partition()
            cut_s = time.monotonic()
            why = "is gone" if is_between else f"stage {lab.endpoint()} does not answer"
            client.wait(lambda: why in client.target.output())
            assert time.monotonic() - cut_s < SEEN_WITHIN_S
            lab.heal()
            assert client.whole_answers() == expected


def test_behind_keys_a_stage_that_is_killed_and_started_again_goes_on_with_the_same_tokens(
    folder: Path, expected: dict[str, list[int]], tmp_path: Path
) -> None:
    generate_keys(tmp_path / "keys")
    with ExitStack() as stack:
        star = Star(stack, folder, {"first half": "0:2", "last half": "2:4"}, tmp_path / "keys")
        with star.client("first half", "last half", options=("--stage-wait", str(LIMIT_S))) as client:
            begin(client)
            star.stages["last half"].end(signal.SIGKILL)
            star.restart("last half")
            assert client.whole_answers() == expected
            assert "the stages are attached anew" in client.target.output()


def test_a_spare_takes_the_place_of_a_stage_that_is_stopped(star: Star, expected: dict[str, list[int]]) -> None:
    with star.client("first half", "last half", options=("--spares", star.endpoints["spare"])) as client:
        begin(client)
        star.stages["last half"].send(signal.SIGSTOP)
        stopped_s = time.monotonic()
        try:
            why = f"stage {star.endpoints['last half']} does not answer"
            client.wait(lambda: why in client.target.output())
            assert time.monotonic() - stopped_s < SEEN_WITHIN_S
            assert client.whole_answers() == expected
        finally:
            star.stages["last half"].send(signal.SIGCONT)


def test_a_spare_takes_the_place_of_the_farther_stage_if_only_the_link_between_the_two_is_cut(
    star: Star, folder: Path, expected: dict[str, list[int]]
) -> None:
    with LabThread(LabLink(to=star.endpoints["last half"])) as lab, star.engine_beside(folder, lab) as engine:
        got: dict[str, list[int]] = {job.name: [] for job in JOBS}
        ends: dict[str, str | None] = {}

        def step() -> None:
            for key, output in engine.step().items():
                got[key.request_id] += output.token_ids
                if output.finish_reason is not None:
                    ends[key.request_id] = output.finish_reason

        def chain() -> list[str]:
            assert engine.verifier.pipe is not None
            return [each.endpoint for each in engine.verifier.pipe.stages if each.index is not None]

        for job in JOBS:
            engine.submit(RequestId(job.name), job.spec)
        while not all(len(each) > 2 for each in got.values()):
            step()
        assert not ends
        assert chain() == [star.endpoints["first half"], lab.endpoint()]
        lab.partition()
        cut_s = time.monotonic()
        while chain()[1] != star.endpoints["spare"] or not engine.verifier.depth:
            assert time.monotonic() - cut_s < LEASE_S
            step()
        while engine.has_work:
            assert time.monotonic() - cut_s < LIMIT_S
            step()
        engine.check_integrity()
        assert got == expected
        assert set(ends.values()) == {"length"}


def test_without_anybody_in_its_place_requests_end_and_new_ones_are_refused_until_the_stage_is_back(
    star: Star, expected: dict[str, list[int]]
) -> None:
    with star.client("first half", "last half", options=("--stage-wait", "3")) as client:
        begin(client)
        star.stages["last half"].send(signal.SIGSTOP)
        client.wait(lambda: all(each.end for each in client.got.values()))
        why = f"stage {star.endpoints['last half']} does not answer"
        for name, answer in client.got.items():
            assert answer.token_ids == expected[name][: len(answer.token_ids)]
            assert answer.is_whole or answer.why == ("abort", f"{why}; no other stage took its place within 3 s")
        assert not all(each.is_whole for each in client.got.values())
        client.submit(JOBS[:1])
        client.wait(lambda: client.got[JOBS[0].name].end is not None)
        assert client.got[JOBS[0].name].why == (503, why)
        status = client.status()
        assert (status.num_free_rows, status.lacks_stages) == (status.num_rows, True)
        star.stages["last half"].send(signal.SIGCONT)
        client.answer_again(JOBS[0])
        assert not client.status().lacks_stages
        assert client.answers(JOBS) == expected
