"""The engine over stages in virtual time chooses by itself how many windows of a sequence are in flight."""

from __future__ import annotations

from hashlib import blake2b

import pytest
from toy_hub import ToyHub

from starspec.bench.shard.modelled_stage import VOCAB, true_token
from starspec.bench.shard.virtual_pipe import VirtualPipe
from starspec.config import TargetConfig
from starspec.engine.engine import TargetEngine
from starspec.engine.in_flight import MAX_CHUNKS, MAX_IN_FLIGHT
from starspec.engine.remote_drafts import RemoteDrafts
from starspec.ids import RequestId
from starspec.policy.length.fixed import FixedLength
from starspec.policy.traversal import Pipeline, StageTime
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.budget import DraftBudget
from starspec.stages.inbox import MAX_QUEUED
from starspec.stats import TargetStats
from starspec.wire.messages import RequestSpec
from starspec.wire.session import TagSession

FOUR = Pipeline.even(4, StageTime(one_s=0.01), 0.05)  # a traversal takes 0.24 s
TWO = Pipeline.even(2, StageTime(one_s=0.05), 0.01)  # near to each other: they compute most of the time
DRAFT_S = 0.001  # of a token
SLOW_DRAFT_S = 0.015
STRETCH = 2.0  # how much longer something takes that begins while something else computes, on shared cores
NUM_TOKENS = 240


class Words:
    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = True) -> str:
        return "w" * len(token_ids)


class SharedCores(VirtualPipe):
    """Stages and a draft on the same cores."""

    draft_until_s = 0.0  # the draft computes until then

    def stretch(self) -> float:
        """How much longer something takes that begins now."""
        is_shared = max(*self._free_s, self.draft_until_s) > self.now
        return STRETCH if is_shared else 1.0

    def _spend(self, stage: int, seconds: float) -> None:
        super()._spend(stage, seconds * self.stretch())


class TrueHub(ToyHub):
    """Drafts what the virtual stages emit, mostly. Its clock is the pipe's.

    Where it is wrong does not depend on when it drafts, so that two runs can be compared.
    """

    def __init__(self, pipe: VirtualPipe, alpha: float) -> None:
        super().__init__(pipe)  # type: ignore[arg-type]
        self.token_s = DRAFT_S
        self._alpha = alpha

    def _propose(self, session: TagSession, num: int, delay_s: float) -> None:
        if isinstance(self.clock, SharedCores):
            self.token_s = SLOW_DRAFT_S * self.clock.stretch()
            self.clock.draft_until_s = self.clock.now + num * self.token_s
        super()._propose(session, num, delay_s)

    def guess(self, path: list[int]) -> int:
        truth = true_token(len(path))
        drawn = blake2b(f"{path[0]} {len(path)}".encode(), digest_size=8).digest()  # the first token names the stream
        return truth if int.from_bytes(drawn) < self._alpha * 2**64 else (truth + 1) % VOCAB


def speed(
    alpha: float,
    depth: int | None,
    num_streams: int = 1,
    num_draft_tokens: int = 8,
    *,
    num_tokens: int = NUM_TOKENS,
    is_shared: bool = False,
) -> tuple[float, TargetStats]:
    """Tokens a second of all streams.

    Args:
        depth: of the verifier; None = as measured.
        is_shared: two stages and a draft on the same cores, instead of four stages.
    """
    pipe = (SharedCores if is_shared else VirtualPipe)(TWO if is_shared else FOUR, num_streams, num_tokens + 200)
    stats, policy = TargetStats(), FixedLength(DraftBudget.chain(num_draft_tokens))
    drafts = RemoteDrafts(TrueHub(pipe, alpha), policy, stats, pipe.clock, deadline_s=1.0)
    engine = TargetEngine(pipe.verifier(depth), Words(), drafts, TargetConfig(), stats, pipe.clock)
    got: dict[str, list[int]] = {}
    for number in range(num_streams):
        spec = RequestSpec([number], SamplingSpec(temperature=0.0), max_tokens=num_tokens)
        engine.submit(RequestId(f"r{number}"), spec)
    while engine.has_work:
        for key, output in engine.step().items():
            got.setdefault(key.request_id, []).extend(output.token_ids)
        engine.check_integrity()
    truth = [true_token(each) for each in range(1, num_tokens + 1)]
    assert all(each == truth for each in got.values())
    return num_streams * num_tokens / pipe.now, stats


def test_where_drafts_are_good_windows_in_flight_come_near_to_the_bound() -> None:
    synchronous, _ = speed(0.9, 1)
    in_flight, stats = speed(0.9, None)
    assert stats.num_ahead_windows > 30
    assert in_flight > 1.1 * synchronous
    assert in_flight > 0.6 * FOUR.most_tokens_per_s(0.9)


def test_four_streams_choose_by_themselves_what_is_at_least_as_fast_as_what_could_be_given() -> None:
    given = max(speed(0.8, depth, 4)[0] for depth in (1, 4))
    chosen, stats = speed(0.8, None, 4)
    assert chosen > 1.02 * given
    assert 0 < stats.num_stale_windows < 2 * stats.num_rounds  # more would only fill the stages


def test_so_many_windows_are_never_in_flight_that_a_stage_which_pauses_could_not_keep_them() -> None:
    pipe = VirtualPipe(Pipeline.even(2, StageTime(one_s=0.001), 1.0), 4, NUM_TOKENS + 200)
    drafts = RemoteDrafts(TrueHub(pipe, 1.0), FixedLength(DraftBudget.chain(1)), TargetStats(), pipe.clock)
    verifier = pipe.verifier(400)
    engine = TargetEngine(verifier, Words(), drafts, TargetConfig(), TargetStats(), pipe.clock)
    for number in range(4):
        spec = RequestSpec([true_token(0)], SamplingSpec(temperature=0.0), max_tokens=NUM_TOKENS)
        engine.submit(RequestId(f"r{number}"), spec)
    most = 0
    while engine.has_work and most < MAX_IN_FLIGHT:
        engine.step()
        most = max(most, verifier.num_in_flight)
    while engine.has_work:
        engine.step()
        assert verifier.num_in_flight <= MAX_IN_FLIGHT + MAX_CHUNKS
    assert most == MAX_IN_FLIGHT
    assert MAX_IN_FLIGHT + MAX_CHUNKS < MAX_QUEUED


@pytest.mark.parametrize("num_streams", [1, 4])
def test_where_drafts_are_bad_rounds_stay_synchronous(num_streams: int) -> None:
    synchronous, _ = speed(0.3, 1, num_streams)
    in_flight, stats = speed(0.3, None, num_streams)
    assert stats.num_ahead_windows < 30
    assert in_flight > 0.98 * synchronous


def test_where_the_draft_computes_on_the_cores_of_stages_few_windows_are_launched_ahead() -> None:
    synchronous, _ = speed(0.75, 1, num_draft_tokens=4, num_tokens=1500, is_shared=True)
    in_flight, _ = speed(0.75, 2, num_draft_tokens=4, num_tokens=1500, is_shared=True)
    assert in_flight < 0.93 * synchronous
    chosen, stats = speed(0.75, None, num_draft_tokens=4, num_tokens=1500, is_shared=True)
    assert 4 < stats.num_ahead_windows < 0.2 * stats.num_rounds  # it has tried
    assert chosen > 0.98 * synchronous
