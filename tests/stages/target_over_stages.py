"""A target's engine over toy stages, in virtual time."""

from __future__ import annotations

from typing import Any

from memory_pipe import MemoryPipe
from toy_stages import plain, toy_stages

from starspec.config import PipeConfig, TargetConfig
from starspec.engine.drafts import NgramDrafts
from starspec.engine.engine import TargetEngine
from starspec.ids import RequestId, RequestKey, TargetId
from starspec.policy.length.fixed import FixedLength
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.budget import DraftBudget
from starspec.stages.attach import attach
from starspec.stages.coordinator import RemoteVerifier
from starspec.stages.member import StageTimes
from starspec.stats import TargetStats
from starspec.wire.messages import RequestSpec

NUM_STAGES = 3
WAIT_S = 10.0
NO_STAGES = PipeConfig()


class Words:
    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = True) -> str:
        return "".join(f"w{each} " for each in token_ids)


class Target:
    """An engine over toy stages.

    Args:
        num_spares: for the first stage, and for the second.
        depth: windows in flight; None = as measured.
        pipe: other stages, and spares behind them.
        drafts: proposes for all sequences.
        max_tokens: of one launch.
    """

    def __init__(
        self,
        num_spares: int = 0,
        delay_s: float = 0.01,
        depth: int | None = 2,
        pipe_config: PipeConfig = NO_STAGES,
        pipe: MemoryPipe | None = None,
        drafts: type[NgramDrafts] = NgramDrafts,
        max_tokens: int | None = None,
    ) -> None:
        stages = [*toy_stages(NUM_STAGES), *toy_stages(NUM_STAGES)[:num_spares]]
        self.pipe = MemoryPipe(stages, lambda: delay_s) if pipe is None else pipe
        names = self.pipe.names[:NUM_STAGES]
        attached = attach(self.pipe, names, TargetId("t"), lease_s=9.0, timeout_s=20.0, clock=self.pipe.clock)
        self.verifier = RemoteVerifier(
            self.pipe,
            attached,
            self.pipe.runners[0].info,
            depth=depth,
            clock=self.pipe.clock,
            max_tokens=max_tokens,
            spares=self.pipe.names[NUM_STAGES:],
            times=StageTimes(wait_s=WAIT_S),
        )
        stats, policy = TargetStats(), FixedLength(DraftBudget.chain(3))
        source = drafts(policy, 1, 3, stats, self.pipe.clock)
        config = TargetConfig(prefill_chunk=5, pipe=pipe_config)
        self.engine = TargetEngine(self.verifier, Words(), source, config, stats, self.pipe.clock)
        self.lossless: list[bool] = []  # what answers say
        self.expected: dict[str, list[int]] = {}
        self.got: dict[str, list[int]] = {}
        self.ends: dict[str, Any] = {}

    def submit(
        self, name: str, prompt: list[int], sampling: SamplingSpec, num: int, num_draft_tokens: int | None = None
    ) -> None:
        spec = RequestSpec(prompt, sampling, max_tokens=num, num_draft_tokens=num_draft_tokens)
        self.engine.submit(RequestId(name), spec)
        self.expected[name] = plain(NUM_STAGES, prompt, sampling, num)[len(prompt) :]
        self.got[name] = []

    def step(self) -> None:
        for key, output in self.engine.step().items():
            assert isinstance(key, RequestKey)
            self.got[key.request_id] += output.token_ids
            if output.finish_reason is not None:
                self.ends[key.request_id] = (output.finish_reason, output.stop_reason)
                self.lossless += [output.stats.is_lossless] if output.stats else []
        self.engine.check_integrity()

    def run(self, seconds: float = 60.0) -> None:
        end_s = self.pipe.now + seconds
        while self.engine.has_work:
            assert self.pipe.now < end_s, "requests hang"
            self.step()

    def idle(self, seconds: float) -> None:
        end_s = self.pipe.now + seconds
        while self.pipe.now < end_s:
            self.engine.keep_links()
            self.pipe.now += 0.05


GREEDY = SamplingSpec(temperature=0.0)
COUNTING = SamplingSpec(temperature=0.9, seed=3, repetition_penalty=1.3, presence_penalty=0.4)
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


def begun(target: Target, num_tokens: int = 40) -> Target:
    """A target whose two requests have some tokens."""
    target.submit("a", PROMPT, GREEDY, num_tokens)
    target.submit("b", PROMPT[:3], COUNTING, num_tokens)
    while min(map(len, target.got.values())) < 6:
        target.step()
    return target


def held(target: Target) -> list[int]:
    """How many rows each live stage has leased."""
    return [
        len(worker.rows.cache.rows.leased)
        for stage, worker in enumerate(target.pipe.workers)
        if stage not in target.pipe.killed
    ]
