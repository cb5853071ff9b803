"""Where a target's proposals come from: the interface, and the sources that need no hub."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from starspec.config import SpeculativeConfig
from starspec.engine.sequence import RoundOutput, TargetSequence
from starspec.ids import RequestKey
from starspec.policy.length.snapshot import LengthPolicy, RoundSnapshot, SequenceSnapshot
from starspec.speculation.budget import DraftBudget
from starspec.speculation.ngram import PromptLookup
from starspec.speculation.tree import EMPTY_TREE, DraftTree
from starspec.stats import HubState


class Drafts(Protocol):
    """A source of proposals."""

    def open(self, sequences: Sequence[TargetSequence]) -> None:
        """These sequences got their cache rows, all in one step: begin to draft for them."""

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """The target's hidden states that the drafts are made from; () = none."""
        ...

    def add_prompt_features(self, sequence: TargetSequence, start: int, features: Tensor) -> None:
        """Positions `start ..` of the prompt were forwarded, and these are their features [T, F]."""

    def collect(self, batch: Sequence[TargetSequence]) -> list[DraftTree]:
        """One tree for each sequence, empty if there is none. Blocks until the deadline at most."""

    def report(self, batch: Sequence[TargetSequence], emitted: Sequence[RoundOutput]) -> None:
        """A round has committed these tokens. Sequences that finished are closed."""

    def close(self, sequence: TargetSequence) -> None:
        """The sequence has ended without a round: it was aborted, or it failed."""

    def note_round(self, round_s: float, verify_s: float) -> None:
        """A round took `round_s` in all and `verify_s` for its forward. Deadlines follow these times."""

    def poll(self) -> None:
        """Keep the connection, and connect again. Called between rounds and while idle. Never blocks."""

    def shutdown(self) -> None:
        """Leave in good order. No other call follows."""

    @property
    def is_connected(self) -> bool:
        """Whether proposals can be expected."""
        ...

    @property
    def hub_state(self) -> HubState | None:
        """None: no hub is needed."""
        ...

    @property
    def hub_state_s(self) -> float:
        """Seconds in this state."""
        ...


def draft_budgets(sequences: Sequence[TargetSequence], policy: LengthPolicy, num_sequences: int) -> list[DraftBudget]:
    """The drafts to ask for together, in a round of `num_sequences`: one call of the policy, if there is anybody."""
    if not sequences:
        return []
    snapshots = [
        SequenceSnapshot(max_remaining_tokens=each.num_remaining, num_steps_asked=each.spec.num_draft_tokens)
        for each in sequences
    ]
    chosen = policy.choose(RoundSnapshot(sequences=snapshots, num_sequences=num_sequences))
    return [each.budget for each in chosen]


class NoDrafts:
    """Plain decoding. Other sources without a hub derive from it."""

    is_connected = False
    hub_state: HubState | None = None
    hub_state_s = 0.0
    feature_layers: tuple[int, ...] = ()

    def open(self, sequences: Sequence[TargetSequence]) -> None:
        pass

    def add_prompt_features(self, sequence: TargetSequence, start: int, features: Tensor) -> None:
        pass

    def collect(self, batch: Sequence[TargetSequence]) -> list[DraftTree]:
        return [EMPTY_TREE] * len(batch)

    def report(self, batch: Sequence[TargetSequence], emitted: Sequence[RoundOutput]) -> None:
        pass

    def close(self, sequence: TargetSequence) -> None:
        pass

    def note_round(self, round_s: float, verify_s: float) -> None:
        pass

    def poll(self) -> None:
        pass

    def shutdown(self) -> None:
        pass


class NgramDrafts(NoDrafts):
    """Prompt lookup in this process: no model, no hub."""

    is_connected = True

    def __init__(self, policy: LengthPolicy, lookup_min: int, lookup_max: int) -> None:
        self._policy = policy
        self._lookup = PromptLookup[RequestKey](lookup_min, lookup_max)

    def open(self, sequences: Sequence[TargetSequence]) -> None:
        for sequence, budget in zip(sequences, draft_budgets(sequences, self._policy, 1), strict=True):
            sequence.note_length(budget.num_steps)
            self._lookup.append(sequence.key, sequence.token_ids)

    def collect(self, batch: Sequence[TargetSequence]) -> list[DraftTree]:
        return self._propose(batch, len(batch))

    def fill(self, batch: Sequence[TargetSequence], trees: Sequence[DraftTree]) -> list[DraftTree]:
        """The round's trees, with drafts for those sequences that want one and have an empty tree."""
        pairs = zip(batch, trees, strict=True)
        lacking = [each for each, tree in pairs if tree == EMPTY_TREE and each.spec.num_draft_tokens != 0]
        found = dict(zip((each.key for each in lacking), self._propose(lacking, len(batch)), strict=True))
        return [found.get(each.key, tree) for each, tree in zip(batch, trees, strict=True)]

    def _propose(self, sequences: Sequence[TargetSequence], num_sequences: int) -> list[DraftTree]:
        budgets = draft_budgets(sequences, self._policy, num_sequences)
        return [self._chain(sequence, each.num_steps) for sequence, each in zip(sequences, budgets, strict=True)]

    def _chain(self, sequence: TargetSequence, length: int) -> DraftTree:
        return DraftTree.chain(self._lookup.propose(sequence.key, length)) if length else EMPTY_TREE

    def report(self, batch: Sequence[TargetSequence], emitted: Sequence[RoundOutput]) -> None:
        for sequence, added in zip(batch, emitted, strict=True):
            if added.finish is not None:
                self.close(sequence)
            else:
                self._lookup.append(sequence.key, added.token_ids)

    def close(self, sequence: TargetSequence) -> None:
        self._lookup.forget(sequence.key)


def own_drafts(method: str, config: SpeculativeConfig, policy: LengthPolicy) -> NgramDrafts | None:
    """The source that needs no hub; None if the method needs one, or is "none"."""
    return NgramDrafts(policy, config.prompt_lookup_min, config.prompt_lookup_max) if method == "ngram" else None
