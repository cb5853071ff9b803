"""Contenders that share prompts decode as those that read every prompt themselves."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from starspec.config import ModelConfig, SpeculativeConfig
from starspec.harness.datasets import own_prompts
from starspec.harness.known_prompts import KnownPrompts
from starspec.harness.workbench import GREEDY, Workbench
from starspec.models.runner import ForwardOutput, Segment


def test_a_head_drafts_from_the_features_of_a_known_prompt_as_from_those_it_reads(
    headed: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    target, head = headed
    bench = Workbench(ModelConfig(model=target, dtype="float32", num_rows=2, max_model_len=256))
    drafts = bench.drafts(SpeculativeConfig(method="eagle3", model=head, num_speculative_tokens=3))
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
