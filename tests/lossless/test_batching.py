"""The layout of a batch does not change a token: a sample of the certificate's part `batch`, on SmolLM2 in float32."""

from __future__ import annotations

from dataclasses import replace

import pytest

from starspec.bench.claims import NUM_DRAFT_TOKENS
from starspec.bench.lossless import Contender, PlainAnswers, compare_with_plain
from starspec.bench.random_drafts import RandomDrafts
from starspec.config import BatchingConfig
from starspec.harness.datasets import CONTINUED, own_prompts, spread
from starspec.harness.known_prompts import KnownPrompts
from starspec.harness.workbench import GREEDY, Sampling, Workbench

pytestmark = pytest.mark.model
PROMPTS = [replace(prompt, category=CONTINUED) for prompt in spread(own_prompts(), 24)]  # without a chat template
MAX_TOKENS = 5


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=0.7)], ids=lambda sampling: sampling.name)
def test_every_way_of_batching_gives_the_tokens_of_plain_decoding_alone(
    float32_bench: Workbench, float32_known: KnownPrompts, sampling: Sampling
) -> None:
    plain_answers = PlainAnswers()
    drafts = RandomDrafts(float32_bench.runner.info.vocab_size, NUM_DRAFT_TOKENS, seed=4, true_tokens=plain_answers)
    contenders = [
        Contender("half-liar", batch_size, drafts, BatchingConfig(method=method, prompts="first"))  # type: ignore[arg-type]
        for method, batch_size in (("ragged", 16), ("eqspec", 8), ("exspec", 4), ("rollback", 3))
    ]
    rows = compare_with_plain(
        float32_bench, PROMPTS, [sampling], contenders, MAX_TOKENS, plain_answers=plain_answers, known=float32_known
    )
    for row in rows:
        assert (row.num_prompts, row.exact_match_rate, row.first_divergence) == (24, 1.0, None), row
        assert row.acceptance_rate > 0
        assert row.sequences_per_round > 0.5 * row.batch_size
