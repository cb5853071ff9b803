"""How long a target's steps and its drafter's draft steps take, for one sequence, in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

from starspec.config import MAX_DRAFT_TOKENS
from starspec.hub.committed import DraftLimits
from starspec.hub.drafter import Drafter, StepInput
from starspec.hub.law_timer import LawTimer
from starspec.hub.sequence import DraftSequence
from starspec.ids import Epoch, LinkId, Tag
from starspec.models.runner import BatchRunner, Segment
from starspec.policy.draft_batch import TagKey
from starspec.policy.run_ahead import AheadChoice
from starspec.sampling.argmax import argmaxes
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.budget import DraftBudget
from starspec.wire.messages import Open
from starspec.wire.session import Role, TagSession

PREFIX_LEN = 128  # committed tokens of the timed sequence, or fewer if one of the two holds fewer
CHAIN_LEN = (
    4  # timed draft steps of one chain: a draft step's bookkeeping grows with the depth, and real chains are short
)
TOKEN_ID = 1  # its meaning does not matter


@dataclass(frozen=True, slots=True)
class StepSeconds:
    """Medians."""

    draft_s: float  # t_s: one draft step of one sequence with one node: the forward, the choice and the tree
    target_s: list[float]  # [tokens - 1] -> a forward over so many tokens of one sequence, and the argmaxes
    giving_s: float  # one token, with the hidden states that the drafter needs

    @property
    def draft_vs_target(self) -> float:
        """Time of one draft token over one plainly decoded token."""
        return self.draft_s / self.target_s[0]

    @property
    def giving_vs_target(self) -> float:
        """Time of one target token with features over one without."""
        return self.giving_s / self.target_s[0]


def time_steps(
    target: BatchRunner,
    drafter: Drafter,
    feature_layers: Sequence[int] = (),
    *,
    max_tokens: int = 1,
    num_chains: int = 2,
) -> StepSeconds:
    """Time the drafter's draft steps, and the target's forwards over 1 to `max_tokens` tokens.

    They take turns, so a slow moment of the machine slows all of them. The first chain is a warm-up.

    Args:
        feature_layers: hidden states of the target that the drafter needs.
        num_chains: each of CHAIN_LEN timed turns.
    Effects: leases and frees a row of each; commits nothing.
    """
    num_free = min(target.info.max_model_len - max_tokens, drafter.max_len - CHAIN_LEN - 1) - 1
    prefix = [TOKEN_ID] * min(PREFIX_LEN, num_free)
    sequence = _sequence(prefix, drafter, target.info.vocab_size)
    row = target.cache.lease()
    try:
        features = target.forward([Segment(row, prefix, num_logits=0)], feature_layers).features
        target.cache.append(row, len(prefix))
        if features is not None:
            sequence.add_features(0, features)
        steps = [
            partial(_draft_step, drafter, sequence),
            partial(_step, target, row, 1, feature_layers),
            *(partial(_step, target, row, num + 1) for num in range(max_tokens)),
        ]
        times: list[list[float]] = [[] for _ in steps]
        for chain in range(1 + num_chains):
            _root(drafter, sequence)
            for turns, step in [pair for _ in range(CHAIN_LEN) for pair in zip(times, steps, strict=True)]:
                elapsed_s = _seconds_of(step)
                if chain > 0:
                    turns.append(elapsed_s)
        draft_s, giving_s, *target_s = (median(turns) for turns in times)
        return StepSeconds(draft_s, target_s, giving_s)
    finally:
        drafter.free(sequence)
        target.cache.free(row)


def time_draft_steps(drafter: Drafter, vocab_size: int, *, num_chains: int = 2) -> float:
    """t_s of a drafter without its target: the median time of a draft step, as in `time_steps`.

    Args:
        vocab_size: of the target.
    Effects: leases and frees a row.
    """
    prefix = [TOKEN_ID] * min(PREFIX_LEN, drafter.max_len - CHAIN_LEN - 2)
    sequence, times = _sequence(prefix, drafter, vocab_size), []
    try:
        for chain in range(1 + num_chains):
            _root(drafter, sequence)
            turns = [_seconds_of(partial(_draft_step, drafter, sequence)) for _ in range(CHAIN_LEN)]
            times += turns if chain > 0 else []
        return median(times)
    finally:
        drafter.free(sequence)


def _sequence(prefix: Sequence[int], drafter: Drafter, vocab_size: int) -> DraftSequence:
    """A sequence that asks for one chain."""
    tag, sampling, chain = Tag(1), SamplingSpec(temperature=0.0), DraftBudget.chain(CHAIN_LEN + 1)
    opened = Open(tag, Epoch(1), list(prefix), len(prefix), sampling, chain.num_draft_tokens)
    limits = DraftLimits(drafter.max_len, drafter.vocab_size, MAX_DRAFT_TOKENS, vocab_size, len(prefix))
    sequence = DraftSequence(
        TagKey(LinkId("timed"), tag),
        opened,
        TagSession(Role.HUB, tag),
        limits,
        0.0,
        AheadChoice("off"),
        LawTimer(time.perf_counter),
    )
    sequence.ask(chain, 0.0)
    return sequence


def _root(drafter: Drafter, sequence: DraftSequence) -> None:
    """Start the chain again: prefill the committed tokens, which gives the first draft token."""
    drafter.free(sequence)
    drafter.lease(sequence)
    drafter.grow([StepInput(sequence, drafter.num_missing(sequence))])


def _draft_step(drafter: Drafter, sequence: DraftSequence) -> None:
    drafter.grow([StepInput(sequence, 1)])


def _step(target: BatchRunner, row: int, num_tokens: int, feature_layers: Sequence[int] = ()) -> None:
    segment = Segment(row, [TOKEN_ID] * num_tokens, num_logits=num_tokens)
    logits = target.forward([segment], feature_layers).logits
    argmaxes(logits)


def _seconds_of(step: Callable[[], None]) -> float:
    started_s = time.perf_counter()
    step()
    return time.perf_counter() - started_s
