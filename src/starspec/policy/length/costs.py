"""The times that a length policy weighs, learnt from each round: target steps, waits for proposals, and prefill.

Each time is measured only while nothing else is going on. While the hub prefills, the time of a step counts towards the
cost of prefill; the cost of steps stays as it is, and does not age.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from starspec.policy.estimators import DecayedMean
from starspec.policy.length.prefill_cost import FIRST_OUTPUT_LEN, OUTPUT_LEN_WEIGHT, PrefillCost
from starspec.policy.length.round_cost import RoundTimes
from starspec.policy.length.step_cost import StepCost


def _output_len() -> DecayedMean:
    return DecayedMean(OUTPUT_LEN_WEIGHT, FIRST_OUTPUT_LEN)


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs together, because each measurement belongs to one or another of them."""

    steps: StepCost = field(default_factory=StepCost)  # the target's steps, by their tokens
    output_len: DecayedMean = field(default_factory=_output_len)  # tokens that a request generates
    rounds: RoundTimes = field(default_factory=RoundTimes)  # the wait for proposals; of one hub
    prefill: PrefillCost = field(default_factory=PrefillCost)  # of tokens that the hub does not hold yet; of one hub

    def add_step(self, num_tokens: int | None, seconds: float) -> None:
        """The target took so long between two proposals.

        Args:
            num_tokens: of its step; None if it did more than verify, such as prefill a prompt of its own.
        """
        if self.prefill.is_going_on and self.steps:
            usual_s = None
            if num_tokens is not None and self.steps.covers(num_tokens):
                usual_s = self.steps.seconds(num_tokens)
            self.prefill.add_step(seconds, usual_s)
        elif num_tokens is not None:
            self.steps.add(num_tokens, seconds)

    def add_finished(self, num_tokens: int) -> None:
        """A request ended after so many generated tokens."""
        self.output_len.add(num_tokens)

    def pays_prefill(self, num_tokens: int, before_s: float, after_s: float, most_tokens: float) -> bool:
        """As `PrefillCost.pays`. Args: most_tokens: that a request may still generate, on average."""
        return self.prefill.pays(num_tokens, before_s, after_s, min(most_tokens, self.output_len.value))

    def end_step(self) -> None:
        """Call once for each step, whether or not it was measured."""
        self.rounds.end_step()
        if not self.prefill.is_going_on:
            self.steps.end_step()
