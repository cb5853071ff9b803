"""How many targets one draft can serve so that all of them gain by it (StarSD section 4.2). Pure functions.

A sequence's round is d draft steps at the hub, and then Z seconds until its verdict. Two things bound it from below. If
all sequences fit into a draft step, a round takes d c(b) + Z, where c(b) is the time of a draft step with the b
sequences that draft at the same time. A hub with at most K sequences in a draft step needs sum(d) c(K) / K to serve all
of them once. With K = 1 this is T = max(S + Z, N S), the paper's equations 8 to 10.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, fsum, inf
from statistics import fmean
from typing import Final, NamedTuple

MIN_ROUNDS: Final = 5  # a target's demand is not known before
NUM_ITERATIONS = 20  # for b; each halves the error, or better, while draft steps are shorter than Z


class DraftStepCost(NamedTuple):
    """Seconds of a draft step: c(b) = alone + per_sequence (b - 1)."""

    alone_s: float
    per_sequence_s: float

    def seconds(self, num_sequences: float) -> float:
        return self.alone_s + self.per_sequence_s * (num_sequences - 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What one target asks of a hub, and how fast it is without drafts; means over recent rounds."""

    num_sequences: float  # sequences at once
    num_steps: float  # d: draft steps behind a proposal
    return_s: float  # Z: from a proposal to its verdict
    num_tokens: float  # emitted in a round
    plain_tokens_per_s: float  # of one sequence without drafts


def demand_of(measured: Demand, num_rounds: int) -> Demand | None:
    """The demand of a target as measured so far; None if too little is known.

    If the plain speed is unknown (0), one token is assumed to take Z seconds. There is at least one sequence.
    """
    if num_rounds < MIN_ROUNDS or not measured.return_s:
        return None
    return replace(
        measured,
        num_sequences=max(1.0, measured.num_sequences),
        plain_tokens_per_s=measured.plain_tokens_per_s or 1.0 / measured.return_s,
    )


def predicted_rates(demands: Sequence[Demand], cost: DraftStepCost, max_sequences: int | None) -> list[float]:
    """Tokens per second of one sequence of each target, if the hub serves exactly these targets.

    One more target makes none of the others faster, not even by a rounding error: each operation is monotone, also in
    floats, because `fsum` and the operators round to the nearest number. The bisection of `num_max` relies on this.

    Args:
        max_sequences: in one draft step, at most.
    """
    num_sequences = fsum(each.num_sequences for each in demands)
    width = num_sequences if max_sequences is None else min(num_sequences, max_sequences)
    step_s, served_once_s = cost.seconds(_sequences_in_a_step(demands, cost, width)), 0.0
    if width < num_sequences:
        served_once_s = fsum(each.num_sequences * each.num_steps for each in demands) * cost.seconds(width) / width
    return [each.num_tokens / max(each.num_steps * step_s + each.return_s, served_once_s) for each in demands]


def num_full(service_s: float, return_s: float) -> int:
    """N_full: with so many targets, one sequence each, a hub that serves one at a time is never idle (eq. 12)."""
    return ceil(return_s / service_s) + 1


def gains(
    demand: Demand, others: Sequence[Demand], cost: DraftStepCost, max_sequences: int | None, margin: float
) -> bool:
    """Whether a target is faster than plain by `margin` times its plain speed, if the hub also serves the others."""
    rate = predicted_rates([*others, demand], cost, max_sequences)[-1]
    return rate >= (1.0 + margin) * demand.plain_tokens_per_s


def losers(demands: Sequence[Demand], cost: DraftStepCost, max_sequences: int | None, margin: float) -> list[Demand]:
    """Targets that are slower than `1 + margin` times their plain speed if the hub serves exactly these."""
    rates = predicted_rates(demands, cost, max_sequences)
    least = 1.0 + margin
    return [each for rate, each in zip(rates, demands, strict=True) if rate < least * each.plain_tokens_per_s]


def num_max(demands: Sequence[Demand], cost: DraftStepCost, max_sequences: int | None, limit: int) -> int:
    """N_max: the largest number of targets, up to `limit`, that are all at least as fast as plain; at least 1.

    Args:
        demands: of the targets served, in order of admission, at least one. Further targets are supposed to be like
            them. Targets that would gain nothing even alone are left out.
    """
    gaining = [each for each in demands if gains(each, [], cost, max_sequences, 0.0)]
    if not gaining:
        return 1
    supposed = typical(gaining)

    def is_too_many(num_targets: int) -> bool:
        served = [*gaining, *[supposed] * (num_targets - len(gaining))][:num_targets]
        return bool(losers(served, cost, max_sequences, 0.0))

    return 1 + bisect_left(
        range(2, limit + 1), True, key=is_too_many
    )  # more targets make none faster: `predicted_rates`


def expected(others: Sequence[Demand], plain_tokens_per_s: float) -> Demand:
    """The expected demand of a target if only its plain speed is known: a faster target also verifies faster."""
    like_others = typical(others)
    return replace(
        like_others,
        plain_tokens_per_s=plain_tokens_per_s,
        return_s=fmean(each.return_s * each.plain_tokens_per_s for each in others) / plain_tokens_per_s,
    )


def typical(demands: Sequence[Demand]) -> Demand:
    """The expected demand of a target of which nothing is known; its plain speed is that of the fastest one."""
    return Demand(
        num_sequences=fmean(each.num_sequences for each in demands),
        num_steps=fmean(each.num_steps for each in demands),
        return_s=fmean(each.return_s for each in demands),
        num_tokens=fmean(each.num_tokens for each in demands),
        plain_tokens_per_s=max(each.plain_tokens_per_s for each in demands),
    )


def _sequences_in_a_step(demands: Sequence[Demand], cost: DraftStepCost, most: float) -> float:
    """b: by Little's law, the sum of the shares of a round that each sequence spends drafting; 1 to `most`.

    The share d c / (d c + Z) is written so that c occurs once: then it never gets less with longer draft steps, not
    even by rounding. Equal targets are added up together, for speed: in the search for N_max most are equal.
    """
    alike = Counter((each.num_sequences, each.return_s / each.num_steps if each.num_steps else inf) for each in demands)
    shares = [(num_sequences * count, away_s) for (num_sequences, away_s), count in alike.items()]
    together = most
    for _ in range(NUM_ITERATIONS):
        step_s, before = cost.seconds(together), together
        drafting = fsum(num_sequences / (1.0 + away_s / step_s) for num_sequences, away_s in shares)
        together = min(most, max(1.0, drafting))
        if together == before:
            break
    return together
