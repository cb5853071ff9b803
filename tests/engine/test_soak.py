"""Thousands of requests that come, go and are given up at random: nothing of them stays, in rows or in memory."""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch
from toy import WordTokenizer

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))  # for `tiny`
from tiny import VOCAB_SIZE, make_config, make_info, make_model

from starspec.config import BATCHINGS, FIXED_LENGTH, BatchingConfig, BatchingMethod, ModelConfig, SpeculativeConfig
from starspec.engine.drafts import NgramDrafts
from starspec.engine.engine import TargetEngine
from starspec.harness.decode import make_engine
from starspec.ids import RequestId
from starspec.local_star import LocalHub
from starspec.models.fused import FusedRunner
from starspec.models.linear.packer import make_packer
from starspec.models.loading.load import load_runner
from starspec.models.loading.tokenizer import load_tokenizer
from starspec.policy.length.fixed import FixedLength
from starspec.policy.length.make import make_policy
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.budget import DraftBudget
from starspec.stats import TargetStats
from starspec.windows.batching import PARTS, lay_out
from starspec.wire.messages import RequestSpec

BATCH_SIZE = 8
NUM_WARM, NUM_REQUESTS, NUM_PADDED = 200, 2000, 200
MAX_GROWTH = 2**20  # bytes a thousand requests
MAX_ROWS = 64  # of a forward


def request(chance: random.Random) -> RequestSpec:
    """One in three has a prompt of several chunks."""
    length = chance.randrange(40, 70) if chance.random() < 1 / 3 else chance.randrange(1, 12)
    temperature = chance.choice([0.0, 0.7])
    sampling = SamplingSpec(temperature=temperature, seed=chance.randrange(100))
    return RequestSpec([chance.randrange(1, 50) for _ in range(length)], sampling, max_tokens=chance.randrange(1, 8))


def serve(engine: TargetEngine, num_requests: int, chance: random.Random, check: Callable[[], None]) -> int:
    """Returns: how many ended by themselves; the others were given up."""
    num_begun = num_ended = 0
    going: list[RequestId] = []
    while num_begun < num_requests or engine.has_work:
        while num_begun < num_requests and len(going) < 2 * BATCH_SIZE and chance.random() < 0.7:
            going.append(RequestId(f"r{num_begun}"))
            engine.submit(going[-1], request(chance))
            num_begun += 1
        if going and chance.random() < 0.02:
            engine.abort(going.pop(chance.randrange(len(going))))
        for output in engine.step().values():
            if output.finish_reason is not None:
                going.remove(output.request_id)
                num_ended += 1
        check()
    return num_ended


def soak(engine: TargetEngine, check: Callable[[], None]) -> None:
    """Serve NUM_WARM requests, then NUM_REQUESTS. Effects: asserts that all rows are free and memory has not grown."""
    chance, process = random.Random(3), psutil.Process()
    serve(engine, NUM_WARM, chance, check)
    gc.collect()
    before = process.memory_info().rss
    num_ended = serve(engine, NUM_REQUESTS, chance, check)
    gc.collect()
    growth = process.memory_info().rss - before
    assert 0.8 * NUM_REQUESTS < num_ended < NUM_REQUESTS  # some were given up
    assert_all_free(engine)
    assert growth < MAX_GROWTH * NUM_REQUESTS / 1000, f"{growth / 2**20:.1f} MiB in {NUM_REQUESTS} requests"


def assert_all_free(engine: TargetEngine) -> None:
    assert engine.verifier.cache.num_free_rows == engine.verifier.cache.num_rows


def engine_of(method: BatchingMethod) -> TargetEngine:
    """Over a tiny Llama, whose answers are full of n-grams."""
    config = make_config(num_rows=3 * BATCH_SIZE)
    window = 2 * BATCH_SIZE if method == "exspec" else None
    stats, batching = TargetStats(), BatchingConfig(method=method, window=window)
    runner = FusedRunner(make_model(), config, make_info(), make_packer(config, VOCAB_SIZE))
    return make_engine(
        lay_out(runner, batching, stats.batch),
        WordTokenizer(),
        NgramDrafts(FixedLength(DraftBudget.chain(4)), 1, 3, TargetStats()),
        stats,
        prefill_chunk=32,
        batching=batching,
        max_num_seqs=BATCH_SIZE,
    )


def test_a_target_forgets_whom_it_served() -> None:
    engine = engine_of("ragged")
    for (
        linear
    ) in engine.verifier.runner.step_linears:  # a kernel is made, and kept, for each row count when it is first met
        for num_rows in range(1, MAX_ROWS + 1):
            linear.call(torch.zeros(num_rows, linear.in_features))
    soak(engine, engine.check_integrity)
    assert engine.stats.acceptance.num_accepted_tokens > 0


@pytest.mark.parametrize("method", [method for method in BATCHINGS if PARTS[method].is_padded])
def test_every_other_way_of_batching_frees_all_rows(method: BatchingMethod) -> None:
    engine = engine_of(method)
    assert serve(engine, NUM_PADDED, random.Random(3), engine.check_integrity) < NUM_PADDED
    assert_all_free(engine)


def test_a_target_and_its_hub_forget_whom_they_served() -> None:
    config = ModelConfig(model="synthetic:role=target,step_ms=0", max_model_len=256, num_rows=BATCH_SIZE)
    speculative = SpeculativeConfig(
        model="synthetic:role=draft,step_ms=0,alpha=0.8", num_speculative_tokens=4, length=FIXED_LENGTH
    )
    runner, tokenizer, stats = load_runner(config), load_tokenizer(config.model), TargetStats()
    local = LocalHub(config, runner.info, speculative, tokenizer)
    drafts = local.drafts(make_policy(speculative, BATCH_SIZE), stats)
    engine = make_engine(runner, tokenizer, drafts, stats, prefill_chunk=32)
    hub = local._loop._hub

    def check() -> None:
        engine.check_integrity()
        hub.check_integrity()

    soak(engine, check)
    drafts.poll()
    local._loop.run_once(0.0)
    assert hub.status(0.0).stats.num_tags == 0
    assert hub.status(0.0).stats.num_rows_leased == 0
    assert stats.acceptance.num_accepted_tokens > 0
