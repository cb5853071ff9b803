"""The times that a length policy weighs, learnt from each round: target steps, waits for proposals, and prefill.

Each time is measured only while nothing else is going on. While the hub prefills, the time of a step counts towards the
cost of prefill; the cost of steps stays as it is, and does not age.
"""

from __future__ import annotations

import numpy as np

from starspec.policy.length.prefill_cost import PrefillCost
from starspec.policy.length.round_cost import RoundTimes
from starspec.policy.length.step_cost import StepCost


class Costs:
    """The three costs together, because each measurement belongs to one or another of them."""

    def __init__(self, rounds: RoundTimes | None = None) -> None:
        self.steps = StepCost()  # the target's steps, by their tokens
        self.rounds = rounds or RoundTimes()  # the wait for proposals
        self.prefill = PrefillCost()  # of tokens that the hub does not hold yet

    def forget_hub(self, rounds: RoundTimes | None = None) -> None:
        """Another hub was found. Times of the last hub say nothing about it. Args: rounds: with the new hub."""
        self.rounds = rounds or RoundTimes()
        self.prefill.forget_hub()

    def add_step(self, num_tokens: int | None, seconds: float) -> None:
        """The target took so long between two proposals.

        Args:
            num_tokens: of its step; None if it did more than verify, such as prefill a prompt of its own.
        """
        if self.prefill.is_going_on and self.steps:
            is_comparable = num_tokens is not None and self.steps.covers(num_tokens)
            usual_s = float(self.steps.predict(np.array([num_tokens]))[0]) if is_comparable else None
            self.prefill.add_step(seconds, usual_s)
        elif num_tokens is not None:
            self.steps.add(num_tokens, seconds)

    def end_step(self) -> None:
        """Call once for each step, whether or not it was measured."""
        if not self.prefill.is_going_on:
            self.steps.end_step()
