"""Forecasts of the speed-up: StarSD's model of a round (section 3) for one target, as pure functions.

tokens per round    1 + E[l(K)]                     E[l] from what was seen, or eq. 3 for a single rate
a round             T(K) = K t_s + t_c + t_v(K+1)   eqs. 5, 6 and 10 for N = 1
speed-up            (1 + E[l(K)]) t_v(1) / T(K)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

WORTH_IT = 1.05  # smallest forecast speed-up that is recommended: forecasts are not more accurate


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Measured seconds of one step."""

    draft_s: float  # t_s: one draft step
    verify_s: Sequence[float]  # t_v: [rows - 1] -> a target forward over so many tokens of one sequence; K + 1 entries
    link_s: float = 0.0  # t_c: round trip between target and hub

    @property
    def max_draft_tokens(self) -> int:
        """The largest K whose round has been measured."""
        return len(self.verify_s) - 1

    def round_s(self, num_draft_tokens: int) -> float:
        """T(K). A round without draft tokens needs no hub."""
        if num_draft_tokens == 0:
            return self.verify_s[0]
        return num_draft_tokens * self.draft_s + self.link_s + self.verify_s[num_draft_tokens]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The forecast for one speculation length."""

    num_draft_tokens: int  # K
    tokens_per_round: float  # for the measured texts, decoded with K
    tokens_per_round_eq3: float  # closed form from the first token's rate, for independent tokens
    round_ms: float
    speed_up: float  # against plain decoding


class Seen(Protocol):
    """Measured acceptance of a draft, as statistics of rounds."""

    @property
    def first_rate(self) -> float:
        """How often the first draft token is right, which is beta in eq. 3; 0 if nothing was measured."""
        ...

    def tokens_per_round(self, num_draft_tokens: int) -> float:
        """Tokens of a round with K draft tokens; 1 if nothing was measured."""
        ...


@dataclass(frozen=True, slots=True)
class Replayed:
    """Answers replayed with any K, for a draft that depends on the tokens before it only.

    Args:
        agreements: for each answer, whether the draft's first choice was the target's token, at every position. The
            target's tokens do not depend on the draft, so this determines every possible round.
    """

    agreements: Sequence[Sequence[bool]]

    @property
    def first_rate(self) -> float:
        return agreement_rate(self.agreements)

    def tokens_per_round(self, num_draft_tokens: int) -> float:
        num_tokens = sum(len(answer) for answer in self.agreements)
        num_rounds = sum(count_rounds(answer, num_draft_tokens) for answer in self.agreements)
        return num_tokens / num_rounds if num_rounds else 1.0


@dataclass(frozen=True, slots=True)
class DecodedChains:
    """Rounds decoded with the largest K, for a draft that gets worse along a chain.

    For a smaller K the acceptance at each depth is assumed to be the same. This is exact for the K that was decoded.
    For others it ignores that rounds begin elsewhere, and that rounds at the end of an answer are shorter.
    """

    num_rounds: int
    accepted_by_depth: Sequence[int]  # [depth - 1] -> rounds that accepted the draft token of that depth

    @property
    def first_rate(self) -> float:
        return self.accepted_share(1)

    def accepted_share(self, depth: int) -> float:
        """Share of rounds that accepted a draft token of that depth."""
        if not self.num_rounds or depth > len(self.accepted_by_depth):
            return 0.0
        return self.accepted_by_depth[depth - 1] / self.num_rounds

    def tokens_per_round(self, num_draft_tokens: int) -> float:
        return 1.0 + sum(self.accepted_share(depth) for depth in range(1, num_draft_tokens + 1))


def forecast(seen: Seen, times: StepTimes, num_draft_tokens: int) -> Forecast:
    """Forecast decoding with K draft tokens a round.

    Args:
        num_draft_tokens: K, at most `times.max_draft_tokens`.
    """
    tokens_per_round = seen.tokens_per_round(num_draft_tokens)
    round_s = times.round_s(num_draft_tokens)
    return Forecast(
        num_draft_tokens=num_draft_tokens,
        tokens_per_round=tokens_per_round,
        tokens_per_round_eq3=1.0 + expected_accepted(seen.first_rate, num_draft_tokens),
        round_ms=round_s * 1e3,
        speed_up=tokens_per_round * times.verify_s[0] / round_s,
    )


def best_forecast(forecasts: Sequence[Forecast]) -> Forecast | None:
    """The fastest forecast; None if no forecast is worth it."""
    best = max(forecasts, key=lambda each: each.speed_up)
    return best if best.num_draft_tokens > 0 and best.speed_up >= WORTH_IT else None


def agreement_rate(agreements: Sequence[Sequence[bool]]) -> float:
    """beta: share of positions at which draft and target agree; 0 if there are none."""
    num_positions = sum(len(answer) for answer in agreements)
    return sum(sum(answer) for answer in agreements) / num_positions if num_positions else 0.0


def expected_accepted(rate: float, num_draft_tokens: int) -> float:
    """E[l(d)] = beta (1 - beta^d) / (1 - beta) (eq. 3): accepted tokens of a round, if tokens were independent."""
    return sum(rate**depth for depth in range(1, num_draft_tokens + 1))


def count_rounds(agreements: Sequence[bool], num_draft_tokens: int) -> int:
    """The number of rounds of an answer, replayed with K draft tokens a round.

    A round accepts draft tokens up to the first that differs or to K, and adds the target's own one.
    """
    num_rounds = position = 0
    while position < len(agreements):
        num_proposed = min(num_draft_tokens, len(agreements) - position - 1)
        accepted = 0
        while accepted < num_proposed and agreements[position + accepted]:
            accepted += 1
        position += accepted + 1
        num_rounds += 1
    return num_rounds
