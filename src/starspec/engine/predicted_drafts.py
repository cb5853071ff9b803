"""Requests whose client predicts the answer are drafted from the prediction. A hub gets no part of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from torch import Tensor

from starspec.config import LengthConfig, SpeculativeConfig
from starspec.draft_methods import DraftMethod
from starspec.engine.drafts import DraftsForSome, NgramDrafts, RoundTimes
from starspec.engine.sequence import RoundOutput, TargetSequence
from starspec.ids import RequestKey
from starspec.policy.length.make import make_policy
from starspec.speculation.acceptance import AcceptanceRule
from starspec.speculation.prediction import PredictedText
from starspec.speculation.tree import EMPTY_TREE, DraftTree
from starspec.stats import HubState, TargetStats

MAX_STEPS: Final = 32  # of a draft: a prediction mostly holds for lines, and drafting from it costs nothing


class PredictionLookup(NgramDrafts):
    """Drafts from the prediction of each sequence; by prompt lookup where the answer has left it.

    Each window of a sequence waits for the one before.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._predicted: dict[RequestKey, PredictedText] = {}
        self._drafted: set[RequestKey] = set()  # those whose draft of this round is from their prediction

    @property
    def num_open(self) -> int:
        """Sequences that it drafts for."""
        return len(self._predicted)

    def open(self, sequences: Sequence[TargetSequence]) -> None:
        super().open(sequences)
        for sequence in sequences:
            predicted = self._predicted[sequence.key] = PredictedText(sequence.spec.prediction or [])
            predicted.append(sequence.token_ids[sequence.prompt_len :])

    def propose(self, sequence: TargetSequence, num_tokens: int) -> list[int]:
        token_ids = self._predicted[sequence.key].propose(num_tokens, sequence.ahead)
        if not token_ids:
            return super().propose(sequence, num_tokens)
        self._drafted.add(sequence.key)
        return token_ids

    def report(self, batch: Sequence[TargetSequence], emitted: Sequence[RoundOutput]) -> None:
        for sequence, added in zip(batch, emitted, strict=True):
            self._predicted[sequence.key].append(added.token_ids)
            if sequence.key in self._drafted:
                self._drafted.discard(sequence.key)
                sequence.count_prediction(added.num_draft_tokens, added.num_accepted)
        super().report(batch, emitted)

    def note_round(self, times: RoundTimes) -> None:
        self.lengths.end_round(times.num_tokens, times.traversal_s)

    def close(self, sequence: TargetSequence) -> None:
        self._predicted.pop(sequence.key, None)
        self._drafted.discard(sequence.key)
        super().close(sequence)


