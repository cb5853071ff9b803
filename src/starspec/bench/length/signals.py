"""How far the signals of a draft and of its verifications foretell acceptance (DSDE, Table II), and what they weigh.

One pass with chains of a fixed length, since a policy that follows a signal would choose what the signal is measured
on. For each draft token that was tested, three signals that were known before its verification:

    entropy     of the draft's distribution that the token is from: its stated tokens, and one bucket for all others
    mean KLD    over the last 10 positions that were verified before this round
    WVIR        at that moment (equation 4)

Acceptance is 1 or 0. The tokens of a sequence before its 11th verified position are left out: WVIR is 1 there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import exp, log
from statistics import StatisticsError, correlation
from typing import Final, NamedTuple

import msgspec

from starspec.config.speculative import DSDE_NUM_STATED
from starspec.engine.drafts import Drafts
from starspec.engine.sequence import RoundOutput, TargetSequence
from starspec.harness.recorder import DraftsAround
from starspec.harness.star import TargetTransportAround
from starspec.ids import RequestKey
from starspec.policy.length.divergence import MAX_KLD, SHORT_WINDOW, DivergenceHistory
from starspec.speculation.budget import DraftBudget
from starspec.speculation.tree import DraftTree, TopTokens
from starspec.wire.codec import encode
from starspec.wire.messages import HubToTarget, Proposal, TargetToHub, TreeShape, Verdict
from starspec.wire.transports.base import TargetTransport

DEPTH: Final = 5  # of the chains
STATING: Final = replace(DraftBudget.chain(DEPTH), num_stated=DSDE_NUM_STATED)  # as policy "dsde" asks
PAPER: Final = {0.0: (-0.339, -0.164, 0.128), 1.0: (-0.235, -0.069, -0.031)}  # temperature -> Table II's column


class TokenSignals(NamedTuple):
    """One draft token that was tested, and the signals before that."""

    entropy: float  # nats
    mean_kld: float  # nats
    variance_ratio: float
    is_accepted: bool


@dataclass(slots=True)
class WireBytes:
    """Encoded sizes of the messages of rounds, with the signals and as they would be without them."""

    num_verdicts: int = 0
    num_proposals: int = 0
    verdict: int = 0
    verdict_without: int = 0
    proposal: int = 0
    proposal_without: int = 0

    def add(self, message: Verdict | Proposal) -> None:
        """Count one message."""
        if isinstance(message, Verdict):
            self.num_verdicts += 1
            self.verdict += len(encode(message))
            self.verdict_without += len(encode(_verdict_without(message)))
        elif message.token_ids:
            self.num_proposals += 1
            self.proposal += len(encode(message))
            self.proposal_without += len(encode(msgspec.structs.replace(message, logprobs=None, tops=None)))


def _verdict_without(verdict: Verdict) -> Verdict:
    budget = replace(verdict.budget, num_stated=0, has_logprobs=False)
    return msgspec.structs.replace(verdict, shape=TreeShape.of(budget))


class WeighedTransport(TargetTransportAround):
    """A target's transport that counts verdicts and proposals in `found`."""

    def __init__(self, transport: TargetTransport, found: WireBytes) -> None:
        super().__init__(transport)
        self._found = found

    def send(self, messages: Sequence[TargetToHub]) -> None:
        for message in messages:
            if isinstance(message, Verdict):
                self._found.add(message)
        super().send(messages)

    def receive(self, timeout_s: float) -> list[HubToTarget]:
        messages = super().receive(timeout_s)
        for message in messages:
            if isinstance(message, Proposal):
                self._found.add(message)
        return messages


@dataclass(slots=True)
class _Known:
    """What the verifications of one sequence have shown."""

    history: DivergenceHistory = field(default_factory=DivergenceHistory)
    num_klds: int = 0
    last_klds: deque[float] = field(default_factory=lambda: deque(maxlen=SHORT_WINDOW))

    @property
    def is_enough(self) -> bool:
        return self.num_klds > SHORT_WINDOW

    def add(self, klds: Sequence[float], num_accepted: int) -> None:
        self.history.add_round(klds, num_accepted)
        self.num_klds += len(klds)
        self.last_klds.extend(min(each, MAX_KLD) for each in klds)


