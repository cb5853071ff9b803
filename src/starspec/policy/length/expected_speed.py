"""The draft lengths of a round that give the most expected tokens per second, or none where none pay.

Each draft token of a sequence is worth the probability that it is accepted. It costs its share of the target's next
step and of the wait for the proposals. Sequences share both costs, so they are weighed together. For each depth that
drafts may have, all draft tokens are sorted from the likeliest down, and as many are taken as give the most expected
tokens per second. The best depth wins. A hub may end a draft before its requested length. A token that is not drafted
is worth nothing and costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from starspec.policy.length.round_cost import RoundCost
from starspec.policy.length.step_cost import StepCost

MIN_GAIN: Final = 1.1  # times the speed without drafts: if less is expected, drafts may well lose
WORTHLESS: Final = 0.3  # probability below which a draft token is not tried before a step was measured


class ChosenLengths(NamedTuple):
    """What to draft in one round."""

    lengths: list[int]  # draft tokens of each sequence
    tokens_per_s: float | None = None  # expected, of all sequences together; None = no step has been measured


def fastest_lengths(
    rates: Sequence[float],
    limits: Sequence[int],
    step_cost: StepCost,
    round_cost: RoundCost,
    reaches: Sequence[float] | None = None,
    min_gain: float = MIN_GAIN,
) -> ChosenLengths:
    """The lengths with the most expected tokens per second. No drafts, unless they gain `min_gain`.

    Args:
        rates: for each sequence, the probability that a draft token is accepted if all before it are.
        limits: for each sequence, the most draft tokens it may have.
        step_cost: seconds of the target's step by its tokens. While it is empty, all likely tokens are drafted.
        round_cost: seconds of the wait for proposals.
        reaches: for each sequence, the probability that a draft continues after a token; None = 1 for all.
    """
    plain_s = float(step_cost.predict(np.array([len(rates)]))[0]) if step_cost and rates else None
    plain = None if plain_s is None else len(rates) / plain_s
    if not any(limits):
        return ChosenLengths(list(limits), plain)
    depths = np.arange(1, max(limits) + 1)
    has_room = depths <= np.array(limits)[:, None]
    worth = np.where(has_room, np.array(rates)[:, None] ** depths, -1.0)  # [sequences, depths], of a drafted token
    if plain is None:
        return ChosenLengths([int(each) for each in (worth >= WORTHLESS).sum(axis=1)])
    reach = np.ones(len(rates)) if reaches is None else np.array(reaches)
    drafted = np.where(has_room, reach[:, None] ** (depths - 1), 0.0)  # [sequences, depths]: expected tokens
    taken, best = _best_tokens(worth, drafted, sum(limits), step_cost, round_cost, min_gain * plain)
    lengths: list[int] = np.bincount(taken // len(depths), minlength=len(rates)).tolist()
    return ChosenLengths(lengths, best if any(lengths) else plain)


def _best_tokens(
    worth: NDArray[np.float64],
    drafted: NDArray[np.float64],
    num_candidates: int,
    step_cost: StepCost,
    round_cost: RoundCost,
    least: float,
) -> tuple[NDArray[np.int64], float]:
    """Draft tokens, as flat indices [N] into [sequences, depths], and their speed; none and `least` if none beat it."""
    num_sequences, max_depth = worth.shape
    order = np.argsort(-worth.ravel(), kind="stable")[:num_candidates]  # stable: a sequence's first token comes first
    depths = np.arange(1, max_depth + 1)
    is_allowed = order % max_depth < depths[:, None]  # [depths, tokens]: in drafts that are at most so deep
    expected = num_sequences + np.cumsum(np.where(is_allowed, (worth * drafted).flat[order], 0.0), axis=1)
    num_tokens = np.cumsum(np.where(is_allowed, drafted.flat[order], 0.0), axis=1)
    num_steps = np.cumsum(1.0 - np.prod(1.0 - drafted, axis=0))  # a draft step runs if any sequence continues
    wait_s = round_cost.seconds(num_steps[:, None], num_tokens)
    speed = expected / (step_cost.predict(num_sequences + num_tokens) + wait_s)
    depth, num = np.unravel_index(int(np.argmax(speed)), speed.shape)
    best = float(speed[depth, num])
    if best <= least:
        return order[:0], least
    return order[: num + 1][is_allowed[depth, : num + 1]], best
