"""A hub with an EAGLE head is killed in mid-stream and comes back: EAGLE-1 and EAGLE-3, both rules, chains and trees,
batches of 1, 4 and 8.

The hub is a process behind real sockets. Its targets' engines run in this process, step by step: where the hub dies and
where it is back, in terms of tokens, needs no timing. The models are tiny, in float32; every token of the target
depends on its whole past, and about half of what a head proposes is rolled back.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import pytest
from predictable import write_eagle1_reader, write_reader, write_target

from starspec.config import FIXED_LENGTH, ModelConfig, RemoteConfig, SampleMethod, SpeculativeConfig, TargetConfig
from starspec.engine.build import make_drafts
from starspec.engine.drafts import NoDrafts
from starspec.engine.engine import TargetEngine
from starspec.engine.remote_drafts import RemoteDrafts
from starspec.gateway.hub_status import HubStatusClient
from starspec.harness.decode import Job, JobResult, decode, make_engine
from starspec.harness.servers import StarspecServer, free_port
from starspec.ids import RequestId
from starspec.models.loading.load import load_runner
from starspec.models.synthetic.tokenizer import synthetic_tokenizer
from starspec.sampling.spec import SamplingSpec
from starspec.stats import HubStats, TargetStats
from starspec.windows.local import LocalVerifier
from starspec.wire.transports.waiting import Waiting

pytestmark = pytest.mark.system

NUM_TOKENS = 48
PATIENCE_S = 120.0  # a process takes long to start on a busy machine
MAX_MODEL_LEN = 128
CHAIN = SpeculativeConfig(num_speculative_tokens=3, length=FIXED_LENGTH)
TREE = SpeculativeConfig(num_steps=3, eagle_topk=2, num_draft_tokens=9, length=FIXED_LENGTH)
RULES: tuple[SampleMethod, ...] = ("coupled", "rejection")
WRITERS: dict[str, Callable[[Path], Path]] = {"eagle": write_eagle1_reader, "eagle3": write_reader}
BATCH_SIZES = (1, 4, 8)
GREEDY = [Job("", (5, 9, 70 + each), SamplingSpec(temperature=0.0), NUM_TOKENS) for each in range(4)]
SAMPLED = [
    Job("", (6, 40 + each), SamplingSpec(temperature=0.8, top_p=0.95, seed=each), NUM_TOKENS) for each in range(4)
]
JOBS = [job for pair in zip(GREEDY, SAMPLED, strict=True) for job in pair]
TOKENIZER = synthetic_tokenizer("synthetic:vocab=128")


@dataclass(frozen=True)
class Target:
    """An engine whose drafts are a hub's, and what it has answered so far of the first jobs."""

    rule: SampleMethod
    jobs: list[Job]
    engine: TargetEngine
    drafts: RemoteDrafts
    answers: list[JobResult]

    def submit_all(self) -> None:
        for index, job in enumerate(self.jobs):
            self.engine.submit(RequestId(str(index)), job.spec)

    def step(self) -> None:
        for output in self.engine.step().values():
            answer = self.answers[int(output.request_id)]
            answer.token_ids += output.token_ids
            answer.finish_reason = output.finish_reason

    def has_said(self, num_tokens: int) -> bool:
        """Of every answer."""
        return all(len(answer.token_ids) >= num_tokens for answer in self.answers)

    @property
    def num_accepted(self) -> int:
        return self.engine.stats.acceptance.num_accepted_tokens


def make_target(folder: Path, endpoint: str, rule: SampleMethod, shape: SpeculativeConfig, batch_size: int) -> Target:
    remote = RemoteConfig(endpoint=endpoint, deadline_ms=500.0)  # a busy machine's hub is late, and not lost
    speculative = replace(shape, rejection_sample_method=rule, remote=remote)
    name = f"{rule}-{shape.eagle_topk}-{batch_size}"
    config, stats = TargetConfig(name=name, max_num_seqs=batch_size), TargetStats()
    runner = load_runner(model_config(folder))
    drafts = make_drafts(config, speculative, runner.info, TOKENIZER, stats, Waiting())
    assert isinstance(drafts, RemoteDrafts)
    engine, jobs = TargetEngine(LocalVerifier(runner), TOKENIZER, drafts, config, stats), JOBS[:batch_size]
    return Target(rule, jobs, engine, drafts, [JobResult() for _ in jobs])


