"""The draft lengths of a round that give the most expected tokens per second, or none where none pay.

Each draft token of a sequence is worth the probability that it is drafted and accepted. It costs its share of the
target's next step and of the wait for the proposals. Sequences share both costs, so they are weighed together. For each
depth that drafts may have, all draft tokens are sorted from the likeliest down, and as many are taken as give the most
expected tokens per second. The best depth wins. A hub may end a draft before its requested length. A token that is not
drafted is worth nothing and costs nothing.

A tree is weighed as a chain whose tokens cost as much as all nodes of their depth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from starspec.policy.length.round_cost import RoundCost
from starspec.policy.length.step_cost import StepCost

Predict = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""Seconds of target steps by their tokens."""

WORTHLESS: Final = 0.3  # probability below which a draft token is not tried before a step was measured


class ChosenLengths(NamedTuple):
    """What to draft in one round."""

    lengths: list[int]  # draft tokens of each sequence; of trees, draft steps
    tokens_per_s: float | None = None  # expected, of all sequences together; None = no step has been measured


@dataclass(frozen=True, slots=True)
class Candidates:
    """Draft tokens that a round may take."""

    rates: Sequence[float]  # for each sequence, the probability that a draft token is accepted if all before it are
    limits: Sequence[int]  # for each sequence, the most draft tokens it may have
    reaches: Sequence[float] | None = None  # the probability that its draft continues after a token; None = 1 for all
    gains: Sequence[float] | None = None  # ... and that the next token is accepted, too; None = rate times reach
    are_fixed: Sequence[bool] | None = None  # whether it gets just its limit, whatever that costs; None = none does
    widths: Sequence[int] | None = None  # nodes of a draft at each depth, at least as many as the limits; None = 1
    num_others: int = 0  # sequences of the round whose drafts are not chosen here, taken as if they had none


