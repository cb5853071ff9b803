"""A target in stages: real processes and sockets, a tiny model. Its tokens are those of the model that is not cut."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import zmq

from stages import config_of, saved
from starspec.engine.drafts import NoDrafts
from starspec.harness.decode import Job, decode, make_engine
from starspec.harness.servers import StarspecServer, free_port
from starspec.ids import RequestId
from starspec.models.loading.load import load_runner
from starspec.models.loading.tokenizer import load_tokenizer
from starspec.sampling.spec import SamplingSpec
from starspec.wire.codec import MAX_FRAME_BYTES, Decoder, encode
from starspec.wire.messages import EngineOutput, Submit, TargetToGateway
from starspec.wire.transports.sockets import Context, make_socket

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]

MAX_LEN = 100
MODEL = ("--dtype", "float32", "--max-model-len", str(MAX_LEN))
LAYERS = ("0:2", "2:4", "2:3", "3:4")
NUM_TOKENS = 30
LIMIT_S = 100.0
DRAFTING = json.dumps({"length": {"policy": "fixed"}, "num_speculative_tokens": 3, "remote": {"deadline_ms": 5000}})
PROMPTS = ((5, 9, 13, 2, 44), (7,), (8, 8, 8, 30, 31, 32, 33, 34, 35), (11, 3))
SAMPLINGS = (SamplingSpec(temperature=0.0), SamplingSpec(temperature=0.9, seed=4, frequency_penalty=0.4))
JOBS = [
    Job(f"{number}-{prompt[0]}", prompt, sampling, NUM_TOKENS)
    for number, sampling in enumerate(SAMPLINGS)
    for prompt in PROMPTS
]


class Star:
    """Stages and a hub, to which targets can be started."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self._stack = stack
        self._model = ("--model", str(folder), *MODEL)
        port = free_port()
        self.hub = self.start("draft", "--draft", str(folder), *MODEL, "--port", str(port))
        self.drafts = ("--hub", f"tcp://127.0.0.1:{port}", "--speculative-config", DRAFTING)
        listen = ("--listen", "tcp://127.0.0.1:0")
        self.stages = {layers: self.start("stage", *self._model, "--layers", layers, *listen) for layers in LAYERS}
        self.endpoints = {layers: stage.wait_ready() for layers, stage in self.stages.items()}
        self.hub.wait_ready()

    def start(self, *arguments: str) -> StarspecServer:
        server = StarspecServer(*arguments)
        self._stack.callback(server.end)
        return server

    def target(self, *layers: str) -> StarspecServer:
        endpoints = ",".join(self.endpoints[each] for each in layers)
        return self.start("target", *self._model, "--port", "0", "--name", "cut", "--stages", endpoints, *self.drafts)


class Client:
    """A gateway that asks one target."""

    def __init__(self, endpoint: str) -> None:
        self._context = Context()
        self._socket = make_socket(self._context, zmq.DEALER, MAX_FRAME_BYTES)
        self._socket.immediate = False
        self._socket.connect(endpoint)
        self._decoder: Decoder[TargetToGateway] = Decoder(TargetToGateway)

    def answers(self, jobs: Sequence[Job], num_draft_tokens: int | None) -> dict[str, list[int]]:
        """All at once. Args: num_draft_tokens: 0 = plainly."""
        for job in jobs:
            self.submit(replace(job, num_draft_tokens=num_draft_tokens))
        return self.rest_of([job.name for job in jobs])

    def rest_of(self, names: Sequence[str], finish_reason: str = "length") -> dict[str, list[int]]:
        """What is answered until all have ended, for this reason."""
        got: dict[str, list[int]] = {name: [] for name in names}
        running, limit_s = set(names), time.monotonic() + LIMIT_S
        while running:
            assert time.monotonic() < limit_s, running
            for frame in self._socket.recv_multipart() if self._socket.poll(100) else ():
                output = self._decoder.decode(frame)
                assert isinstance(output, EngineOutput), output
                got[output.request_id] += output.token_ids
                if output.finish_reason is not None:
                    assert output.finish_reason == finish_reason
                    running.discard(output.request_id)
        return got

    def submit(self, job: Job) -> None:
        self._socket.send_multipart([encode(Submit(RequestId(job.name), job.spec))])

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


def test_stages_in_the_wrong_order_are_refused_in_one_sentence(star: Star) -> None:
    target = star.target("2:4", "0:2")
    assert target.process.wait(LIMIT_S) == 2
    assert "starspec: no stage has layers 0:2, before" in target.output()


@pytest.mark.parametrize("layers", [("0:2", "2:4"), ("0:2", "2:3", "3:4")], ids=len)
def test_tokens_are_those_of_the_whole_model_until_a_stage_dies_and_then_all_end(
    star: Star, expected: dict[str, list[int]], layers: tuple[str, ...]
) -> None:
    target = star.target(*layers)
    client = Client(target.wait_ready())
    try:
        assert client.answers(JOBS, num_draft_tokens=None) == expected
        assert client.answers(JOBS, num_draft_tokens=0) == expected
        star.stages[layers[-1]].send(signal.SIGSTOP)
        client.submit(JOBS[0])
        client.rest_of([JOBS[0].name], finish_reason="error")
        assert target.process.wait(LIMIT_S) == 1
        assert f"the stage at {star.endpoints[layers[-1]]} is gone" in target.output()
    finally:
        client.close()
