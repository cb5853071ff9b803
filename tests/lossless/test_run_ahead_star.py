"""A hub that drafts ahead of verdicts does not change a token: whole engines against plain decoding, in every mode."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from table_star import make_plain, make_star

from starspec.config import RunAhead
from starspec.engine.engine import TargetEngine
from starspec.harness.decode import Job, decode
from starspec.hub.loop import HubLoop
from starspec.models.runner import ForwardOutput
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.budget import DraftBudget

NUM_STEPS_BESIDE = 4
SAMPLINGS = {
    "greedy": SamplingSpec(temperature=0.0, frequency_penalty=0.4),
    "sampled": SamplingSpec(temperature=0.8, top_p=0.9, presence_penalty=0.3),
}


def let_draft_beside(engine: TargetEngine, hub: HubLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Effects: the hub runs a few draft steps during each forward of the target, as one with a process of its own."""
    forward = engine.verifier.runner.forward

    def forward_beside_hub(*segments: Any, **options: Any) -> ForwardOutput:
        for _ in range(NUM_STEPS_BESIDE):
            hub.run_once(0.0)
        return forward(*segments, **options)

    monkeypatch.setattr(engine.verifier.runner, "forward", forward_beside_hub)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("run_ahead", ["chain", "outcomes", "auto"])
def test_every_mode_emits_the_plain_tokens(run_ahead: RunAhead, sampling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [Job("", (seed % 4, 1), replace(SAMPLINGS[sampling], seed=seed), 24) for seed in range(16)]
    expected = [answer.token_ids for answer in decode(make_plain(1), jobs, batch_size=1)]
    for batch_size in (1, 4):
        engine, hub = make_star(DraftBudget.chain(4), batch_size, "coupled", run_ahead=run_ahead)
        let_draft_beside(engine, hub, monkeypatch)
        assert [answer.token_ids for answer in decode(engine, jobs, batch_size=batch_size)] == expected
        stats = hub.status().stats
        assert engine.stats.acceptance.num_accepted_tokens > 0
        if run_ahead != "auto" and batch_size == 1:
            assert stats.num_ahead_nodes > stats.num_wasted_nodes > 0, "of what was drafted ahead, some was of use"
