"""`bench batch` keeps what prompts cost apart from rounds, and its batches are as full as they are called."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from starspec.bench.batch.measure import _Bench
from starspec.bench.batch.methods import MethodRun
from starspec.bench.batch.plan import METHODS, BatchMethod, BatchPlan
from starspec.bench.batch.serving import DraftPrefill, FullRounds, serve
from starspec.config import BatchingConfig, BatchingMethod, ModelConfig, TargetConfig
from starspec.engine.drafts import NoDrafts
from starspec.engine.engine import TargetEngine
from starspec.engine.sequence import RoundOutput, SequenceState, TargetSequence
from starspec.harness.decode import Job
from starspec.harness.model_pair import ModelPair
from starspec.models.loading.load import load_runner
from starspec.models.loading.tokenizer import load_tokenizer
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.tree import DraftTree
from starspec.stats import BatchStats, TargetStats
from starspec.windows.local import LocalVerifier

MODEL = "synthetic:vocab=64,step_ms=0"
PREFILL_S, DRAFTING_S = 10.0, 1.0
SYSTEM_PROMPT = tuple(range(1, 41))


def job(number: int, num_tokens: int, max_tokens: int) -> Job:
    own = tuple(50 + (number + at) % 70 for at in range(num_tokens))
    return Job(f"{number}", (*SYSTEM_PROMPT, *own), SamplingSpec(temperature=0), max_tokens)


@pytest.fixture(scope="module")
def bench(tiny_folder: Path) -> _Bench:
    models = ModelPair(
        target=str(tiny_folder), draft=str(tiny_folder), quantization="none", dtype="float32", num_threads=1
    )
    plan = BatchPlan(max_prompt_tokens=440, max_tokens=60, num_draft_tokens=2)
    return _Bench(models, plan, [BatchMethod.named("exspec", 3)])


def per_round(run: MethodRun) -> float:
    return run.stats.num_sequence_rounds / run.stats.num_rounds


LONG = [job(number, 300, 4) for number in range(9)]  # two chunks each: more steps than an answer has rounds


@pytest.mark.parametrize("name", METHODS)
def test_batches_are_full_however_long_their_prompts_are(name: str, bench: _Bench) -> None:
    assert per_round(bench.run(BatchMethod.named(name, 3), LONG)) >= 2.5


def test_plain_answers_of_one_length_fill_every_round(bench: _Bench) -> None:
    run = bench.run(BatchMethod.named("plain", 3), LONG)
    assert (per_round(run), run.stats.num_rounds) == (3.0, 12)
    assert run.prefill_s > 0
    assert run.prefill_s + run.stats.total_s <= run.seconds


def test_prompts_that_arrive_are_prefilled_beside_rounds(bench: _Bench) -> None:
    run = bench.run_apart(BatchMethod.named("ragged", 3), LONG, [0.0] * len(LONG))
    assert per_round(run) < 2.5
    assert run.draft_prefill_s == 0


def test_a_run_apart_does_not_gain_from_what_another_has_prefilled(bench: _Bench) -> None:
    drafter, num_shared = bench.hub.loaded.drafter, []
    jobs = [job(number, 300, 4) for number in range(20, 29)]  # of no other test
    for name in ("ragged", "eqspec", "ragged"):
        before = drafter.num_shared_tokens
        run = bench.run_apart(BatchMethod.named(name, 3), jobs)
        num_shared.append(drafter.num_shared_tokens - before)
        assert run.prefilled_before_s == 0
    assert num_shared[0] > 0, "within a run, prompts share their beginning"
    assert len(set(num_shared)) == 1


def test_prompts_are_prefilled_once_and_every_run_reports_the_time(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = ModelPair(
        target=str(tiny_folder), draft=str(tiny_folder), quantization="none", dtype="float32", num_threads=1
    )
    plan = BatchPlan(num_prompts=9, max_prompt_tokens=440, max_tokens=60, num_draft_tokens=2)
    bench = _Bench(models, plan, [BatchMethod.named("ragged", 3)])
    runner, chunk_s = bench.workbench.runner, 0.1
    forward, num_chunks = runner.forward, 0

    def slow(segments, feature_layers=()):
        nonlocal num_chunks
        if not segments[0].num_logits:
            num_chunks += len(segments)
            time.sleep(chunk_s)
        return forward(segments, feature_layers)

    monkeypatch.setattr(runner, "forward", slow)
    drafter, num_shared, runs = bench.hub.loaded.drafter, [0], []
    for name in ("ragged", "ragged", "plain"):
        runs.append(bench.run(BatchMethod.named(name, 3), LONG))
        num_shared.append(drafter.num_shared_tokens)
    first, again, plain = runs
    assert num_chunks == 2 * len(LONG)
    num_tokens = sum(len(each.prompt_token_ids) for each in LONG)
    for before, after in ((0, 1), (1, 2)):
        assert 0.9 * num_tokens < num_shared[after] - num_shared[before] < 1.2 * num_tokens  # all but rests of blocks
    assert first.draft_prefill_s == again.draft_prefill_s > plain.draft_prefill_s
    for run in (first, again, plain):
        assert run.prefill_s >= num_chunks * chunk_s
        assert run.prefill_s + run.draft_prefill_s + run.stats.total_s <= run.seconds
        assert run.served.seconds < num_chunks * chunk_s < run.seconds


class SlowHub(NoDrafts):
    """Nothing to propose, and that takes long: PREFILL_S for a prompt, DRAFTING_S after a verdict."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._owed_s: dict[str, float] = {}

    def open(self, sequences: Sequence[TargetSequence]) -> None:
        self._owed_s |= {each.request_id: PREFILL_S for each in sequences}

    def collect(self, batch: Sequence[TargetSequence]) -> list[DraftTree]:
        self.now_s += sum(self._owed_s.pop(each.request_id, 0.0) for each in batch)
        return super().collect(batch)

    def report(self, batch: Sequence[TargetSequence], emitted: Sequence[RoundOutput]) -> None:
        going_on = [each for each in batch if each.state is SequenceState.RUNNING]
        self._owed_s |= {each.request_id: DRAFTING_S for each in going_on}