def fastest_lengths(
    candidates: Candidates,
    step_cost: StepCost,
    round_cost: RoundCost,
    min_gain: float = 1.0,
    *,
    is_hopeful: bool = False,
) -> ChosenLengths:
    """The lengths with the most expected tokens per second. Only fixed drafts, unless others gain `min_gain`.

    Args:
        step_cost: seconds of the target's step by its tokens. While it is empty, all likely tokens are drafted.
        round_cost: seconds of the wait for proposals.
        is_hopeful: a step of a size that was never measured costs as `StepCost.hopeful` has it.
    """
    rates, limits = np.array(candidates.rates, float), np.array(candidates.limits, int)
    max_depth = int(limits.max(initial=0))
    if not max_depth:
        return _plain(candidates, step_cost)
    depths = np.arange(1, max_depth + 1)
    has_room = depths <= limits[:, None]
    reach = np.ones(len(rates)) if candidates.reaches is None else np.array(candidates.reaches, float)
    gain = rates * reach if candidates.gains is None else np.array(candidates.gains, float)
    # [sequences, depths], expected tokens
    drafted = np.where(has_room, reach[:, None] ** (depths - 1), 0.0)
    accepted = np.where(has_room, rates[:, None] * gain[:, None] ** (depths - 1), 0.0)
    is_fixed = np.zeros(len(rates), bool) if candidates.are_fixed is None else np.array(candidates.are_fixed, bool)
    if not step_cost:
        likely = (accepted >= WORTHLESS).sum(axis=1)
        return ChosenLengths(np.where(is_fixed, limits, likely).tolist())
    widths = np.ones(max_depth) if candidates.widths is None else np.array(candidates.widths[:max_depth], float)
    table = _Table(accepted, drafted, has_room, is_fixed, widths, len(rates) + candidates.num_others)
    predict = step_cost.hopeful if is_hopeful else step_cost.predict
    taken, best = table.fastest(predict, round_cost, min_gain)
    return ChosenLengths(np.bincount(taken // max_depth, minlength=len(rates)).tolist(), best)


def _plain(candidates: Candidates, step_cost: StepCost) -> ChosenLengths:
    num = len(candidates.rates) + candidates.num_others
    if not num or not step_cost:
        return ChosenLengths([0] * len(candidates.rates))
    return ChosenLengths([0] * len(candidates.rates), num / step_cost.seconds(num))


class _Table:
    """The draft tokens of a round, by sequence and depth."""

    def __init__(
        self,
        accepted: NDArray[np.float64],
        drafted: NDArray[np.float64],
        has_room: NDArray[np.bool_],
        is_fixed: NDArray[np.bool_],
        widths: NDArray[np.float64],
        num_sequences: int,
    ) -> None:
        self._accepted = accepted
        self._nodes = drafted * widths
        # of a draft's number of nodes, what each depth adds to its variance
        squares = np.cumsum(self._nodes * (2.0 * np.cumsum(widths) - widths), axis=1)
        self._variances = np.diff(squares - np.cumsum(self._nodes, axis=1) ** 2, axis=1, prepend=0.0)
        self._num_sequences = num_sequences
        # of a token that is drafted: that it is accepted. None is worth more than the one before it.
        worth = np.minimum.accumulate(accepted / np.where(drafted > 0.0, drafted, 1.0), axis=1)
        fixed = drafted * is_fixed[:, None]
        are_fixed = has_room & is_fixed[:, None]
        self._num_fixed = int(are_fixed.sum())
        first = np.where(has_room, worth + 2.0 * are_fixed, -1.0)  # fixed ones, then the likeliest ones
        order = np.argsort(-first.ravel(), kind="stable")  # stable: a sequence's first token comes first
        self._order = order[: int(has_room.sum())]
        # a draft step runs if any sequence continues
        self._steps = (1.0 - np.prod(1.0 - drafted, axis=0)) * widths
        self._fixed_steps = (1.0 - np.prod(1.0 - fixed, axis=0)) * widths

    def fastest(self, predict: Predict, round_cost: RoundCost, min_gain: float) -> tuple[NDArray[np.int64], float]:
        """The tokens to take, as flat indices [N], and their speed: the fixed ones only, if no others gain enough."""
        order, num_fixed, max_depth = self._order, self._num_fixed, self._nodes.shape[1]
        accepted, nodes = self._accepted.flat[order], self._nodes.flat[order]
        depths = np.arange(1, max_depth + 1)
        is_allowed = order % max_depth < depths[:, None]  # [depths, tokens]: in drafts that are at most so deep
        is_allowed[:, :num_fixed] = True
        expected = self._num_sequences + np.cumsum(np.where(is_allowed, accepted, 0.0), axis=1)
        num_nodes = np.cumsum(np.where(is_allowed, nodes, 0.0), axis=1)
        num_steps = np.cumsum(self._steps - self._fixed_steps) + self._fixed_steps.sum()
        wait_s = round_cost.seconds(num_steps[:, None], num_nodes)
        variances = np.cumsum(np.where(is_allowed, self._variances.flat[order], 0.0), axis=1)
        speed = expected / (self._step_s(predict, num_nodes, variances) + wait_s)
        speed[:, :num_fixed] = 0.0
        depth, num = np.unravel_index(int(np.argmax(speed)), speed.shape)
        best, base = float(speed[depth, num]), self._base_speed(predict, round_cost)
        if best <= min_gain * base:
            return order[:num_fixed], base
        return order[: num + 1][is_allowed[depth, : num + 1]], best

    def _step_s(
        self, predict: Predict, num_nodes: NDArray[np.float64], variances: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Expected seconds of the target's step, by the expected number of draft nodes and its variance.

        Drafts that end early and drafts that go on make smaller and larger steps. Where costs rise behind a knee, these
        cost more on average than a step of the average size.
        """
        sizes = self._num_sequences + num_nodes
        if variances.max() <= 0.0:
            return predict(sizes)
        spread = np.sqrt(np.maximum(0.0, variances))
        smaller = np.maximum(self._num_sequences, sizes - spread)  # each sequence has a token of its own
        return 0.5 * (predict(smaller) + predict(sizes + spread))

    def _base_speed(self, predict: Predict, round_cost: RoundCost) -> float:
        """Expected tokens per second with the fixed drafts only."""
        fixed = self._order[: self._num_fixed]
        num_nodes, variances = (np.array([float(each.flat[fixed].sum())]) for each in (self._nodes, self._variances))
        seconds = self._step_s(predict, num_nodes, variances)
        if self._num_fixed:
            seconds = seconds + round_cost.seconds(float(self._fixed_steps.sum()), num_nodes)
        return float((self._num_sequences + self._accepted.flat[fixed].sum()) / seconds[0])
