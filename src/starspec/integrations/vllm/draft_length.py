"""How many tokens to draft for each row of a step: as many as give the most tokens a second, none where none pay.

Each draft token of a row is worth the probability that it is accepted, and costs its share of vLLM's next step and of
the wait for the hub. Rows are weighed together, since they share both: the likeliest draft tokens of all rows first,
up to the number with the best quotient of expected tokens and seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from starspec.integrations.vllm.measured_cost import MeasuredCost

FIRST_RATE: Final = 0.8  # before anything was verified
FIRST_WEIGHT: Final = 2.0  # draft tokens that this counts as
FADING: Final = 0.9  # of what is known, with each draft that follows
PROBE_EVERY: Final = 16  # steps without a draft until one is tried again
PROBE_TOKENS: Final = 2


class Acceptance:
    """What one request accepted lately, and how long it has had no draft."""

    def __init__(self) -> None:
        self._num_tried = FIRST_WEIGHT
        self._num_accepted = FIRST_RATE * FIRST_WEIGHT
        self._num_idle_steps = 0

    @property
    def rate(self) -> float:
        """Probability that a draft token is accepted if all before it are."""
        return self._num_accepted / self._num_tried

    def note(self, num_drafted: int, num_accepted: int) -> None:
        """A step's draft of so many tokens was verified; behind the first that was refused nothing was tried."""
        self._num_idle_steps = 0 if num_drafted else self._num_idle_steps + 1
        if num_drafted:
            self._num_tried = FADING * self._num_tried + num_accepted + (num_accepted < num_drafted)
            self._num_accepted = FADING * self._num_accepted + num_accepted

    def probed(self, num_tokens: int, most: int) -> int:
        """What to ask for where `num_tokens` would pay: as many, or after many steps without a draft a probe.

        It is asked for until there is one: what a hub is first told of a request may take it longer than a step.
        """
        if num_tokens or self._num_idle_steps < PROBE_EVERY:
            return num_tokens
        return min(PROBE_TOKENS, most)


def paying_lengths(
    rates: Sequence[float], most: Sequence[int], step_cost: MeasuredCost, draft_cost: MeasuredCost
) -> list[int]:
    """Draft tokens of each row, as long as they raise the tokens expected of a second.

    Args:
        rates: probability of each row that a draft token is accepted.
        most: draft tokens that each row may have.
        step_cost: seconds of vLLM's step by its tokens; while it is empty, all pay.
        draft_cost: seconds until drafts are there by the longest of them.
    """
    if not step_cost or not any(most):
        return list(most)
    depths = np.arange(1, max(most) + 1)
    worth = np.where(depths <= np.array(most)[:, None], np.array(rates)[:, None] ** depths, -1.0).ravel()
    order = np.argsort(-worth, kind="stable")[: sum(most)]  # stable: of a row, the first token comes first
    rows, nth = np.divmod(order, len(depths))
    expected = len(rates) + np.concatenate([[0.0], np.cumsum(worth[order])])
    seconds = step_cost.predict(len(rates) + np.arange(len(order) + 1))
    if draft_cost:
        seconds[1:] += draft_cost.predict(np.maximum.accumulate(nth + 1))
    best = int(np.argmax(expected / seconds))
    lengths: list[int] = np.bincount(rows[:best], minlength=len(rates)).tolist()
    return lengths