class PredictedDrafts:
    """Splits each batch: sequences with a prediction have drafts from it, all others those of another source.

    Args:
        others: that source.
        predicted: drafts from predictions.
    """

    def __init__(self, others: DraftsForSome, predicted: PredictionLookup) -> None:
        self._others = others
        self._predicted = predicted
        self._had_others = False  # in the round that was reported last

    @property
    def rule(self) -> AcceptanceRule:
        return self._others.rule

    @property
    def drafts_forced(self) -> bool:
        return self._others.drafts_forced

    @property
    def is_connected(self) -> bool:
        return self._others.is_connected

    @property
    def hub_state(self) -> HubState | None:
        return self._others.hub_state

    @property
    def hub_state_s(self) -> float:
        return self._others.hub_state_s

    @property
    def hub_method(self) -> DraftMethod | None:
        return self._others.hub_method

    @property
    def feature_layers(self) -> tuple[int, ...]:
        return self._others.feature_layers

    def open(self, sequences: Sequence[TargetSequence]) -> None:
        parts = _split(sequences)
        self._predicted.open(parts.predicted)
        self._others.note_beside(self._predicted.num_open)
        self._others.open(parts.others)

    def add_prompt_features(self, sequence: TargetSequence, start: int, features: Tensor) -> None:
        if not _is_predicted(sequence):
            self._others.add_prompt_features(sequence, start, features)

    def collect(self, batch: Sequence[TargetSequence]) -> list[DraftTree]:
        parts = _split(batch)
        if not parts.others:
            self._others.poll()  # a source that is asked for nothing must keep its connection, too
            return self._predicted.draft(parts.predicted, len(batch))
        found = self._others.collect_beside(parts.others, len(parts.predicted))
        if found is None:
            return [EMPTY_TREE] * len(batch)
        predicted, others = iter(self._predicted.draft(parts.predicted, len(batch))), iter(found)
        return [next(predicted if _is_predicted(each) else others) for each in batch]

    def report(self, batch: Sequence[TargetSequence], emitted: Sequence[RoundOutput]) -> None:
        pairs = list(zip(batch, emitted, strict=True))
        predicted = [pair for pair in pairs if _is_predicted(pair[0])]
        others = [pair for pair in pairs if not _is_predicted(pair[0])]
        self._predicted.report([each for each, _ in predicted], [added for _, added in predicted])
        self._others.note_beside(self._predicted.num_open)
        if others:
            self._others.report([each for each, _ in others], [added for _, added in others])
        self._had_others = bool(others)

    @property
    def num_windows(self) -> int:
        return self._others.num_windows

    def presume(self, sequences: Sequence[TargetSequence]) -> None:
        self._others.presume(_split(sequences).others)

    def can_go_on(self, sequence: TargetSequence) -> bool:
        return not _is_predicted(sequence) and self._others.can_go_on(sequence)

    def retract(self, sequence: TargetSequence) -> None:
        (self._predicted if _is_predicted(sequence) else self._others).retract(sequence)

    def close(self, sequence: TargetSequence) -> None:
        (self._predicted if _is_predicted(sequence) else self._others).close(sequence)
        self._others.note_beside(self._predicted.num_open)

    def holds_back(self, sequence: TargetSequence) -> bool:
        return not _is_predicted(sequence) and self._others.holds_back(sequence)

    def note_round(self, times: RoundTimes) -> None:
        """What steps take is the same for all. Of a round without its sequences, the other source learns nothing."""
        self._predicted.note_round(times)
        if self._had_others:
            self._others.note_round(times)

    def poll(self) -> None:
        self._others.poll()

    def shutdown(self) -> None:
        self._others.shutdown()


def with_predictions(
    others: DraftsForSome,
    speculative: SpeculativeConfig | None,
    max_num_seqs: int,
    stats: TargetStats,
    clock: Callable[[], float] = time.monotonic,
) -> PredictedDrafts:
    """These drafts, and drafts from predictions for the requests that have one.

    Args:
        speculative: how others are drafted; None = not at all.
        max_num_seqs: sequences of a round, at most.
    """
    config = _config_of(speculative or SpeculativeConfig())
    policy = make_policy(config, max_num_seqs)
    lookup = (config.prompt_lookup_min, config.prompt_lookup_max)
    return PredictedDrafts(others, PredictionLookup(policy, *lookup, stats, clock))


def _config_of(speculative: SpeculativeConfig) -> SpeculativeConfig:
    """What holds for drafts from predictions: the others' bounds by batch size, and their kind of policy.

    A prediction has no probabilities, so a policy that needs them does not fit, whoever asks for it.
    """
    is_fixed = speculative.length.policy == "fixed"
    return SpeculativeConfig(
        method="ngram",
        num_speculative_tokens=MAX_STEPS,
        length=LengthConfig(policy="fixed" if is_fixed else "goodput"),
        disable_by_batch_size=speculative.disable_by_batch_size,
        prompt_lookup_min=speculative.prompt_lookup_min,
        prompt_lookup_max=speculative.prompt_lookup_max,
    )


class _Parts(NamedTuple):
    predicted: list[TargetSequence]
    others: list[TargetSequence]


def _split(sequences: Sequence[TargetSequence]) -> _Parts:
    predicted = [each for each in sequences if _is_predicted(each)]
    return _Parts(predicted, [each for each in sequences if not _is_predicted(each)])


def _is_predicted(sequence: TargetSequence) -> bool:
    return sequence.spec.prediction is not None