class SignalRecorder(DraftsAround):
    """Notes the signals before each test of a draft token, and changes nothing. For chains."""

    def __init__(self, drafts: Drafts) -> None:
        super().__init__(drafts)
        self.tokens: list[TokenSignals] = []
        self._trees: Sequence[DraftTree] = ()
        self._known: dict[RequestKey, _Known] = {}

    def collect(self, batch: Sequence[TargetSequence]) -> list[DraftTree]:
        trees = super().collect(batch)
        self._trees = trees
        return trees

    def report(self, batch: Sequence[TargetSequence], emitted: Sequence[RoundOutput]) -> None:
        for sequence, tree, added in zip(batch, self._trees, emitted, strict=True):
            known = self._known.setdefault(sequence.key, _Known())
            if known.is_enough:
                self.tokens += signals_of(tree, added, known.history.variance_ratio, _mean(known.last_klds))
            known.add(added.divergences, added.num_accepted)
            if added.finish is not None:
                del self._known[sequence.key]
        super().report(batch, emitted)


def signals_of(tree: DraftTree, added: RoundOutput, variance_ratio: float, mean_kld: float) -> list[TokenSignals]:
    """The tokens of a chain that one round tested, as far as the draft stated a distribution for them.

    Behind the first rejected token nothing is tested. A round that ends the answer may cut what it accepts, so it says
    nothing.
    """
    num_tested = 0 if added.finish is not None else min(tree.num_draft_tokens, added.num_accepted + 1)
    return [
        TokenSignals(entropy_of(tree.tops[node - 1]), mean_kld, variance_ratio, node < added.num_accepted)
        for node in range(num_tested)
        if node - 1 in tree.tops
    ]


def entropy_of(top: TopTokens) -> float:
    """Entropy in nats, over the stated tokens and one bucket for all others: never more than the exact one."""
    probs = [exp(each) for each in top.logprobs]
    rest = max(0.0, 1.0 - sum(probs))
    return -sum(prob * log(prob) for prob in (*probs, rest) if prob > 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalRow:
    """Pearson correlations with acceptance; None where one of the two does not vary."""

    drafter: str
    category: str
    temperature: float
    num_tokens: int
    acceptance: float | None  # share of the tested tokens
    entropy: float | None
    mean_kld: float | None
    wvir: float | None


def signal_row(drafter: str, category: str, temperature: float, tokens: Sequence[TokenSignals]) -> SignalRow:
    accepted = [float(each.is_accepted) for each in tokens]

    def pearson(signal: Sequence[float]) -> float | None:
        try:
            return round(correlation(signal, accepted), 3)
        except StatisticsError:
            return None

    return SignalRow(
        drafter=drafter,
        category=category,
        temperature=temperature,
        num_tokens=len(tokens),
        acceptance=round(_mean(accepted), 3) if accepted else None,
        entropy=pearson([each.entropy for each in tokens]),
        mean_kld=pearson([each.mean_kld for each in tokens]),
        wvir=pearson([each.variance_ratio for each in tokens]),
    )


def paper_rows(temperatures: Sequence[float]) -> list[SignalRow]:
    """Table II at those of these temperatures that it has."""
    return [
        SignalRow(
            drafter="the paper",
            category="CNN/DM",
            temperature=temperature,
            num_tokens=0,
            acceptance=None,
            entropy=PAPER[temperature][0],
            mean_kld=PAPER[temperature][1],
            wvir=PAPER[temperature][2],
        )
        for temperature in temperatures
        if temperature in PAPER
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class WireRow:
    """Mean bytes of a round's messages, with a chain of `DEPTH` and `DSDE_NUM_STATED` stated tokens after each node."""

    drafter: str
    message: str
    num_messages: int
    with_signals: float
    without: float


def wire_rows(drafter: str, found: WireBytes) -> list[WireRow]:
    """A row for verdicts and one for proposals; none for messages that there were not."""
    kinds = (
        ("verdict", found.num_verdicts, found.verdict, found.verdict_without),
        ("proposal", found.num_proposals, found.proposal, found.proposal_without),
    )
    return [
        WireRow(
            drafter=drafter,
            message=message,
            num_messages=num,
            with_signals=round(total / num, 1),
            without=round(total_without / num, 1),
        )
        for message, num, total, total_without in kinds
        if num
    ]


def _mean(values: Sequence[float] | deque[float]) -> float:
    return sum(values) / len(values) if values else 0.0
