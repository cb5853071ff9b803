"""Drafts around other drafts: a measurement that changes or notes some calls derives from this; the rest goes on."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from starspec.engine.drafts import Drafts
from starspec.engine.sequence import RoundOutput, TargetSequence
from starspec.speculation.tree import DraftTree


class DraftsAround:
    """Passes every call on. Implements Drafts."""

    def __init__(self, drafts: Drafts) -> None:
        self._drafts = drafts

    def open(self, sequences: Sequence[TargetSequence]) -> None:
        self._drafts.open(sequences)

    @property
    def feature_layers(self) -> tuple[int, ...]:
        return self._drafts.feature_layers

    def add_prompt_features(self, sequence: TargetSequence, start: int, features: Tensor) -> None:
        self._drafts.add_prompt_features(sequence, start, features)

    def collect(self, batch: Sequence[TargetSequence]) -> list[DraftTree]:
        return self._drafts.collect(batch)

    def report(self, batch: Sequence[TargetSequence], emitted: Sequence[RoundOutput]) -> None:
        self._drafts.report(batch, emitted)

    def close(self, sequence: TargetSequence) -> None:
        self._drafts.close(sequence)

    def note_round(self, round_s: float, verify_s: float) -> None:
        self._drafts.note_round(round_s, verify_s)

    def poll(self) -> None:
        self._drafts.poll()

    def shutdown(self) -> None:
        self._drafts.shutdown()

    @property
    def is_connected(self) -> bool:
        return self._drafts.is_connected
