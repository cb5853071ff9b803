"""Whether and how a hub runs ahead for a sequence, by how much it gains (ADR 15).

Modes are compared by a rate: the expected tokens of the rounds, divided by their seconds. If other requests waited for
draft steps ahead of this sequence, these waits are added to the seconds. So a hit counts as much as the draft steps
that it saves. If the hub drafts on the target's cores and slows the target down, that counts against running ahead.

                  after `patience` rounds
    SETTLED ─────────────────────────────────> ON TRIAL another mode, for NUM_ROUNDS rounds
       ^    the better of the two by MARGIN stays    │
       └─────────────────────────────────────────────┘    a trial that fails doubles the patience, else it halves

A trial is compared only with the rounds just before it: load changes, and a rate under another load says nothing.
"""

from __future__ import annotations

from collections import deque
from copy import copy
from typing import Final, NamedTuple

from starspec.config import AheadMode, RunAhead
from starspec.speculation.budget import DraftBudget, TopKSpec

NUM_ROUNDS: Final = 24  # of each mode, that are compared
NUM_SKIPPED: Final = 2  # rounds after a change of mode: they still use the tree of the mode before
MAX_PATIENCE: Final = 768  # rounds between trials: so failing trials take at most one round in 32
MARGIN: Final = 0.05  # of the rate: a mode must be better by so much to replace the other, since rounds vary
NUM_OUTCOMES: Final = 4  # children of a node, to prepare outcomes: a fifth would prepare for few more verdicts
IN_TURN: Final[dict[AheadMode, AheadMode]] = {"off": "outcomes", "outcomes": "chain", "chain": "off"}


class _Round(NamedTuple):
    num_emitted: float
    seconds: float


class AheadChoice:
    """The mode of one sequence, from its first round to its last.

    Args:
        run_ahead: a fixed mode; or auto, which learns and begins with off.
    """

    def __init__(self, run_ahead: RunAhead) -> None:
        self.mode: AheadMode = "off" if run_ahead == "auto" else run_ahead
        self.is_learning = run_ahead == "auto"  # from its rounds
        self._settled = self.mode
        self._candidate = IN_TURN[self.mode]
        self._settled_rate = 0.0  # before the trial
        self._patience = self._num_left = NUM_ROUNDS
        self._num_to_skip = 0
        self._rounds: deque[_Round] = deque(maxlen=NUM_ROUNDS)
        self._owed_s = 0.0

    def top_k_spec(self, budget: DraftBudget, *, is_drawn: bool) -> TopKSpec:
        """The budget's top k, or a larger one to prepare outcomes. Drawn children always follow the budget."""
        if self.mode != "outcomes" or is_drawn:
            return budget.top_k_spec
        return budget.top_k_spec._replace(top_k=max(budget.top_k, NUM_OUTCOMES), needs_logprobs=True)

    def for_another(self) -> AheadChoice:
        """A copy that continues from here, for another sequence like this one."""
        other = copy(self)
        other._rounds, other._owed_s = self._rounds.copy(), 0.0
        return other

    def charge(self, seconds: float) -> None:
        """A request waited so long for a draft step ahead of this sequence."""
        self._owed_s += seconds

    def add_round(self, num_emitted: float, seconds: float) -> None:
        """Count one round, from one proposal to the next. Effects: may change `mode` for the next round.

        Args:
            num_emitted: expected tokens of a round with such a proposal.
        """
        owed_s, self._owed_s = self._owed_s, 0.0
        if not self.is_learning:
            return
        if self._num_to_skip:
            self._num_to_skip -= 1
            return
        self._rounds.append(_Round(num_emitted, seconds + owed_s))
        self._num_left -= 1
        if self._num_left <= 0:
            if self.mode == self._settled:
                self._begin_trial()
            else:
                self._end_trial()

    def _begin_trial(self) -> None:
        self._settled_rate = self._rate()
        self._enter(self._candidate, NUM_ROUNDS)

    def _end_trial(self) -> None:
        is_better = self._rate() > (1.0 + MARGIN) * self._settled_rate
        patience = self._patience / 2 if is_better else self._patience * 2
        self._patience = min(max(NUM_ROUNDS, int(patience)), MAX_PATIENCE)
        self._settled = self.mode if is_better else self._settled
        following = IN_TURN[self._candidate]
        self._candidate = IN_TURN[following] if following == self._settled else following
        self._enter(self._settled, self._patience)

    def _enter(self, mode: AheadMode, num_rounds: int) -> None:
        self._num_to_skip = 0 if mode == self.mode else NUM_SKIPPED
        self.mode, self._num_left = mode, num_rounds
        self._rounds.clear()

    def _rate(self) -> float:
        seconds = sum(each.seconds for each in self._rounds)
        return sum(each.num_emitted for each in self._rounds) / seconds if seconds else 0.0
