"""Drafts of EAGLE heads change no token: SmolLM2 in float32, alone and in batches, greedy and sampled.

Two heads: one that has learned nothing, so that nearly every guess is rolled back, and the shipped one.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import starspec
from starspec.bench.claims import CHAIN, TREE
from starspec.bench.lossless import Contender, compare_with_plain
from starspec.engine.drafts import Drafts
from starspec.harness.datasets import own_prompts, spread
from starspec.harness.known_prompts import KnownPrompts
from starspec.harness.workbench import GREEDY, SAMPLED, Sampling, Workbench
from starspec.local_star import LocalHub
from starspec.policy.length.make import make_policy
from starspec.stats import TargetStats

# minutes each where a processor has no bf16 arithmetic and others use it
pytestmark = [pytest.mark.model, pytest.mark.timeout(900)]
PROMPTS = spread(own_prompts(), 12)
SHIPPED = Path(starspec.__file__).parent / "heads" / "smollm2-135m"
SHAPES = {"chain": replace(CHAIN, quantization="none"), "tree": replace(TREE, quantization="none")}
SHIPPED_BATCHES = {
    GREEDY: [("chain", 1), ("tree", 4), ("chain", 8)],
    SAMPLED[1]: [("chain", 4), ("tree", 8)],
    SAMPLED[2]: [("tree", 1)],
}
RANDOM_BATCHES = {GREEDY: [("tree", 8)], SAMPLED[1]: [("tree", 4)], SAMPLED[2]: [("chain", 8)]}


@pytest.fixture(scope="module")
def drafts(float32_bench: Workbench, random_head: Path) -> dict[tuple[str, str], Drafts]:
    """(head, shape) -> its drafts. Both shapes share a hub."""
    bench, made = float32_bench, dict[tuple[str, str], Drafts]()
    for name, folder in (("random", random_head), ("shipped", SHIPPED)):
        of_head = {shape: replace(each, method="eagle3", model=str(folder)) for shape, each in SHAPES.items()}
        hub = LocalHub(bench.config, bench.runner.info, of_head["chain"], bench.tokenizer)
        made |= {(name, shape): hub.drafts(make_policy(each), TargetStats()) for shape, each in of_head.items()}
    return made


@pytest.mark.parametrize("sampling", SHIPPED_BATCHES, ids=lambda each: each.name)
def test_float32_says_what_plain_decoding_says_with_eagle_heads(
    float32_bench: Workbench, sampling: Sampling, drafts: dict[tuple[str, str], Drafts], float32_known: KnownPrompts
) -> None:
    batches = [("random", *each) for each in RANDOM_BATCHES[sampling]]
    batches += [("shipped", *each) for each in SHIPPED_BATCHES[sampling]]
    contenders = [Contender(name, size, drafts[name, shape]) for name, shape, size in batches]
    rows = compare_with_plain(float32_bench, PROMPTS, [sampling], contenders, 7, known=float32_known)
    assert [row.first_divergence for row in rows] == [None] * len(contenders)
    assert all(row.num_identical == len(PROMPTS) for row in rows)
    assert max(row.acceptance_length for row in rows if row.contender == "random") < 1.1
    assert min(row.acceptance_length for row in rows if row.contender == "shipped") > 1.5
