"""Wrappers around an engine's drafts and runner: one passes calls on, one records which logits decided each token."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from starspec.cache.kv_cache import KVCache
from starspec.engine.drafts import Drafts
from starspec.engine.sequence import RoundOutput, TargetSequence
from starspec.ids import RequestId
from starspec.models.runner import BatchRunner, ForwardOutput, ModelInfo, Segment
from starspec.speculation.acceptance import AcceptanceRule
from starspec.speculation.tree import ROOT, DraftTree
from starspec.stats import HubState


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

    def close(self, sequence: TargetSequence) -> None:
        self._drafts.close(sequence)

    def note_round(self, round_s: float, verify_s: float, num_tokens: int) -> None:
        self._drafts.note_round(round_s, verify_s, num_tokens)

    def poll(self) -> None:
        self._drafts.poll()

    def shutdown(self) -> None:
        self._drafts.shutdown()

    @property
    def is_connected(self) -> bool:
        return self._drafts.is_connected

    @property
    def hub_state(self) -> HubState | None:
        return self._drafts.hub_state

    @property
    def hub_state_s(self) -> float:
        return self._drafts.hub_state_s


class DecisionRecorder:
    """Records the logits behind each emitted token, and changes nothing.

    An engine made with `recorder.runner` and `recorder.drafts` behaves as with the originals. A round is one forward
    between `collect` and `report`. The recorder keeps the rows of its logits that lie on the emitted path.

    Args:
        runner, drafts: the originals.
    """

    def __init__(self, runner: BatchRunner, drafts: Drafts) -> None:
        self.runner: BatchRunner = _WatchedRunner(runner, self)
        self.drafts: Drafts = _WatchedDrafts(drafts, self)
        self._decisions: dict[RequestId, list[Tensor]] = {}
        self._logits: Tensor | None = None  # of the last forward that gave some
        self._trees: list[DraftTree] = []

    def take(self, request_id: RequestId) -> list[Tensor]:
        """The logits [V] of each token that the request has emitted. Effects: the recorder forgets them."""
        return self._decisions.pop(request_id, [])

    def note_logits(self, logits: Tensor) -> None:
        self._logits = logits

    def note_trees(self, trees: list[DraftTree]) -> None:
        self._trees = trees

    def note_emitted(self, batch: Sequence[TargetSequence], emitted: Sequence[RoundOutput]) -> None:
        """Keep the rows of the emitted paths. The logits hold the sequences in the order of the batch."""
        assert self._logits is not None
        first = 0
        for sequence, tree, added in zip(batch, self._trees, emitted, strict=True):
            decisions = self._decisions.setdefault(sequence.request_id, [])
            for node in walked_nodes(tree, added.token_ids):
                decisions.append(self._logits[first + node + 1].clone())
            first += tree.num_draft_tokens + 1
        assert first == len(self._logits), "a round's logits are those of its trees"


def walked_nodes(tree: DraftTree, token_ids: Sequence[int]) -> list[int]:
    """The nodes whose logits decided the emitted tokens: the root, then the node of each token but the last."""
    nodes = [ROOT]
    for token_id in token_ids[:-1]:
        nodes.append(tree.children[nodes[-1], token_id])
    return nodes


class _WatchedRunner:
    def __init__(self, runner: BatchRunner, recorder: DecisionRecorder) -> None:
        self._runner = runner
        self._recorder = recorder

    @property
    def info(self) -> ModelInfo:
        return self._runner.info

    @property
    def cache(self) -> KVCache:
        return self._runner.cache

    def forward(self, segments: Sequence[Segment], feature_layers: Sequence[int] = ()) -> ForwardOutput:
        output = self._runner.forward(segments, feature_layers)
        if len(output.logits):
            self._recorder.note_logits(output.logits)
        return output


class _WatchedDrafts(DraftsAround):
    def __init__(self, drafts: Drafts, recorder: DecisionRecorder) -> None:
        super().__init__(drafts)
        self._recorder = recorder

    def collect(self, batch: Sequence[TargetSequence]) -> list[DraftTree]:
        trees = super().collect(batch)
        self._recorder.note_trees(trees)
        return trees

    def report(self, batch: Sequence[TargetSequence], emitted: Sequence[RoundOutput]) -> None:
        self._recorder.note_emitted(batch, emitted)
        super().report(batch, emitted)
