"""All ways of batching emit the tokens of plain decoding: the traps that others fell into, each with its name."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy import HashRunner

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))  # for `tiny`
from tiny import VOCAB_SIZE, make_config, make_info, make_model, prompt_ids

from starspec.bench.batch.serving import poisson_arrivals, serve
from starspec.bench.lossless import PlainAnswers
from starspec.bench.random_drafts import RandomDrafts, RandomTrees
from starspec.config import BATCHINGS, BatchingConfig, TargetConfig
from starspec.engine.drafts import Drafts, NoDrafts
from starspec.engine.engine import TargetEngine
from starspec.engine.sequence import TargetSequence
from starspec.errors import ConfigError
from starspec.harness.decode import Job, JobResult, decode, make_engine
from starspec.ids import RequestId
from starspec.models.fused import FusedRunner
from starspec.models.linear.packer import make_packer
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.verify import VerifyResult
from starspec.stats import TargetStats
from starspec.windows.batching import PARTS, lay_out, roll_back

CONFIG = make_config(num_rows=24)
RUNNER = FusedRunner(make_model("qwen2"), CONFIG, make_info(), make_packer(CONFIG, VOCAB_SIZE))
PLAIN_ANSWERS = PlainAnswers()
every_method = pytest.mark.parametrize("method", BATCHINGS)
padded_methods = pytest.mark.parametrize("method", [method for method in BATCHINGS if PARTS[method].is_padded])


class Words:
    chat_template = None

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = True) -> str:
        return "".join(f"w{token_id} " for token_id in token_ids)


class TruthfulDrafts(NoDrafts):
    """Proposes what the target is going to say, and keeps nothing: `begun` counts the sequences it was opened for."""

    def __init__(self, num_draft_tokens: int) -> None:
        self.num_draft_tokens, self.begun = num_draft_tokens, 0

    def open(self, sequences: Sequence[TargetSequence]) -> None:
        self.begun += len(sequences)

    def collect(self, batch: Sequence[TargetSequence]) -> list:
        from starspec.speculation.tree import DraftTree

        return [DraftTree.chain(tuple(PLAIN_ANSWERS(each))[: self.num_draft_tokens]) for each in batch]


def job(index: int, length: int, max_tokens: int = 12, *, seed: int | None = None, **sampling: object) -> Job:
    sampling = {"temperature": 0.7 if index % 2 else 0.0, "seed": index, **sampling}
    prompt = tuple(prompt_ids(length, index if seed is None else seed))
    return Job(f"job {index}", prompt, SamplingSpec(**sampling), max_tokens)  # type: ignore[arg-type]


def alone(jobs: Sequence[Job]) -> list[JobResult]:
    """Plain decoding, one by one."""
    answers = decode(make_engine(RUNNER, Words(), NoDrafts()), jobs, batch_size=1)
    PLAIN_ANSWERS.learn(jobs, answers)
    return answers


def engine_of(
    method: str, drafts: Drafts, batch_size: int, stats: TargetStats | None = None, **options: object
) -> TargetEngine:
    of_exspec = {"window": 2 * batch_size} if method == "exspec" else {}
    options = {key: value for key, value in options.items() if method == "exspec" or key != "window"}
    batching = BatchingConfig(method=method, **{**of_exspec, **options})  # type: ignore[arg-type]
    stats = stats or TargetStats()
    runner = lay_out(RUNNER, batching, stats.batch)
    return make_engine(runner, Words(), drafts, stats, 16, batching=batching, max_num_seqs=batch_size)


def ids(answers: Sequence[JobResult]) -> list[list[int]]:
    return [each.token_ids for each in answers]


def served(engine: TargetEngine, jobs: Sequence[Job]) -> list[JobResult]:
    return serve(engine, jobs, after_step=engine.check_integrity).answers


MIXED = [job(index, 1 + index * 13 % 61, 6 + index % 7) for index in range(14)]


@pytest.fixture(scope="module")
def mixed_alone() -> list[JobResult]:
    return alone(MIXED)


@every_method
@pytest.mark.parametrize("batch_size", [1, 2, 3, 8])
@pytest.mark.parametrize("kind", ["lies", "trees"])
def test_any_acceptance_in_any_batch_gives_the_tokens_of_plain_decoding(mixed_alone, method, batch_size, kind):
    liars = {
        "lies": RandomDrafts(VOCAB_SIZE, 4, 5, PLAIN_ANSWERS),
        "trees": RandomTrees(VOCAB_SIZE, 3, 3, 5, PLAIN_ANSWERS),
    }
    assert ids(served(engine_of(method, liars[kind], batch_size), MIXED)) == ids(mixed_alone)


@padded_methods
def test_a_bonus_token_is_kept_and_its_missing_keys_are_fed_in_the_next_round(method):
    """Full acceptance emits K + 1 tokens a round, and the round after is as right as the first."""
    jobs = [job(index, 20, 20) for index in range(4)]
    expected, stats = alone(jobs), TargetStats()
    assert ids(served(engine_of(method, TruthfulDrafts(4), 4, stats, window=4), jobs)) == ids(expected)
    assert stats.acceptance.block_efficiency == 5
    assert stats.acceptance.acceptance_rate == 1


@every_method
def test_pad_equal_to_eos_hides_no_token(method):
    """The pad token's id is 0 here, and so is the end token's; it is in prompts as well."""
    jobs = [
        Job(
            f"job {index}",
            (5, 0, 7, 0, *prompt_ids(index, index), 0),
            SamplingSpec(temperature=0, end_token_ids=(0,)),
            9,
        )
        for index in range(5)
    ]
    expected = alone(jobs)
    found = served(engine_of(method, RandomDrafts(VOCAB_SIZE, 4, 2, PLAIN_ANSWERS), 4), jobs)
    assert ids(found) == ids(expected)
    assert all(each.token_ids for each in found)


@every_method
def test_an_end_of_turn_token_inside_the_prompt_ends_nothing(method):
    jobs = [job(index, 9 + index, 8) for index in range(4)]
    ending = [
        Job(each.name, each.prompt_token_ids, SamplingSpec(temperature=0, end_token_ids=each.prompt_token_ids[3:4]), 8)
        for each in jobs
    ]
    expected = alone(ending)
    assert ids(served(engine_of(method, TruthfulDrafts(3), 3), ending)) == ids(expected)
    assert any(len(each.token_ids) == 8 for each in expected)


@every_method
def test_an_end_token_inside_the_accepted_run_ends_the_answer_there(method):
    jobs = [job(index, 10 + index, 12, temperature=0.0) for index in range(4)]
    ends = [each.token_ids[4 + index] for index, each in enumerate(alone(jobs))]
    ending = [
        Job(each.name, each.prompt_token_ids, SamplingSpec(temperature=0, end_token_ids=(end,)), 12)
        for each, end in zip(jobs, ends, strict=True)
    ]
    answers = {each.name: answer.token_ids for each, answer in zip(jobs, alone(jobs), strict=True)}

    class Beyond(TruthfulDrafts):
        """Proposes on behind the end token, as a draft does that knows of none."""

        def collect(self, batch):
            from starspec.speculation.tree import DraftTree

            by_prompt = {each.prompt_token_ids: answers[each.name] for each in jobs}
            texts = [by_prompt[tuple(each.spec.prompt_token_ids)][each.num_output_tokens :] for each in batch]
            return [DraftTree.chain(tuple(text[:8])) for text in texts]

    found = served(engine_of(method, Beyond(8), 4), ending)
    for answer, end in zip(found, ends, strict=True):
        assert answer.token_ids.index(end) == len(answer.token_ids) - 1
        assert answer.finish_reason == "stop"
    assert ids(found) == [
        answers[each.name][: answers[each.name].index(end) + 1] for each, end in zip(jobs, ends, strict=True)
    ]


@every_method
def test_a_draft_that_ends_early_or_proposes_nothing_is_no_error(method):
    class Moody(RandomDrafts):
        def collect(self, batch):
            trees = super().collect(batch)
            return [tree if index % 2 else type(tree)() for index, tree in enumerate(trees)]

    expected = alone(MIXED)
    assert ids(served(engine_of(method, Moody(VOCAB_SIZE, 4, 3, PLAIN_ANSWERS), 4), MIXED)) == ids(expected)


@every_method
def test_max_tokens_inside_an_accepted_run_is_not_overshot(method):
    jobs = [job(index, 8, 1 + index) for index in range(6)]
    expected = alone(jobs)
    found = served(engine_of(method, RandomDrafts(VOCAB_SIZE, 5, 4, PLAIN_ANSWERS), 6), jobs)
    assert ids(found) == ids(expected)
    assert [len(each.token_ids) for each in found] == [1, 2, 3, 4, 5, 6]


@every_method
def test_drafts_are_opened_once_a_sequence(method):
    drafts = TruthfulDrafts(3)
    alone(MIXED)
    served(engine_of(method, drafts, 4), MIXED)
    assert drafts.begun == len(MIXED)


def test_sorting_by_length_restores_the_callers_order():
    jobs = [job(index, length, 5) for index, length in enumerate((60, 3, 44, 3, 25, 3, 60, 9))]
    expected = alone(jobs)
    engine = engine_of("exspec", TruthfulDrafts(2), 2, window=3)
    order: list[str] = []
    engine.drafts.open = lambda sequences: order.extend(each.request_id for each in sequences)  # type: ignore[method-assign]
    assert ids(served(engine, jobs)) == ids(expected)
    assert order != sorted(order, key=int), "nothing was sorted"


def test_sequences_of_one_length_that_accept_evenly_are_never_realigned():
    jobs = [job(index, 20, 15) for index in range(8)]
    alone(jobs)
    stats = TargetStats()
    served(engine_of("exspec", TruthfulDrafts(4), 4, stats, window=8, prompts="first"), jobs)
    assert stats.batch.num_rounds == 2 * 3  # two groups, 15 tokens each in rounds of 5
    assert stats.batch.num_realigned_rounds == 0


def test_grouping_realigns_less_often_than_fixed_membership():
    jobs = [job(index, 12, 24) for index in range(16)]
    alone(jobs)
    rates = {}
    for method in ("eqspec", "exspec"):
        stats = TargetStats()
        served(engine_of(method, RandomDrafts(VOCAB_SIZE, 2, 7, PLAIN_ANSWERS), 2, stats, window=12), jobs)
        rates[method] = stats.batch.grouping_rate
    assert rates["exspec"] > rates["eqspec"]


def test_a_request_that_never_ends_starves_nobody_and_is_not_starved():
    """A stream of short requests of one length beside a long one of another: trap 20, ExSpec's P99 of 134 s."""
    jobs = [job(0, 40, 40), *[job(index, 5, 20, seed=1) for index in range(1, 16)]]
    expected = alone(jobs)
    for max_passed_over, is_bounded in ((4, True), (None, False)):
        stats = TargetStats()
        engine = engine_of("exspec", TruthfulDrafts(1), 2, stats, window=8, max_passed_over=max_passed_over)
        assert ids(served(engine, jobs)) == ids(expected)
        assert (stats.batch.longest_wait_rounds <= 4 + 8 // 2) == is_bounded


def test_whoever_was_overtaken_in_the_line_is_the_next_to_enter():
    """A long prompt before ever new short ones, where a row becomes free one at a time."""
    jobs = [job(0, 3, 2), job(1, 40, 2), *[job(index, 3, 2) for index in range(2, 12)]]
    alone(jobs)
    for max_passed_over, place in ((3, 4), (None, 11)):  # after the first and three that overtook it; after all others
        engine = engine_of("exspec", NoDrafts(), 1, window=1, max_passed_over=max_passed_over)
        entered: list[str] = []
        engine.drafts.open = lambda sequences: entered.extend(each.request_id for each in sequences)  # type: ignore[method-assign]  # noqa: B023
        served(engine, jobs)
        assert entered.index("1") == place


def test_a_prompt_that_was_begun_is_prefilled_to_its_end_and_then_the_oldest_that_entered_is_next():
    engine = engine_of("exspec", NoDrafts(), 3, window=3)
    chunks: list[int] = []  # tokens of each
    forward = engine.verifier.runner.forward

    def noting(segments, feature_layers=()):
        if not segments[0].num_logits:
            chunks.append(len(segments[0].token_ids))
        return forward(segments, feature_layers)

    engine.verifier.runner.forward = noting  # type: ignore[method-assign]
    for number, length in enumerate((40, 20)):
        engine.submit(RequestId(f"{number}"), job(number, length, 1).spec)
    engine.step()
    engine.submit(RequestId("shorter than both"), job(2, 10, 1).spec)
    while engine.has_work:
        engine.step()
    assert chunks == [16, 16, 7, 16, 3, 9]


def test_who_is_ready_and_passed_over_waits_and_it_is_counted():
    now_s, stats = iter(range(10**6)), TargetStats()
    engine = engine_of("exspec", NoDrafts(), 1, stats, window=3)
    engine._clock = lambda: float(next(now_s))
    engine._rounds.clock = engine._clock
    served(engine, [job(index, 4, 3) for index in range(3)])
    assert stats.batch.grouping_wait_s >= 2 * 3  # of three that are ready one runs, for some ticks of the clock


def test_ragged_waits_and_realigns_never():
    stats = TargetStats()
    alone(MIXED)
    served(engine_of("ragged", RandomDrafts(VOCAB_SIZE, 4, 1, PLAIN_ANSWERS), 4, stats), MIXED)
    batch = stats.batch
    assert (batch.realign_pad_s, batch.realign_kv_s, batch.copy_s, batch.grouping_wait_s) == (0, 0, 0, 0)
    assert (batch.grouping_rate, batch.longest_wait_rounds) == (1, 0)
    assert batch.verify_s > 0


@padded_methods
def test_a_batch_of_one_is_never_realigned(method):
    stats = TargetStats()
    served(engine_of(method, RandomDrafts(VOCAB_SIZE, 4, 1, PLAIN_ANSWERS), 1, stats, window=1), MIXED[:3])
    assert stats.batch.num_realigned_rounds == 0
    assert stats.batch.realign_kv_s == 0


def test_rollback_keeps_a_batch_even_and_wastes_what_the_slowest_refused():
    jobs = [job(index, 12, 18) for index in range(4)]
    alone(jobs)
    wasteful, thrifty = TargetStats(), TargetStats()
    for method, stats in (("rollback", wasteful), ("eqspec", thrifty)):
        served(engine_of(method, RandomDrafts(VOCAB_SIZE, 4, 9, PLAIN_ANSWERS), 4, stats, admission="fixed"), jobs)
    assert wasteful.batch.num_realigned_rounds == 0
    assert wasteful.batch.num_rounds > thrifty.batch.num_rounds


def test_rolling_back_cuts_every_verdict_to_the_shortest():
    verdicts = [VerifyResult((0, 2), (7, 8, 9)), VerifyResult((1,), (5, 6))]
    assert roll_back(verdicts) == [VerifyResult((0,), (7, 8)), VerifyResult((1,), (5, 6))]


@pytest.mark.parametrize("method", ["ragged", "eqspec", "rollback"])
def test_nobody_joins_a_fixed_batch(method):
    jobs = [job(index, 6, 4 + 5 * (index % 2)) for index in range(6)]
    expected = alone(jobs)

    class Members(RandomDrafts):
        batches: list[set[str]] = []  # noqa: RUF012 (of one test)

        def collect(self, batch):
            self.batches.append({each.request_id for each in batch})
            return super().collect(batch)

    Members.batches.clear()
    drafts = Members(VOCAB_SIZE, 3, 8, PLAIN_ANSWERS)
    assert ids(served(engine_of(method, drafts, 2, admission="fixed"), jobs)) == ids(expected)
    whole = [{str(2 * index), str(2 * index + 1)} for index in range(3)]
    assert all(any(batch <= pair for pair in whole) for batch in Members.batches)


@every_method
def test_requests_that_come_and_go_leave_no_row(method):
    engine = engine_of(method, RandomDrafts(VOCAB_SIZE, 3, 6, PLAIN_ANSWERS), 3)
    clock = iter(range(10**6))
    jobs = MIXED[:8]
    expected = alone(jobs)
    found = serve(
        engine,
        jobs,
        poisson_arrivals(8, 0.2, 1),
        clock=lambda: float(next(clock)),
        sleep=lambda _: None,
        after_step=engine.check_integrity,
    )
    assert ids(found.answers) == ids(expected)
    assert all(seconds > 0 for seconds in found.completion_s)
    assert engine.verifier.cache.rows.leased == frozenset()


@every_method
@settings(max_examples=8)
@given(data=st.data())
def test_aborted_requests_change_nothing_for_others(method, data):
    jobs = MIXED[:6]
    expected = alone(jobs)
    engine = engine_of(method, RandomDrafts(VOCAB_SIZE, 3, 6, PLAIN_ANSWERS), 3)
    for index, each in enumerate(jobs):
        engine.submit(str(index), each.spec)  # type: ignore[arg-type]
    aborted, found = set(), {str(index): [] for index in range(6)}
    while engine.has_work:
        for output in engine.step().values():
            found[output.request_id] += output.token_ids
        if data.draw(st.integers(0, 3)) == 0:
            aborted.add(victim := str(data.draw(st.integers(0, 5))))
            engine.abort(victim)  # type: ignore[arg-type]
        engine.check_integrity()
    for index, answer in enumerate(expected):
        text = found[str(index)]
        assert text == answer.token_ids[: len(text)]
        assert str(index) in aborted or text == answer.token_ids


@every_method
def test_a_long_prompt_beside_running_answers_stops_none_of_them(method):
    """Chunked prefill: while a newcomer's prompt is prefilled, every step has a round of the others."""
    jobs = [job(0, 9, 30), job(1, 9, 30)]
    engine = engine_of(method, NoDrafts(), 3, window=3)
    specs = [each.spec for each in (*jobs, job(2, 61, 2))]
    for number, spec in enumerate(specs[:2]):
        engine.submit(RequestId(f"{number}"), spec)
    while len(engine.step()) < 2:
        pass
    engine.submit(RequestId("newcomer"), specs[2])
    for _ in range(3):  # chunks of 16 of its prompt
        assert {each.request_id for each in engine.step().values()} == {"0", "1"}
        engine.check_integrity()
    while engine.has_work:  # the runner is everybody's
        engine.step()


@padded_methods
def test_statistics_count_what_was_drafted_in_vain(method):
    """Of proposals that are never right all tokens are counted as drafted, and none as accepted."""
    jobs = [job(index, 10, 8) for index in range(4)]
    alone(jobs)
    stats = TargetStats()
    served(engine_of(method, RandomDrafts(VOCAB_SIZE, 3, 1), 4, stats), jobs)
    assert stats.acceptance.num_emitted_tokens == 4 * 8
    assert stats.acceptance.num_draft_tokens >= 3 * (4 * 8 - 4 * 3)
    assert stats.acceptance.acceptance_rate < 0.1


def test_a_model_without_layers_is_refused_in_one_sentence():
    with pytest.raises(ConfigError, match="needs a model with weights"):
        lay_out(HashRunner(), BatchingConfig(method="eqspec"), TargetStats().batch)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"method": "padded"}, "batching"),
        ({"prompts": "last"}, "prompts"),
        ({"method": "exspec", "window": 0}, "window must be at least 1"),
        ({"method": "exspec", "max_passed_over": 0}, "max_passed_over must be at least 1, or None for no bound, got 0"),
        ({"method": "exspec", "min_group": 1}, "min_group must be at least 2, got 1"),
        ({"min_group": 4}, "min_group are for exspec, and batching is ragged"),
        ({"method": "eqspec", "window": 8}, "max_passed_over and min_group are for exspec, and batching is eqspec"),
        ({"max_passed_over": None}, "are for exspec, and batching is ragged"),
        ({"method": "exspec", "admission": "fixed"}, "no fixed batches"),
    ],
)
def test_a_batching_that_makes_no_sense_is_refused(options, sentence):
    with pytest.raises(ConfigError, match=sentence):
        BatchingConfig(**options)


def test_a_window_smaller_than_the_batch_is_refused():
    narrow = BatchingConfig(method="exspec", window=3)
    assert TargetConfig(max_num_seqs=3, batching=narrow).num_rows == 3
    with pytest.raises(ConfigError, match="batches of 4 from its window: 3 is too few"):
        TargetConfig(max_num_seqs=4, batching=narrow)


@padded_methods
def test_padded_batches_give_memory_back(method):
    engine = engine_of(method, RandomDrafts(VOCAB_SIZE, 3, 6, PLAIN_ANSWERS), 4)
    for _ in range(3):
        served(engine, MIXED)
        assert engine.verifier.cache.num_held_bytes == 0
