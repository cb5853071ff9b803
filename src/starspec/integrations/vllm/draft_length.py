"""How many tokens to draft for each row of a step: as many as give the most tokens a second, none where none pay.

Each draft token of a row is worth the probability that it is accepted, and costs its share of vLLM's next step and of
the wait for the hub. Rows are weighed together, since they share both: for each depth that drafts may have, the
likeliest draft tokens of all rows first, up to the number with the best quotient of expected tokens and seconds. A hub
may end a draft before the length that it was asked for, in doubt: what is not reached is worth nothing and costs
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from starspec.integrations.vllm.round_cost import RoundCost
from starspec.integrations.vllm.step_cost import StepCost
from starspec.policy.estimators import DecayedRatio

FIRST_RATE: Final = 0.8  # before anything was verified
FIRST_WEIGHT: Final = 2.0  # draft tokens that this counts as
FIRST_REACH: Final = 1.0
FADING: Final = 0.9  # of what is known, with each draft that follows
LEAST_GAIN: Final = 1.1  # times the tokens a second without drafts: what promises less may as well lose
WORTHLESS: Final = 0.3  # probability below which a draft token is not tried before a step was timed
PROBE_EVERY: Final = 16  # steps: all rows probe in the same ones, since each step with a probe waits,
MAX_PROBE_EVERY: Final = 64  # and ever more rarely while no row's drafts pay
PROBE_STEPS: Final = 2  # in a row: what the hub is first told of a request may take it longer than a step
IDLE_STEPS: Final = 8  # of a row without a draft, before it probes
PROBE_TOKENS: Final = 2


class Acceptance:
    """What one request accepted lately, and how long it has had no draft.

    Args:
        first_rate: what is thought before anything was verified, and
        first_reach: likewise.
    """

    def __init__(self, first_rate: float = FIRST_RATE, first_reach: float = FIRST_REACH) -> None:
        self._acceptance = DecayedRatio(FADING, first_rate, FIRST_WEIGHT)
        self._going_on = DecayedRatio(FADING, first_reach, FIRST_WEIGHT)
        self._num_idle_steps = 0

    @property
    def rate(self) -> float:
        """Probability that a draft token is accepted if all before it are."""
        return self._acceptance.value

    @property
    def reach(self) -> float:
        """Probability that a draft goes on behind a token, if it is asked to."""
        return self._going_on.value

    def note(self, num_drafted: int, num_accepted: int, num_asked: int | None = None) -> None:
        """A step's draft of so many tokens was verified; behind the first that was refused nothing was tried.

        Args:
            num_asked: at least `num_drafted`; None = as many as were drafted.
        """
        num_asked = num_drafted if num_asked is None else num_asked
        self._num_idle_steps = 0 if num_drafted else self._num_idle_steps + 1
        if num_drafted:
            self._acceptance.add(num_accepted, num_accepted + (num_accepted < num_drafted))
            self._going_on.add(num_drafted - 1, num_drafted - 1 + (num_drafted < num_asked))

    @property
    def is_idle(self) -> bool:
        """Whether it had no draft for so long that one should be tried."""
        return self._num_idle_steps >= IDLE_STEPS


class ProbeSteps:
    """Which steps are for probes of rows that are idle."""

    def __init__(self) -> None:
        self._pause = PROBE_EVERY
        self._begin = PROBE_EVERY
        self._was_tried = False

    def includes(self, step: int, *, is_drafting: bool, has_new_rows: bool = False) -> bool:
        """Ask of each step once, in their order.

        Args:
            is_drafting: some rows' drafts pay, so that probes of others cost no wait of their own.
            has_new_rows: of which it is not known yet whether theirs do.
        """
        if is_drafting:
            self._pause, self._begin = PROBE_EVERY, step + PROBE_EVERY
            return True
        if step >= self._begin + PROBE_STEPS:
            self._pause = min(2 * self._pause, MAX_PROBE_EVERY) if self._was_tried else PROBE_EVERY
            self._begin, self._was_tried = step + self._pause, False
        if has_new_rows:
            self._pause, self._begin = PROBE_EVERY, min(self._begin, step + PROBE_EVERY)
        return step >= self._begin

    def note_tried(self) -> None:
        """A probe was drafted: what comes of it will be known."""
        self._was_tried = True


class PayingDrafts(NamedTuple):
    """What to draft in one step."""

    lengths: list[int]  # of each row
    speed: float | None = None  # expected tokens a second of all rows; None = no step has been timed


def paying_drafts(
    rates: Sequence[float],
    most: Sequence[int],
    step_cost: StepCost,
    round_cost: RoundCost,
    reaches: Sequence[float] | None = None,
) -> PayingDrafts:
    """The drafts that give the most tokens a second, none unless by LEAST_GAIN more than without.

    Args:
        rates: probability of each row that a draft token is accepted.
        most: draft tokens that each row may have.
        step_cost: seconds of vLLM's step by its tokens; while it is empty, what is likely enough pays.
        round_cost: of the wait for the hub.
        reaches: probability of each row that its draft goes on as long as it is asked to; None = all do.
    """
    plain_s = float(step_cost.predict(np.array([len(rates)]))[0]) if step_cost and rates else None
    plain = None if plain_s is None else len(rates) / plain_s
    if not any(most):
        return PayingDrafts(list(most), plain)
    depths = np.arange(1, max(most) + 1)
    has_room = depths <= np.array(most)[:, None]
    reach = np.ones(len(rates)) if reaches is None else np.array(reaches)
    drafted = np.where(has_room, reach[:, None] ** (depths - 1), 0.0)  # [rows, depths]: expected tokens
    worth = np.where(has_room, np.array(rates)[:, None] ** depths, -1.0)  # of a token that is drafted
    if plain is None:
        return PayingDrafts([int(each) for each in (worth >= WORTHLESS).sum(axis=1)])
    order = np.argsort(-worth.ravel(), kind="stable")[: sum(most)]  # stable: of a row, the first token comes first
    nth = order % len(depths)
    num_layers = np.cumsum(1.0 - np.prod(1.0 - drafted, axis=0))  # a layer is drafted if any row goes on
    best, taken = LEAST_GAIN * plain, order[:0]
    for depth in depths.tolist():
        allowed = order[nth < depth]
        expected = len(rates) + np.cumsum((worth * drafted).flat[allowed])
        num_tokens = np.cumsum(drafted.flat[allowed])
        wait_s = round_cost.seconds(num_layers[depth - 1], num_tokens)
        speed = expected / (step_cost.predict(len(rates) + num_tokens) + wait_s)
        num = int(np.argmax(speed))
        if speed[num] > best:
            best, taken = float(speed[num]), allowed[: num + 1]
    lengths: list[int] = np.bincount(taken // len(depths), minlength=len(rates)).tolist()
    return PayingDrafts(lengths, best if any(lengths) else plain)
