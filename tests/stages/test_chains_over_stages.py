"""Several windows of one sequence in flight over stages, in virtual time: the same tokens, whatever crosses or dies."""

from __future__ import annotations

import random
from functools import partial

import pytest
from memory_pipe import MemoryPipe
from toy_stages import MAX_LEN, VOCAB, ToyDraft, plain, toy_stages

from starspec.config import HubConfig, TargetConfig
from starspec.engine import engine
from starspec.engine.drafts import Drafts, NgramDrafts
from starspec.engine.engine import TargetEngine
from starspec.engine.remote_drafts import RemoteDrafts
from starspec.hub.build import LoadedDrafter, build_hub, terms_of
from starspec.hub.causal import CausalDrafter
from starspec.hub.handshake import admit
from starspec.hub.hub import DraftHub
from starspec.hub.loop import HubLoop
from starspec.ids import RequestId, TargetId
from starspec.policy.length.fixed import FixedLength
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.budget import DraftBudget
from starspec.stages.attach import attach
from starspec.stages.coordinator import RemoteVerifier
from starspec.stages.member import StageTimes
from starspec.stats import TargetStats
from starspec.wire.messages import PROTOCOL_VERSION, Hello, RequestSpec
from starspec.wire.transports.memory import MemoryHub

NUM_SEEDS = 400  # test_random_lives.py has five times as many of the protocol alone
NUM_SHARDS = 8
NUM_ROWS = 4
LEASE_S = 9.0
WAIT_S = 15.0
HUNG_S = 300.0
SAMPLINGS = (
    SamplingSpec(temperature=0.0),
    SamplingSpec(temperature=0.8, seed=5),
    SamplingSpec(temperature=0.9, seed=3, repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.2),
)


class Words:
    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = True) -> str:
        return "".join(f"w{each} " for each in token_ids)


class Life:
    """An engine over toy stages, with a hub beside it or with prompt lookup.

    Args:
        depth: windows in flight; None = as measured.
        share_wrong: of the hub's guesses; None = prompt lookup.
        share_slow: of the hub's steps, which come later.
    """

    def __init__(
        self,
        rng: random.Random,
        *,
        num_stages: int = 2,
        delay_s: float = 0.1,
        depth: int | None = 4,
        num_draft_tokens: int = 2,
        share_wrong: float | None = 0.0,
        share_slow: float = 0.0,
    ) -> None:
        self.rng, self.num_stages, self.share_slow = rng, num_stages, share_slow
        self.pipe = MemoryPipe(toy_stages(num_stages, NUM_ROWS), lambda: delay_s * (0.5 + rng.random() / 2))
        attached = attach(
            self.pipe, self.pipe.names, TargetId("t"), lease_s=LEASE_S, timeout_s=20.0, clock=self.pipe.clock
        )
        info, times = self.pipe.runners[0].info, StageTimes(wait_s=WAIT_S)
        self.verifier = RemoteVerifier(self.pipe, attached, info, depth=depth, clock=self.pipe.clock, times=times)
        self.stats, self.hub = TargetStats(), None
        policy = FixedLength(DraftBudget.chain(num_draft_tokens))
        drafts: Drafts = NgramDrafts(policy, 1, 3, self.stats, self.pipe.clock)
        if share_wrong is not None:
            drafts = self.drafts_of_hub(policy, share_wrong)
        config = TargetConfig(prefill_chunk=5)
        self.engine = TargetEngine(self.verifier, Words(), drafts, config, self.stats, self.pipe.clock)
        self.expected: dict[str, list[int]] = {}
        self.got: dict[str, list[int]] = {}
        self.ends: dict[str, str | None] = {}

    def drafts_of_hub(self, policy: FixedLength, share_wrong: float) -> RemoteDrafts:
        config = HubConfig(prefill_chunk=4)
        draft = ToyDraft(self.num_stages, self.rng.choice((2, NUM_ROWS)), share_wrong)
        loaded = LoadedDrafter(CausalDrafter(draft), None, NUM_ROWS, 0)
        transport = MemoryHub(partial(admit, terms_of(loaded, config)), clock=self.pipe.clock)
        self.hub: DraftHub | None = build_hub(loaded, config)
        self.loop = HubLoop(self.hub, transport, self.pipe.clock)
        hello = Hello(PROTOCOL_VERSION, TargetId("t"), VOCAB, "f")
        return RemoteDrafts(
            transport.connect(hello, self.step_hub), policy, self.stats, self.pipe.clock, deadline_s=0.5
        )

    def step_hub(self) -> bool:
        if self.rng.random() < self.share_slow:
            self.pipe.now += 0.01
            return False
        return self.loop.run_once(0.0)

    def submit(self, prompt: list[int], sampling: SamplingSpec, num: int) -> None:
        name = f"r{len(self.expected)}"
        self.engine.submit(RequestId(name), RequestSpec(prompt, sampling, max_tokens=num))
        self.expected[name] = plain(self.num_stages, prompt, sampling, num)[len(prompt) :]
        self.got[name] = []

    def submit_any(self) -> None:
        prompt = [self.rng.randrange(VOCAB) for _ in range(self.rng.randint(1, 12))]
        self.submit(prompt, self.rng.choice(SAMPLINGS), self.rng.randint(1, 30))

    def step(self) -> None:
        for key, output in self.engine.step().items():
            self.got[key.request_id] += output.token_ids
            if output.finish_reason is not None:
                self.ends[key.request_id] = output.finish_reason
        self.engine.check_integrity()
        if self.hub is not None:
            self.hub.check_integrity()

    def run(self) -> None:
        end_s = self.pipe.now + HUNG_S
        while self.engine.has_work:
            assert self.pipe.now < end_s, "requests hang"
            self.step()

    def check(self) -> None:
        for name, got in self.got.items():
            assert got == self.expected[name][: len(got)]
            assert len(got) == len(self.expected[name]) or self.ends[name] == "abort"

    def settle(self) -> None:
        """Nothing is to be done, and all stages answer: soon no row is held anywhere."""
        end_s = self.pipe.now + 3.0 * LEASE_S
        while any(worker.rows.cache.rows.leased for worker in self.pipe.workers):
            assert self.pipe.now < end_s, "rows are not freed"
            self.engine.keep_links()
            self.pipe.now += 0.05
        for worker in self.pipe.workers:
            worker.rows.check_integrity()
        self.verifier.cache.check_integrity()

    def break_something(self) -> None:
        pipe, stage = self.pipe, self.rng.randrange(self.num_stages)
        match self.rng.randrange(6):
            case 0:
                pipe.lose_next = stage
            case 1:
                pipe.restart(stage)
            case 2:
                pipe.kill(stage)
            case 3:
                pipe.pause(stage)
            case 4:
                pipe.cut.add(stage)
            case 5:
                pipe.cut_traversals.add((stage, stage + 1))

    def mend(self) -> None:
        pipe = self.pipe
        pipe.cut_traversals.clear()
        for stage in range(self.num_stages):
            pipe.heal(stage, are_frames_lost=self.rng.random() < 0.5)
            pipe.resume(stage)
            if stage in pipe.killed:
                pipe.restart(stage)


