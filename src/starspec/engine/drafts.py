"""Where a target's proposals come from: the interface, and the sources that need no hub."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from starspec.config import SpeculativeConfig
from starspec.draft_methods import DraftMethod, drafts_itself
from starspec.engine.draft_lengths import DraftLengths
from starspec.engine.sequence import RoundOutput, TargetSequence
from starspec.ids import RequestKey
from starspec.policy.length.costs import Costs
from starspec.policy.length.hub_lessons import HubLessons
from starspec.policy.length.snapshot import LengthPolicy
from starspec.policy.pipe_depth import Traversed, WindowGap
from starspec.speculation.acceptance import COUPLED, AcceptanceRule
from starspec.speculation.ngram import PromptLookup
from starspec.speculation.tree import EMPTY_TREE, DraftTree
from starspec.stats import HubState, TargetStats


class RoundTimes(NamedTuple):
    """What one round took."""

    round_s: float  # in all
    traversal_s: float  # from its launch until it landed: a sequence gets its tokens so late
    occupancy_s: float  # its share of that time: other rounds were in flight, too
    num_tokens: int  # of its forward, with those of drafts
    num_sequences: int  # whose tokens it has committed, whoever drafted for them ...
    num_draft_tokens: int  # ... and their drafts' tokens
    took: Traversed | None = None  # its traversal, if there are stages
    num_running: int = 1  # sequences that share them
    is_ahead: bool = False  # other windows could stand on its windows
    gaps: Sequence[WindowGap] = ()  # before its windows


class Drafts(Protocol):
    """A source of proposals."""

    @property
    def rule(self) -> AcceptanceRule:
        """By which its proposals are verified, unless a request asks for the relaxed rule on top of it."""
        ...

    def open(self, sequences: Sequence[TargetSequence]) -> None:
        """These sequences got their cache rows, all in one step: begin to draft for them."""

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """The target's hidden states that the drafts are made from; () = none."""
        ...

    def add_prompt_features(self, sequence: TargetSequence, start: int, features: Tensor) -> None:
        """Positions `start ..` of the prompt were forwarded, and these are their features [T, F]."""

    def collect(self, batch: Sequence[TargetSequence]) -> list[DraftTree]:
        """One tree for each sequence, empty if there is none. Blocks until the deadline at most.

        It follows the committed tokens, those that are presumed and those that a grammar forces.
        """

    def report(self, batch: Sequence[TargetSequence], emitted: Sequence[RoundOutput]) -> None:
        """A round has committed these tokens. Sequences that finished are closed."""

    @property
    def num_windows(self) -> int:
        """Windows of one sequence that are worth having in flight, as measured."""
        ...

    def presume(self, sequences: Sequence[TargetSequence]) -> None:
        """Windows of these were launched: draft on, as if all that is presumed were committed."""

    def can_go_on(self, sequence: TargetSequence) -> bool:
        """Whether there is a draft behind what is presumed: the next window could be launched."""
        ...

    def retract(self, sequence: TargetSequence) -> None:
        """The windows of the sequence that were in flight are lost, with all that was presumed."""

    def close(self, sequence: TargetSequence) -> None:
        """The sequence has ended without a round: it was aborted, or it failed."""

    def holds_back(self, sequence: TargetSequence) -> bool:
        """Whether the next round should go without this sequence, because its proposal may still come in time.

        Asked only while other rounds are in flight. With none in flight, `collect` waits.
        """
        ...

    def note_round(self, times: RoundTimes) -> None:
        """A round took so long. Deadlines and lengths follow these times."""

    def poll(self) -> None:
        """Keep the connection, and connect again. Called between rounds and while idle. Never blocks."""

    def shutdown(self) -> None:
        """Leave in good order. No other call follows."""

    @property
    def drafts_forced(self) -> bool:
        """Whether tokens that a grammar forces are to be drafted, too."""
        ...

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

    @property
    def hub_method(self) -> DraftMethod | None:
        """How the hub drafts; None: no hub is needed or connected, or it does not say."""
        ...


class DraftsForSome(Drafts, Protocol):
    """A source that may draft for some sequences of a batch, while another one drafts for the rest."""

    def collect_beside(self, batch: Sequence[TargetSequence], num_sequences: int) -> list[DraftTree] | None:
        """As `collect`, for a round that also has so many sequences of the other source.

        Returns: None if nobody in the round is to have a draft, since what a plain round takes is measured.
        """
        ...

    def note_beside(self, num_sequences: int) -> None:
        """The other source has so many sequences. They are in the next rounds, too: lengths follow the whole round."""


class NoDrafts:
    """Plain decoding. Other sources without a hub derive from it."""

    rule = COUPLED
    drafts_forced = False
    is_connected = False
    hub_state: HubState | None = None
    hub_state_s = 0.0
    hub_method: DraftMethod | None = None
    feature_layers: tuple[int, ...] = ()

    @property
    def num_windows(self) -> int:
        return 1

    def open(self, sequences: Sequence[TargetSequence]) -> None:
        pass

    def add_prompt_features(self, sequence: TargetSequence, start: int, features: Tensor) -> None:
        pass

    def collect(self, batch: Sequence[TargetSequence]) -> list[DraftTree]:
        return [EMPTY_TREE] * len(batch)

    def report(self, batch: Sequence[TargetSequence], emitted: Sequence[RoundOutput]) -> None:
        pass

    def presume(self, sequences: Sequence[TargetSequence]) -> None:
        pass

    def can_go_on(self, sequence: TargetSequence) -> bool:  # noqa: ARG002 (of the interface)
        return False

    def retract(self, sequence: TargetSequence) -> None:
        pass

    def close(self, sequence: TargetSequence) -> None:
        pass

    def holds_back(self, sequence: TargetSequence) -> bool:  # noqa: ARG002 (of the interface)
        return False

    def note_round(self, times: RoundTimes) -> None:
        pass

    def poll(self) -> None:
        pass

    def shutdown(self) -> None:
        pass

    def note_beside(self, num_sequences: int) -> None:
        """As DraftsForSome."""

    def collect_beside(self, batch: Sequence[TargetSequence], num_sequences: int) -> list[DraftTree]:  # noqa: ARG002
        """As DraftsForSome."""
        return self.collect(batch)


