"""How long a step may wait, learnt from rounds and steps."""

from __future__ import annotations

import pytest

from starspec.integrations.vllm.deadline import Deadline


def test_slow_rounds_are_waited_for_no_longer_than_two_steps() -> None:
    deadline = Deadline()
    for _ in range(20):
        deadline.note_step(0.020)
        deadline.note_round(0.5)
    assert deadline.seconds == pytest.approx(0.040)


@pytest.mark.parametrize(("round_s", "step_s"), [(0.001, 0.020), (0.5, 0.001)])
def test_nothing_is_so_quick_that_a_wait_ends_before_five_milliseconds(round_s: float, step_s: float) -> None:
    deadline = Deadline()
    deadline.note_step(step_s)
    deadline.note_round(round_s)
    assert deadline.seconds == pytest.approx(0.005)
