"""Drafts of EAGLE heads change no token: SmolLM2 in float32, alone and in batches, greedy and sampled.

Two heads: one that has learned nothing, so that nearly every guess is rolled back, and the shipped one.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import starspec
from starspec.bench.claims import CHAIN, MAX_MODEL_LEN, NUM_ROWS, TREE
from starspec.bench.lossless import Contender, compare_with_plain
from starspec.config import ModelConfig
from starspec.harness.datasets import own_prompts, spread
from starspec.harness.workbench import GREEDY, SAMPLED, Sampling, Workbench

# minutes each where a processor has no bf16 arithmetic and others use it
pytestmark = [pytest.mark.model, pytest.mark.timeout(900)]
PROMPTS = spread(own_prompts(), 24)
SHIPPED = Path(starspec.__file__).parent / "heads" / "smollm2-135m"
SHAPES = {"chain": replace(CHAIN, quantization="none"), "tree": replace(TREE, quantization="none")}
SHIPPED_BATCHES = {
    GREEDY: [("chain", 1), ("tree", 4), ("chain", 8)],
    SAMPLED[1]: [("chain", 4), ("tree", 8)],
    SAMPLED[2]: [("tree", 1)],
}
RANDOM_BATCHES = {GREEDY: [("tree", 8)], SAMPLED[1]: [("tree", 4)], SAMPLED[2]: [("chain", 8)]}


@pytest.fixture(scope="module")
def bench(smollm2: Path) -> Workbench:
    config = ModelConfig(model=str(smollm2), dtype="float32", num_rows=NUM_ROWS, max_model_len=MAX_MODEL_LEN)
    return Workbench(config)


@pytest.mark.parametrize("sampling", SHIPPED_BATCHES, ids=lambda each: each.name)
def test_float32_says_what_plain_decoding_says_with_eagle_heads(
    bench: Workbench, sampling: Sampling, random_head: Path
) -> None:
    drafts = {
        (name, shape): bench.drafts(replace(SHAPES[shape], method="eagle3", model=str(folder)))
        for name, folder in (("random", random_head), ("shipped", SHIPPED))
        for shape in SHAPES
    }
    batches = [("random", *each) for each in RANDOM_BATCHES[sampling]]
    batches += [("shipped", *each) for each in SHIPPED_BATCHES[sampling]]
    contenders = [Contender(name, size, drafts[name, shape]) for name, shape, size in batches]
    rows = compare_with_plain(bench, PROMPTS, [sampling], contenders, 7)
    assert [row.first_divergence for row in rows] == [None] * len(contenders)
    assert all(row.num_identical == len(PROMPTS) for row in rows)
    assert max(row.acceptance_length for row in rows if row.contender == "random") < 1.1
    assert min(row.acceptance_length for row in rows if row.contender == "shipped") > 1.5