def seconds_of(**options: object) -> tuple[float, Life]:
    """One stream of 40 tokens, greedily."""
    life = Life(random.Random(1), **options)  # type: ignore[arg-type]
    life.submit([3, 1, 4], SAMPLINGS[0], 40)
    life.run()
    life.check()
    return life.pipe.now, life


def test_windows_of_one_sequence_fill_the_pipe() -> None:
    alone_s, alone = seconds_of(depth=1)
    in_flight_s, life = seconds_of(depth=4)
    assert alone.stats.num_ahead_windows == 0
    assert life.stats.num_ahead_windows > 5
    assert life.stats.num_stale_windows == 0
    assert in_flight_s < 0.5 * alone_s


def test_prompt_lookup_fills_the_pipe_too() -> None:
    life = Life(random.Random(1), share_wrong=None)
    life.submit([3, 1, 3, 1, 3], SAMPLINGS[0], 40)
    life.run()
    life.check()
    assert life.stats.num_ahead_windows > 5


def test_a_row_that_is_full_takes_no_more_windows() -> None:
    life = Life(random.Random(1), num_draft_tokens=6)
    life.submit([1, 2, 3, 4], SAMPLINGS[0], MAX_LEN - 4)
    life.run()
    life.check()
    assert life.ends == {"r0": "length"}


def test_chunks_of_a_prompt_follow_one_another_and_the_first_round_follows_them() -> None:
    life = Life(random.Random(1), depth=1)
    life.submit([each % VOCAB for each in range(41)], SAMPLINGS[0], 1)  # 8 chunks, and a traversal takes 0.15 s or more
    life.run()
    life.check()
    assert life.pipe.now < 1.0


def test_lost_windows_leave_nothing_presumed() -> None:
    life = Life(random.Random(1), num_stages=3)
    life.submit([1, 2, 3], SAMPLINGS[2], 40)
    while not life.stats.num_ahead_windows:
        life.step()
    life.pipe.restart(1)
    life.run()
    life.check()
    assert life.verifier.num_losses == 1
    life.settle()


@pytest.mark.parametrize("shard", range(NUM_SHARDS))
def test_random_lives_change_no_token(shard: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "LANDING_WAIT_S", 0.05)  # most steps would find nothing to do
    num_ahead = num_stale = num_losses = 0
    for seed in range(shard, NUM_SEEDS, NUM_SHARDS):
        rng = random.Random(seed)
        life = Life(
            rng,
            num_stages=rng.choice((2, 2, 3, 4)),
            delay_s=rng.choice((0.002, 0.02, 0.3)),
            depth=rng.choice((1, 2, 4, 8, 12)),
            num_draft_tokens=rng.randint(1, 4),
            share_wrong=rng.choice((None, 0.0, 0.1, 0.4)),
            share_slow=rng.choice((0.0, 0.0, 0.5)),
        )
        for _ in range(rng.randint(1, 4)):
            if life.verifier.refusal is None:
                life.submit_any()
            for _ in range(rng.randrange(30)):
                life.step()
            if rng.random() < 0.2 and life.engine.has_work:
                name = rng.choice(sorted(life.expected))
                life.engine.abort(RequestId(name))
                life.ends.setdefault(name, "abort")
            if rng.random() < 0.4:
                life.break_something()
                for _ in range(rng.randrange(100)):
                    life.step()
                life.mend()
        life.pipe.lose_next = None
        life.run()
        life.check()
        life.settle()
        num_ahead += life.stats.num_ahead_windows
        num_stale += life.stats.num_stale_windows
        num_losses += life.verifier.num_losses
    assert num_ahead > 100
    assert num_stale > 20
    assert num_losses > 20
