"""Wrappers around an engine's drafts and its judge: one passes calls on, one records what decided each token."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from starspec.draft_methods import DraftMethod
from starspec.engine.drafts import Drafts, RoundTimes
from starspec.engine.sequence import RoundOutput, TargetSequence
from starspec.ids import RequestId
from starspec.models.runner import ForwardOutput
from starspec.speculation.acceptance import AcceptanceRule
from starspec.speculation.tree import DraftTree
from starspec.stats import HubState
from starspec.windows.judging import judge
from starspec.windows.window import Verdict, Window


class DraftsAround:
    """Passes every call on to other drafts. A measurement that notes or changes calls derives from this.

    Implements Drafts.
    """

    def __init__(self, drafts: Drafts) -> None:
        self._drafts = drafts

    @property
    def rule(self) -> AcceptanceRule:
        return self._drafts.rule

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

    @property
    def num_windows(self) -> int:
        return self._drafts.num_windows

    def presume(self, sequences: Sequence[TargetSequence]) -> None:
        self._drafts.presume(sequences)

    def can_go_on(self, sequence: TargetSequence) -> bool:
        return self._drafts.can_go_on(sequence)

    def retract(self, sequence: TargetSequence) -> None:
        self._drafts.retract(sequence)

    def close(self, sequence: TargetSequence) -> None:
        self._drafts.close(sequence)

    def holds_back(self, sequence: TargetSequence) -> bool:
        return self._drafts.holds_back(sequence)

    def note_round(self, times: RoundTimes) -> None:
        self._drafts.note_round(times)

    def poll(self) -> None:
        self._drafts.poll()

    def shutdown(self) -> None:
        self._drafts.shutdown()

    @property
    def drafts_forced(self) -> bool:
        return self._drafts.drafts_forced

    @property
    def is_connected(self) -> bool:
        return self._drafts.is_connected

    @property
    def hub_state(self) -> HubState | None:
        return self._drafts.hub_state

    @property
    def hub_state_s(self) -> float:
        return self._drafts.hub_state_s

    @property
    def hub_method(self) -> DraftMethod | None:
        return self._drafts.hub_method


class DecisionRecorder:
    """Records the logits behind each emitted token, and changes nothing.

    An engine made with `recorder.drafts` and `recorder.judge` behaves as with the originals.

    Args:
        drafts: the originals.
    """

    def __init__(self, drafts: Drafts) -> None:
        self.drafts: Drafts = _WatchedDrafts(drafts, self)
        self._decisions: dict[RequestId, list[Tensor]] = {}
        self._judged: dict[int, Tensor] = {}  # cache row -> [tokens, V], of verdicts that are not committed yet

    def take(self, request_id: RequestId) -> list[Tensor]:
        """The logits [V] of each token that the request has emitted. Effects: the recorder forgets them."""
        return self._decisions.pop(request_id, [])

    def judge(self, windows: Sequence[Window], output: ForwardOutput, commits_evenly: bool) -> list[Verdict]:
        """As `windows.judging.judge`. Effects: keeps the logits that decided the tokens."""
        verdicts, first = judge(windows, output, commits_evenly), 0
        for window, verdict in zip(windows, verdicts, strict=True):
            self._judged[window.segment.row] = output.logits[[first + row for row in verdict.result.rows]]
            first += window.segment.num_logits
        return verdicts

    def note_emitted(self, batch: Sequence[TargetSequence], emitted: Sequence[RoundOutput]) -> None:
        """These tokens were committed: the first ones of each verdict."""
        for sequence, added in zip(batch, emitted, strict=True):
            assert sequence.row is not None
            logits = self._judged.pop(sequence.row)[: len(added.token_ids)]
            self._decisions.setdefault(sequence.request_id, []).extend(logits)


class _WatchedDrafts(DraftsAround):
    def __init__(self, drafts: Drafts, recorder: DecisionRecorder) -> None:
        super().__init__(drafts)
        self._recorder = recorder

    def report(self, batch: Sequence[TargetSequence], emitted: Sequence[RoundOutput]) -> None:
        self._recorder.note_emitted(batch, emitted)
        super().report(batch, emitted)
