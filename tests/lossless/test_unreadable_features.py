"""A target whose hidden states a head cannot use decodes plainly, without waiting for proposals."""

from __future__ import annotations

from pathlib import Path

import pytest
from predictable import write_eagle1_reader, write_target
from safetensors.torch import load_file, save_file

from starspec import LLM, SamplingParams

PROMPT = [5, 9, 70]
GREEDY = SamplingParams(temperature=0.0, max_tokens=24)


@pytest.mark.timeout(60)  # a hub within the process has no deadline: who asks it in vain waits for an hour
def test_a_head_whose_features_are_too_large_for_it_is_not_waited_for(tmp_path: Path) -> None:
    target, head = write_target(tmp_path / "target"), write_eagle1_reader(tmp_path / "head")
    assert answer(target, head).metrics.acceptance.num_accepted_tokens > 0
    plain = answer(target).outputs[0].token_ids
    weights = load_file(target / "model.safetensors")
    weights["model.norm.weight"] *= 1e7  # the same order of logits
    save_file(weights, target / "model.safetensors", {"format": "pt"})
    found = answer(target, head)
    assert found.outputs[0].token_ids == plain
    assert found.metrics.acceptance.num_draft_tokens == 0


def answer(target: Path, head: Path | None = None):
    speculative = (
        {"speculative_config": {"model": str(head), "method": "eagle", "length": {"policy": "fixed"}}} if head else {}
    )
    llm = LLM(model=str(target), dtype="float32", max_num_seqs=2, max_model_len=128, num_threads=1, **speculative)
    return llm.generate([PROMPT], GREEDY)[0]