def run_slowly(
    method: BatchingMethod, batch_size: int, max_tokens: Sequence[int]
) -> tuple[DraftPrefill, BatchStats, FullRounds]:
    """Answers of so many tokens each, a token a round."""
    hub, stats = SlowHub(), TargetStats()
    drafts = DraftPrefill(hub, stats.batch, lambda: hub.now_s)
    runner = load_runner(ModelConfig(model=MODEL, num_rows=8, max_model_len=128))
    config = TargetConfig(max_num_seqs=batch_size, batching=BatchingConfig(method=method, prompts="first"))
    engine = TargetEngine(LocalVerifier(runner), load_tokenizer(MODEL), drafts, config, stats, lambda: hub.now_s)
    jobs = [
        Job(f"{number}", (1, 2, 3 + number), SamplingSpec(temperature=0), num) for number, num in enumerate(max_tokens)
    ]
    full = FullRounds(stats, drafts, batch_size)
    answers = serve(engine, jobs, after_step=full.note_step).answers
    assert [len(each.token_ids) for each in answers] == list(max_tokens)
    return drafts, stats.batch, full


@pytest.mark.parametrize("method", ["ragged", "exspec"])
def test_rounds_wait_for_proposals_and_not_for_the_drafts_reading(method: BatchingMethod) -> None:
    """Every drafting is the rounds', that which a newcomer's admission waits for, too."""
    drafts, stats, _ = run_slowly(method, 2, (4, 5, 6, 7, 8))
    assert drafts.seconds == 5 * PREFILL_S
    assert stats.total_s == stats.draft_s == (3 + 4 + 5 + 6 + 7) * DRAFTING_S


def test_rounds_of_first_proposals_alone_are_charged_what_others_took() -> None:
    drafts, stats, _ = run_slowly("ragged", 1, (4, 4, 4))
    assert (stats.num_rounds, stats.draft_s) == (12, 9 * DRAFTING_S)
    drafts.charge_first_rounds()
    assert stats.draft_s == 12 * DRAFTING_S


def test_a_round_with_one_beginner_is_charged_nothing_for_it() -> None:
    drafts, stats, _ = run_slowly("ragged", 2, (4, 8, 4))  # the third begins beside the second
    drafts.charge_first_rounds()
    assert stats.draft_s == pytest.approx((3 + 7 + 3) * DRAFTING_S * 8 / 7)
    assert stats.num_rounds == 8


@pytest.mark.parametrize(("batch_size", "num_rounds"), [(1, 18), (2, 8)])
def test_the_end_of_a_run_does_not_count_for_full_batches(batch_size: int, num_rounds: int) -> None:
    _, stats, full = run_slowly("ragged", batch_size, (4, 4, 4, 6))  # in twos: eight rounds, and the last has two alone
    assert stats.num_rounds == num_rounds + 2 * (batch_size > 1)
    assert full.num_tokens == batch_size * num_rounds
    assert full.seconds == pytest.approx(num_rounds * batch_size * DRAFTING_S)
