"""How long a request of vLLM may be unseen before it counts as ended."""

from __future__ import annotations

from starspec.policy.forgetting import (
    FORGET_AFTER_S,
    FORGET_AFTER_STEPS,
    LONGEST_STEP_S,
    NUM_STEPS,
    Forgetting,
    may_return,
)


def test_on_a_fast_server_a_fixed_time_counts() -> None:
    forgetting = Forgetting()
    assert forgetting.patience_s == FORGET_AFTER_S
    forgetting.add_step(0.02)
    assert forgetting.patience_s == FORGET_AFTER_S


def test_on_a_slow_server_its_usual_step_counts_and_one_long_step_does_not() -> None:
    forgetting = Forgetting()
    for _ in range(NUM_STEPS):
        forgetting.add_step(3.0)
    forgetting.add_step(60.0)
    assert forgetting.patience_s == FORGET_AFTER_STEPS * 3.0


def test_no_step_is_so_long_that_a_request_returns_after_it() -> None:
    assert may_return(LONGEST_STEP_S)
    assert not may_return(LONGEST_STEP_S + 0.1)