class StepsOfWindows:
    """The draft steps that a drafter was asked for, for each window in flight; None = another one drafted for it."""

    def __init__(self) -> None:
        self._of: dict[RequestKey, deque[int | None]] = {}  # oldest window first

    def launch(self, sequence: TargetSequence, num_steps: int | None) -> None:
        """The next window of the sequence is launched. If it stands on others, its first step gives their guess."""
        if num_steps and sequence.flights:
            num_steps -= 1
        self._of.setdefault(sequence.key, deque()).append(num_steps)

    def land(self, sequence: TargetSequence) -> int | None:
        """Its oldest window has landed. Windows that are not in flight any more stood on refused tokens, and go."""
        known = self._of.get(sequence.key)
        num_steps = known.popleft() if known else None
        if not sequence.flights:
            self.forget(sequence)
        return num_steps

    def forget(self, sequence: TargetSequence) -> None:
        """No window of the sequence is in flight any more."""
        self._of.pop(sequence.key, None)


def is_launched(sequence: TargetSequence, tree: DraftTree) -> bool:
    """Whether a window is launched with this draft: only a first one may have none."""
    return tree != EMPTY_TREE or not sequence.flights


class NgramDrafts(NoDrafts):
    """Prompt lookup in this process: no model, no hub."""

    drafts_forced = True
    is_connected = True

    def __init__(
        self,
        policy: LengthPolicy,
        lookup_min: int,
        lookup_max: int,
        stats: TargetStats,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        lessons = HubLessons.of_local_drafter()
        self.lengths = DraftLengths(policy, Costs(), lambda: lessons, stats.lengths, clock)
        self._lookup = PromptLookup[RequestKey](lookup_min, lookup_max)
        self._requested = StepsOfWindows()

    def open(self, sequences: Sequence[TargetSequence]) -> None:
        for sequence in sequences:
            self._lookup.append(sequence.key, sequence.token_ids)

    def collect(self, batch: Sequence[TargetSequence]) -> list[DraftTree]:
        return self.draft(batch, len(batch))

    def fill(self, batch: Sequence[TargetSequence], trees: Sequence[DraftTree]) -> list[DraftTree]:
        """The round's trees, with drafts for those sequences that want one and have an empty tree."""
        pairs = list(zip(batch, trees, strict=True))
        lacking = [each for each, tree in pairs if tree == EMPTY_TREE]
        found = dict(zip((each.key for each in lacking), self.draft(lacking, len(batch)), strict=True))
        for sequence, tree in pairs:
            if tree != EMPTY_TREE:
                self._requested.launch(sequence, None)
        return [found.get(each.key, tree) for each, tree in pairs]

    def draft(self, sequences: Sequence[TargetSequence], num_sequences: int) -> list[DraftTree]:
        """One tree for each of these, in a round of so many sequences."""
        budgets = self.lengths.choose(sequences, num_sequences)
        pairs = zip(sequences, budgets, strict=True)
        trees = [DraftTree.chain(self.propose(each, budget.num_steps)) for each, budget in pairs]
        for sequence, budget, tree in zip(sequences, budgets, trees, strict=True):
            if is_launched(sequence, tree):
                self._requested.launch(sequence, budget.num_steps)
        return trees

    def note_beside(self, num_sequences: int) -> None:
        """As DraftsForSome."""
        self.lengths.note_beside(num_sequences)

    def propose(self, sequence: TargetSequence, num_tokens: int) -> list[int]:
        """At most so many tokens that may follow what is committed, presumed and forced."""
        return self._lookup.propose(sequence.key, num_tokens, sequence.ahead)

    def can_go_on(self, sequence: TargetSequence) -> bool:
        return bool(self.propose(sequence, 1))

    def retract(self, sequence: TargetSequence) -> None:
        self._requested.forget(sequence)

    def report(self, batch: Sequence[TargetSequence], emitted: Sequence[RoundOutput]) -> None:
        for sequence, added in zip(batch, emitted, strict=True):
            num_requested = self._requested.land(sequence)
            if num_requested is not None:
                self.lengths.learn(sequence, added, num_requested)
            if added.finish is not None:
                self.close(sequence)
            else:
                self._lookup.append(sequence.key, added.token_ids)

    @property
    def num_windows(self) -> int:
        return self.lengths.plan.depth

    def note_round(self, times: RoundTimes) -> None:
        self.lengths.end_round(times.num_tokens, times.traversal_s)
        self.lengths.plan_windows(
            times.took, times.occupancy_s, times.num_running, is_ahead=times.is_ahead, gaps=times.gaps
        )

    def close(self, sequence: TargetSequence) -> None:
        self._requested.forget(sequence)
        self._lookup.forget(sequence.key)
        self.lengths.forget(sequence)


def own_drafts(method: str, config: SpeculativeConfig, policy: LengthPolicy, stats: TargetStats) -> NgramDrafts | None:
    """The source that needs no hub; None if the method needs one, or is "none"."""
    if not drafts_itself(method):
        return None
    return NgramDrafts(policy, config.prompt_lookup_min, config.prompt_lookup_max, stats)
