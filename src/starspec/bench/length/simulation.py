"""Rounds of one target in virtual time: what each length policy earns where costs and acceptance are known.

Nothing is forwarded and nothing waits, so the result is the same on any machine. The unit of time is a target step of
one token. A round costs

    round trip + queue + draft steps + target step        (StarSD, equations 3, 5, 6 and 10)

where a draft step is for all sequences whose drafts are that deep, of all targets that share the hub, and a target step
is for one token and the draft tokens of each sequence. Both grow with their tokens by the scene's curve.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, takewhile
from math import log
from operator import attrgetter
from random import Random
from typing import Final, Literal, NamedTuple

from starspec.policy.deadline import Round
from starspec.policy.length.acceptance import SHRUNK_FADE, USUAL_FADE, Acceptance
from starspec.policy.length.adaedl import GAMMA
from starspec.policy.length.costs import Costs
from starspec.policy.length.divergence import DivergenceHistory
from starspec.policy.length.snapshot import LengthPolicy, RoundSnapshot, SequenceSnapshot
from starspec.policy.length.stop_threshold import StopThreshold
from starspec.policy.length.trials import Trials
from starspec.speculation.budget import DraftBudget

AcceptanceKind = Literal["drifting", "bimodal"]
Curve = Literal["flat", "knee", "linear"]

ANSWER_LEN: Final = 160  # tokens, on average; then another request takes the place
DRIFT_TOKENS: Final = 200  # in which a drifting acceptance goes from its lowest to its highest rate, and back
DRIFT: Final = (0.3, 0.95)
MODES: Final = (0.35, 0.9)  # of bimodal sequences, one half each
SPREAD: Final = 3.0  # of the probabilities of single tokens around the rate: a smaller number spreads them more
KNEE: Final = 8  # tokens that cost no more than one
PER_TOKEN: Final = 0.15  # of a step, for each token more on the linear curve


@dataclass(frozen=True, slots=True)
class Scene:
    """Costs and acceptance of one cell of the grid."""

    acceptance: float | AcceptanceKind
    draft_step: float  # of one sequence, in target steps
    curve: Curve = "flat"
    round_trip: float = 0.0  # in target steps
    batch: int = 1
    num_targets: int = 1  # that share the hub, each with such a batch

    def target_step(self, num_tokens: int) -> float:
        """Time of a target step."""
        return _cost(self.curve, num_tokens)

    def wait(self, lengths: list[int]) -> float:
        """Time from a request for drafts to the last proposal."""
        depths = range(1, max(lengths) + 1)
        rows = [self.num_targets * sum(length >= depth for length in lengths) for depth in depths]
        queue = 0.5 * self.draft_step * (self.num_targets > 1)  # a draft step of others is running
        return self.round_trip + queue + self.draft_step * sum(_cost(self.curve, each) for each in rows)


def _cost(curve: Curve, num_tokens: int) -> float:
    if curve == "flat":
        return 1.0
    if curve == "knee":
        return max(1.0, num_tokens / KNEE)
    return 1.0 + PER_TOKEN * (num_tokens - 1)


class _Token(NamedTuple):
    """What a draft of one token would meet."""

    prob: float  # that it is accepted
    is_accepted: bool
    entropy: float  # of the draft's distribution, in nats
    kld: float  # of the target from it


class _Text:
    """The tokens of one request, the same for each policy."""

    def __init__(self, rate: Callable[[int], float], chance: Random) -> None:
        self._rate = rate
        self._chance = chance
        self._tokens: list[_Token] = []

    def tokens(self, start: int, num: int) -> list[_Token]:
        """Those of positions `start ..`."""
        while len(self._tokens) < start + num:
            self._tokens.append(self._next_token())
        return self._tokens[start : start + num]

    def _next_token(self) -> _Token:
        rate, chance = self._rate(len(self._tokens)), self._chance
        prob = min(0.9999, max(0.0001, chance.betavariate(SPREAD * rate, SPREAD * (1.0 - rate))))
        entropy = (1.0 - prob) ** 2 / GAMMA * chance.uniform(1.0, 1.5)  # AdaEDL's bound is a lower one
        return _Token(prob, chance.random() < prob, entropy, -log(prob) * chance.uniform(0.5, 1.5))


@dataclass(slots=True)
class _Sequence:
    """One request, and what its verifications have shown."""

    text: _Text
    length: int
    acceptance: Acceptance
    num_tokens: int = 0
    divergence: DivergenceHistory = field(default_factory=DivergenceHistory)
    stop_threshold: StopThreshold = field(default_factory=StopThreshold)

    def snapshot(self) -> SequenceSnapshot:
        return SequenceSnapshot(
            max_remaining_tokens=max(1, self.length - self.num_tokens),
            num_tokens=self.num_tokens,
            is_new=not self.num_tokens,
            acceptance=self.acceptance,
            divergence=self.divergence,
            stop_threshold=self.stop_threshold,
        )


class Simulation:
    """One policy in one scene.

    Args:
        policy: is asked once a round, as an engine asks it.
        seed: of acceptance and lengths. Policies with the same seed meet the same requests.
        weighs_costs: whether the policy reads costs. Without them a run takes about half as long.
    """

    def __init__(self, scene: Scene, policy: LengthPolicy, seed: int = 1, *, weighs_costs: bool = True) -> None:
        self._scene = scene
        self._policy = policy
        self._usual = Acceptance(fade=USUAL_FADE)  # of all requests
        self._requests = self._new_requests(seed)
        self._running = [next(self._requests) for _ in range(scene.batch)]
        self._costs, self._trials = Costs() if weighs_costs else None, Trials()
        self.seconds = 0.0
        self.num_tokens = 0
        self.num_rounds = 0
        self.num_drafted = 0

    def run(self, num_tokens: int) -> float:
        """Decode so many tokens of each sequence, on average. Returns: tokens per unit of time, of all sequences."""
        while self.num_tokens < num_tokens * self._scene.batch:
            self._round()
        return self.num_tokens / self.seconds

    def _round(self) -> None:
        snapshot = RoundSnapshot(
            sequences=[each.snapshot() for each in self._running],
            num_sequences=len(self._running),
            now_s=self.seconds,
            costs=self._costs,
            trials=self._trials,
            num_emitted=self.num_tokens,
        )
        budgets = [each.budget for each in self._policy.choose(snapshot)]
        lengths, accepted = [], []
        for sequence, budget in zip(self._running, budgets, strict=True):
            length, num_accepted = self._verified(sequence, budget)
            lengths.append(length)
            accepted.append(num_accepted)
        self._spend(lengths)
        for index, num_accepted in enumerate(accepted):
            sequence = self._running[index]
            sequence.num_tokens += num_accepted + 1
            self.num_tokens += num_accepted + 1
            if sequence.num_tokens >= sequence.length:
                if self._costs is not None:
                    self._costs.add_finished(sequence.num_tokens)
                self._running[index] = next(self._requests)

    def _spend(self, lengths: list[int]) -> None:
        """Let the round take its time, and let the policy's costs see it."""
        step = self._scene.target_step(len(lengths) + sum(lengths))
        wait = self._scene.wait(lengths) if any(lengths) else 0.0
        self.seconds += step + wait
        if self._costs is not None:
            if any(lengths):
                self._costs.rounds.add(Round([each for each in lengths if each], wait))
            self._costs.add_step(len(lengths) + sum(lengths), step)
            self._costs.end_step()
        self.num_rounds += 1
        self.num_drafted += sum(lengths)

    def _verified(self, sequence: _Sequence, budget: DraftBudget) -> tuple[int, int]:
        """Draft and verify one chain. Returns: its draft tokens, and those that are accepted."""
        tokens = sequence.text.tokens(sequence.num_tokens, budget.num_draft_tokens)
        length = _num_drafted(tokens, budget)
        num_accepted = sum(1 for _ in takewhile(attrgetter("is_accepted"), tokens[:length]))
        for acceptance in (sequence.acceptance, self._usual):
            acceptance.add(length, num_accepted, budget.num_draft_tokens)
        sequence.stop_threshold.add_round(length, num_accepted)
        tested = tokens[: min(length, num_accepted + 1)]
        sequence.divergence.add_round([each.kld for each in tested], num_accepted)
        return length, num_accepted

    def _new_requests(self, seed: int) -> Iterator[_Sequence]:
        for number in count():
            chance = Random(f"{seed} {number}")  # noqa: S311
            kind = self._scene.acceptance
            rate = chance.choice(MODES) if kind == "bimodal" else kind
            text = _Text(_drifting if rate == "drifting" else _constant(float(rate)), chance)
            yield _Sequence(
                text, round(chance.uniform(0.5, 1.5) * ANSWER_LEN), Acceptance(usual=self._usual, fade=SHRUNK_FADE)
            )


def _num_drafted(tokens: Sequence[_Token], budget: DraftBudget) -> int:
    """How long the draft becomes: a draft model is as sure of a token as it is likely to be accepted."""
    reached, length = 1.0, 0
    for token in tokens:
        reached *= token.prob
        if length and (token.entropy > budget.max_entropy or reached < budget.p_proposed):
            break
        length += 1
        if reached < budget.p_min:
            break
    return length


def _constant(rate: float) -> Callable[[int], float]:
    return lambda _: rate


def _drifting(position: int) -> float:
    low, high = DRIFT
    phase = (position % (2 * DRIFT_TOKENS)) / DRIFT_TOKENS
    return low + (high - low) * (phase if phase <= 1.0 else 2.0 - phase)
