"""Steps and layers in turns: they follow the models, and leave nothing behind."""

import pytest

from starspec.config import ModelConfig
from starspec.harness.step_times import time_steps
from starspec.hub.causal import CausalDrafter
from starspec.models.loading.load import load_runner


def config(**options: object) -> ModelConfig:
    spec = ",".join(f"{name}={value}" for name, value in {"vocab": 128, **options}.items())
    return ModelConfig(model=f"synthetic:{spec}", max_model_len=64, num_rows=2)


@pytest.mark.usefixtures("modelled_time")
def test_step_times_follow_the_models_and_leave_their_caches_alone() -> None:
    target, draft = load_runner(config(step_ms=5, per_token=1)), load_runner(config(step_ms=2, role="draft"))
    found = time_steps(target, CausalDrafter(draft), max_tokens=3, num_chains=1)
    assert 0.002 <= found.draft_s < found.target_s[0]
    assert 0.005 <= found.target_s[0] < found.target_s[1] < found.target_s[2]
    assert found.draft_vs_target == found.draft_s / found.target_s[0]
    assert target.cache.num_free_rows == draft.cache.num_free_rows == 2
