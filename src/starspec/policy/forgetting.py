"""When a request that vLLM does not mention any more counts as ended. No I/O and no clock of its own.

vLLM does not tell when a request ends. Only time shows whether it has ended or a step takes long. A request that is
forgotten during an unusually long step is opened again after it; the hub still has most of its tokens. So how long to
wait follows the usual step.

    last seen ──> FORGET_AFTER_S, and FORGET_AFTER_STEPS usual steps ──> forgotten ──> the next step has taken more than
                                                                                       LONGEST_STEP_S: it has ended
"""

from __future__ import annotations

from typing import Final

from starspec.policy.estimators import WindowMedian

FORGET_AFTER_S: Final = 1.0  # a request unseen for longer has ended, or was preempted and counts as new if it returns
FORGET_AFTER_STEPS: Final = 2.0  # at least so many usual steps too: on a slow machine each may take seconds
NUM_STEPS: Final = 16  # the usual step is the median of so many
LONGEST_STEP_S: Final = 10.0  # after a longer time, a row that continues a forgotten request does so by chance


def may_return(step_s: float) -> bool:
    """Whether requests that were forgotten may still go on after a step of this length."""
    return step_s <= LONGEST_STEP_S


class Forgetting:
    """Learns the usual step of one server."""

    def __init__(self) -> None:
        self._step_s = WindowMedian(NUM_STEPS)

    def add_step(self, seconds: float) -> None:
        """A step took so long, as some request that goes on shows."""
        self._step_s.add(seconds)

    @property
    def patience_s(self) -> float:
        """A request that is unseen for longer is forgotten."""
        return max(FORGET_AFTER_S, FORGET_AFTER_STEPS * (self._step_s.value or 0.0))
