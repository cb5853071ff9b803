"""What is copied instead of prefilled changes nothing, and is really what decoding goes on from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from starspec.config import BATCHINGS, FIXED_LENGTH, BatchingConfig, ModelConfig, SpeculativeConfig
from starspec.harness.datasets import own_prompts
from starspec.harness.known_prompts import KnownPrompts
from starspec.harness.workbench import GREEDY, SAMPLED, Workbench
from starspec.models.runner import ForwardOutput, Segment

PROMPTS = own_prompts()[:6]


class Counting:
    """Counts tokens of forwards that prefill prompts."""

    def __init__(self, runner) -> None:
        self._runner = runner
        self.num_prefilled = 0

    def __getattr__(self, name):
        return getattr(self._runner, name)

    def forward(self, segments, feature_layers=()):
        self.num_prefilled += sum(len(each.token_ids) for each in segments if not each.num_logits)
        return self._runner.forward(segments, feature_layers)


@pytest.fixture(scope="module")
def bench(tiny_folder: Path) -> Workbench:
    return Workbench(ModelConfig(model=str(tiny_folder), dtype="float32", max_model_len=512, num_rows=16))


@pytest.mark.parametrize("method", BATCHINGS)
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED[1]])
def test_answers_from_copies_are_those_from_prefilling(bench: Workbench, method, sampling) -> None:
    jobs = bench.jobs(PROMPTS, sampling, 12)
    batching, known = BatchingConfig(method=method), KnownPrompts()
    expected = [answer.token_ids for answer in bench.record(jobs).answers]
    for batch_size in (1, 4, 3):
        found = bench.record(jobs, batch_size=batch_size, batching=batching, known=known)
        assert [answer.token_ids for answer in found.answers] == expected


def test_a_prompt_is_prefilled_once(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = Counting(bench.runner)
    monkeypatch.setattr(bench, "runner", runner)
    jobs, known = bench.jobs(PROMPTS, GREEDY, 3), KnownPrompts()
    prompts = [job.prompt_token_ids[:-1] for job in jobs]  # the last token is a round's
    num_different, num_all = sum(map(len, set(prompts))), sum(map(len, prompts))
    bench.record(jobs, known=known)
    assert runner.num_prefilled == num_different
    bench.record(jobs, batch_size=4, known=known)
    assert runner.num_prefilled == num_different
    bench.record(jobs, batch_size=4)
    assert runner.num_prefilled == num_different + num_all


@pytest.mark.parametrize("method", BATCHINGS)
def test_decoding_goes_on_from_what_is_copied(bench: Workbench, method) -> None:
    jobs, batching, known = bench.jobs(PROMPTS, GREEDY, 12), BatchingConfig(method=method), KnownPrompts()
    expected = bench.record(jobs, batch_size=4, batching=batching, known=known)
    for held in known._held.values():
        held.content.neg_()
    found = bench.record(jobs, batch_size=4, batching=batching, known=known)
    assert [each.token_ids for each in found.answers] != [each.token_ids for each in expected.answers]


def test_prompts_that_begin_alike_are_kept_apart(bench: Workbench) -> None:
    """Chunks of 256 tokens: the second ones are the same, what they attend to is not."""
    one, other = [5] * 256 + [7, 8, 9] * 20, [6] * 256 + [7, 8, 9] * 20
    jobs, known = bench.jobs(PROMPTS[:2], GREEDY, 8), KnownPrompts()
    jobs = [
        type(job)(job.name, tuple(prompt), job.sampling, job.max_tokens)
        for job, prompt in zip(jobs, (one, other), strict=True)
    ]
    expected = [answer.token_ids for answer in bench.record(jobs).answers]
    for batch_size in (1, 2, 2):
        found = bench.record(jobs, batch_size=batch_size, known=known)
        assert [answer.token_ids for answer in found.answers] == expected
    assert expected[0] != expected[1]


def test_a_runner_whose_keys_and_values_are_elsewhere_prefills_its_prompts_itself() -> None:
    class Sharded:
        cache = object()

    runner = Sharded()
    assert KnownPrompts().prefilling_once(runner) is runner


def test_a_head_drafts_from_the_features_of_a_known_prompt_as_from_those_it_reads(
    headed: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    target, head = headed
    bench = Workbench(ModelConfig(model=target, dtype="float32", num_rows=2, max_model_len=256))
    drafts = bench.drafts(SpeculativeConfig(method="eagle3", model=head, num_speculative_tokens=3, length=FIXED_LENGTH))
    known, jobs = KnownPrompts(), bench.jobs(own_prompts()[:3], GREEDY, 8)
    expected = bench.record(jobs, drafts, 2)
    bench.record(jobs, batch_size=2, known=known)  # without features
    bench.record(jobs, drafts, 2, known=known)
    chunks, forward = [], bench.runner.forward

    def counted(segments: Sequence[Segment], feature_layers: Sequence[int] = ()) -> ForwardOutput:
        chunks.extend(segment for segment in segments if not segment.num_logits)
        return forward(segments, feature_layers)

    monkeypatch.setattr(bench.runner, "forward", counted)
    copied = bench.record(jobs, drafts, 2, known=known)
    assert chunks == []
    assert [each.token_ids for each in copied.answers] == [each.token_ids for each in expected.answers]
    assert copied.acceptance == expected.acceptance
    assert copied.acceptance.num_accepted_tokens > 0
