"""The processes of `bench shard` with real models: stages on a core each, and the model that is not cut."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection

from starspec.bench.shard.real_pipe import PATIENCE_S, serve
from starspec.config import ModelConfig, StageConfig
from starspec.engine.drafts import NoDrafts
from starspec.engine.engine import TargetEngine
from starspec.harness.decode import Job, decode, make_engine
from starspec.models.loading.load import load_runner
from starspec.models.loading.tokenizer import load_tokenizer
from starspec.stages.build import build_stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Prompts that were answered at once."""

    answers: list[list[int]]  # token ids, in the order of the prompts
    seconds: float  # with the prompts

    @property
    def tokens_per_s(self) -> float:
        return sum(map(len, self.answers)) / self.seconds


def answer_group(engine: TargetEngine, jobs: Sequence[Job]) -> Group:
    """Answer all jobs at once."""
    started_s = time.monotonic()
    results = decode(engine, jobs, batch_size=len(jobs), is_staggered=False)
    return Group(answers=[each.token_ids for each in results], seconds=time.monotonic() - started_s)


def run_model_stage(parent: Connection, place: int, layers: str, model: ModelConfig) -> None:
    """As `serve`, on a core of its own."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[place % len(cores)]})
    config = StageConfig(layers=layers, listen="tcp://127.0.0.1:0", silence_s=PATIENCE_S)
    serve(build_stage(config, model), parent)


def run_whole(parent: Connection, model: ModelConfig) -> None:
    """Answer groups of jobs plainly, with the whole model, until the parent sends None.

    Receives: a list of Job at a time. Sends: True once loaded; then a Group for each list.
    """
    engine = make_engine(load_runner(model), load_tokenizer(model.model), NoDrafts())
    parent.send(True)
    while (jobs := parent.recv()) is not None:
        parent.send(answer_group(engine, jobs))
