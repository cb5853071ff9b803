"""Steps and layers in turns: they follow the models, and leave nothing behind."""

from starspec.bench.step_times import time_steps
from starspec.config import ModelConfig
from starspec.draft.grow import CausalDrafter
from starspec.models.load import load_runner


def config(**options: object) -> ModelConfig:
    spec = ",".join(f"{name}={value}" for name, value in {"vocab": 128, **options}.items())
    return ModelConfig(model=f"synthetic:{spec}", max_model_len=64, num_rows=2)


def test_step_times_follow_the_models_and_leave_their_caches_alone() -> None:
    target, draft = load_runner(config(step_ms=5, per_token=1)), load_runner(config(step_ms=2, role="draft"))
    found = time_steps(target, CausalDrafter(draft), max_tokens=3, num_chains=1)
    assert found.draft_s >= 0.002  # how much longer they take is the machine's, and other tests may run on it
    assert all(seconds >= 0.005 + 0.001 * extra for extra, seconds in enumerate(found.target_s))
    assert len(found.target_s) == 3
    assert found.draft_vs_target == found.draft_s / found.target_s[0]
    assert target.cache.num_free_rows == draft.cache.num_free_rows == 2
