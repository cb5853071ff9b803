"""Requests through an engine in batches that others join and leave, and the record of what decided their tokens."""

import pytest

from starspec.bench.random_drafts import RandomDrafts
from starspec.config import ModelConfig
from starspec.engine.drafts import NoDrafts
from starspec.errors import OurBug
from starspec.harness.decode import Job, decode, make_engine
from starspec.harness.recorder import DecisionRecorder
from starspec.harness.workbench import GREEDY, SAMPLED, Workbench
from starspec.ids import RequestId
from starspec.sampling.draw import next_token


@pytest.fixture(scope="module")
def bench() -> Workbench:
    return Workbench(ModelConfig(model="synthetic:vocab=128,step_ms=0", max_model_len=128, num_rows=4))


def jobs_of(bench: Workbench, num: int, sampling=GREEDY) -> list[Job]:
    return [Job(f"job {n}", tuple(range(5, 8 + n)), bench.sampling_spec(sampling, n), 6 + n % 5) for n in range(num)]


class BusiestBatch(NoDrafts):
    """Plain decoding that notes the batches it sees."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.spreads: list[int] = []

    def collect(self, batch):
        self.sizes.append(len(batch))
        self.spreads.append(len({each.num_output_tokens for each in batch}))
        return super().collect(batch)


@pytest.mark.parametrize("batch_size", [1, 3, 4])
def test_the_answers_do_not_depend_on_the_batch_and_come_in_order(bench: Workbench, batch_size: int) -> None:
    jobs = jobs_of(bench, 9)
    alone = [decode(make_engine(bench.runner, bench.tokenizer, NoDrafts()), [job], batch_size=1)[0] for job in jobs]
    drafts = BusiestBatch()
    together = decode(make_engine(bench.runner, bench.tokenizer, drafts), jobs, batch_size=batch_size)
    assert [each.token_ids for each in together] == [each.token_ids for each in alone]
    assert [len(each.token_ids) for each in together] == [job.max_tokens for job in jobs]
    assert max(drafts.sizes) == batch_size


def test_requests_of_a_batch_are_at_different_points_of_their_answers(bench: Workbench) -> None:
    drafts = BusiestBatch()
    decode(make_engine(bench.runner, bench.tokenizer, drafts), jobs_of(bench, 8), batch_size=4)
    assert max(drafts.spreads) == 4


def test_an_engine_that_is_busy_is_not_measured(bench: Workbench) -> None:
    engine = make_engine(bench.runner, bench.tokenizer, NoDrafts())
    engine.submit(RequestId("other"), jobs_of(bench, 1)[0].spec)
    with pytest.raises(OurBug, match="idle at the start"):
        decode(engine, jobs_of(bench, 1), batch_size=1)
    engine.abort(RequestId("other"))


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED[1]], ids=lambda each: each.name)
@pytest.mark.parametrize("drafts", ["none", "lies"])
def test_recorded_logits_are_those_that_decide_the_tokens(bench: Workbench, sampling, drafts: str) -> None:
    jobs = jobs_of(bench, 6, sampling)
    source = NoDrafts() if drafts == "none" else RandomDrafts(128, 3, seed=4)
    recorder = DecisionRecorder(source)
    answers = decode(
        make_engine(bench.runner, bench.tokenizer, recorder.drafts, judge=recorder.judge), jobs, batch_size=3
    )
    for index, (job, answer) in enumerate(zip(jobs, answers, strict=True)):
        logits = recorder.take(RequestId(f"job-{index}"))
        first = len(job.prompt_token_ids)
        drawn = [next_token(row, job.sampling, first + at) for at, row in enumerate(logits)]
        assert drawn == answer.token_ids
        assert recorder.take(RequestId(f"job-{index}")) == []


def test_a_liar_that_knows_the_truth_is_right_for_a_random_number_of_tokens(bench: Workbench) -> None:
    jobs = [Job("long", (5, 6, 7), bench.sampling_spec(GREEDY, 0), 100)]
    (plain,) = decode(make_engine(bench.runner, bench.tokenizer, NoDrafts()), jobs, batch_size=1)
    liar = RandomDrafts(128, 4, seed=1, true_tokens=lambda sequence: plain.token_ids[sequence.num_output_tokens :])
    (answer,) = decode(make_engine(bench.runner, bench.tokenizer, liar), jobs, batch_size=1)
    assert answer.token_ids == plain.token_ids
    assert all(count > 0 for count in answer.stats.acceptance_histogram[:5])


def test_the_recorder_passes_everything_on(bench: Workbench) -> None:
    class Noted(NoDrafts):
        is_connected = True

        def __init__(self) -> None:
            self.calls: list[str] = []

        def open(self, sequences):
            self.calls.append("open")

        def close(self, sequence):
            self.calls.append("close")

        def poll(self):
            self.calls.append("poll")

        def note_round(self, times):
            self.calls.append("note_round")

        def shutdown(self):
            self.calls.append("shutdown")

    noted = Noted()
    recorder = DecisionRecorder(noted)
    engine = make_engine(bench.runner, bench.tokenizer, recorder.drafts, judge=recorder.judge)
    engine.submit(RequestId("a"), jobs_of(bench, 1)[0].spec)
    while engine.stats.num_rounds < 1:
        engine.step()
    engine.abort(RequestId("a"))
    recorder.drafts.poll()
    recorder.drafts.shutdown()
    assert recorder.drafts.is_connected
    assert noted.calls[0] == "open"
    assert set(noted.calls) == {"open", "note_round", "close", "poll", "shutdown"}