def model_config(folder: Path) -> ModelConfig:
    return ModelConfig(
        model=str(folder), dtype="float32", num_rows=len(JOBS), max_model_len=MAX_MODEL_LEN, num_threads=1
    )


@contextmanager
def running_hub(port: int, target: Path, head: Path, method: str) -> Iterator[None]:
    """Killed at the end. Who needs it up waits until its targets are connected."""
    hub = StarspecServer(
        *("draft", "--draft", str(head), "--spec-method", method, "--target", str(target), "--port", str(port)),
        *("--dtype", "float32", "--max-num-seqs", "64", "--max-model-len", str(MAX_MODEL_LEN)),
    )
    try:
        yield
    finally:
        hub.end(signal.SIGKILL)


def until(holds: Callable[[], bool], turn: Callable[[], object]) -> None:
    """Take turns until it does."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline_s
        turn()


def step_until(targets: list[Target], holds: Callable[[Target], bool]) -> None:
    """In turns, so that the hub has tags of all of them at once."""

    def turn() -> None:
        for target in targets:
            if not holds(target):
                target.step()

    until(lambda: all(map(holds, targets)), turn)


def poll_until(targets: list[Target], holds: Callable[[Target], bool]) -> None:
    """What a target server does between requests; here the requests are there, and wait."""
    pause = threading.Event()

    def turn() -> None:
        for target in targets:
            target.drafts.poll()
        pause.wait(0.01)

    until(lambda: all(map(holds, targets)), turn)


async def ask_until(endpoint: str, holds: Callable[[HubStats], bool]) -> None:
    """What targets said last is on its way when they have done."""
    deadline_s = time.monotonic() + PATIENCE_S
    with closing(HubStatusClient(endpoint, timeout_s=PATIENCE_S)) as ask:
        while not holds((await ask()).stats):
            assert time.monotonic() < deadline_s


@pytest.mark.parametrize("method", WRITERS)
async def test_a_hub_that_is_killed_and_comes_back_changes_no_token_of_targets_with_a_head(
    method: str, tmp_path: Path
) -> None:
    folder, head = write_target(tmp_path / "target", wavers=True), WRITERS[method](tmp_path / "head")
    port = free_port()
    endpoint = f"tcp://127.0.0.1:{port}"
    with ExitStack() as leaving:
        with running_hub(port, folder, head, method):  # it loads while we do
            plain = plain_answers(folder)
            targets = [make_target(folder, endpoint, *each) for each in product(RULES, (CHAIN, TREE), BATCH_SIZES)]
            for target in targets:
                leaving.callback(target.drafts.shutdown)
            poll_until(targets, lambda target: target.drafts.is_connected)
            for target in targets:
                target.submit_all()
            step_until(targets, lambda target: target.has_said(8) and target.num_accepted > 0)
        step_until(targets, lambda target: target.has_said(24))  # the hub was killed: rounds go on
        poll_until(targets, lambda target: not target.drafts.is_connected)
        num_accepted = [target.num_accepted for target in targets]

        with running_hub(port, folder, head, method):
            poll_until(targets, lambda target: target.drafts.is_connected)
            assert all(target.engine.num_running == len(target.jobs) for target in targets), (
                "all of this was in mid-stream"
            )
            step_until(targets, lambda target: not target.engine.has_work)
            for target, before in zip(targets, num_accepted, strict=True):
                assert target.num_accepted > before + len(target.jobs) * NUM_TOKENS / 16, "drafts are back with the hub"
                check(target, plain)
            await ask_until(
                endpoint, lambda hub: (hub.num_targets, hub.num_tags, hub.num_rows_leased) == (len(targets), 0, 0)
            )


def plain_answers(folder: Path) -> list[list[int]]:
    alone = make_engine(load_runner(model_config(folder)), TOKENIZER, NoDrafts())
    return [answer.token_ids for answer in decode(alone, JOBS, batch_size=1)]


def check(target: Target, plain: list[list[int]]) -> None:
    """Answers are whole, those that must be the target's own are, and nothing is left behind."""
    for job, answer, expected in zip(target.jobs, target.answers, plain, strict=False):
        assert (len(answer.token_ids), answer.finish_reason) == (NUM_TOKENS, "length")
        if target.rule == "coupled" or job in GREEDY:
            assert answer.token_ids == expected
    target.engine.check_integrity()
    assert (target.engine.num_running, target.drafts.num_tags) == (0, 0)
