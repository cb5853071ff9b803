"""What a length policy is told, and what it answers: one snapshot of a round in, one budget for each sequence out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from starspec.config import Policy
from starspec.policy.length.acceptance import Acceptance
from starspec.policy.length.costs import Costs
from starspec.policy.length.divergence import DivergenceHistory
from starspec.policy.length.node_gains import NodeGains
from starspec.policy.length.stop_threshold import StopThreshold
from starspec.policy.length.trials import Trials
from starspec.speculation.budget import MAX_FORWARDED, NO_DRAFT, DraftBudget

Reason = Literal["cap", "cost", "doubt", "probe", "off"]
"""Why a draft is as long as it is.

cap     as long as configuration, request, drafter and the tokens that are left allow, or as other sequences' drafts
cost    longer drafts would cost more time than they save
doubt   what draft and target have shown so far makes longer drafts useless
probe   a trial, to learn what it takes or brings; without a draft: what a round without this draft takes
off     no draft: it would cost more than it saves, or the request or the configuration excludes it
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceSnapshot:
    """One sequence at the moment when its next proposal is asked for.

    The defaults are those of a sequence whose drafter needs no prefill, and about which nothing was learnt.
    """

    max_remaining_tokens: int  # tokens that max_tokens and the context still leave it, at least 1
    num_steps_asked: int | None = None  # the request's own depth; None = the policy's
    policy_asked: Policy | None = None  # the request's own policy; None = the target's
    max_draft_tokens: int = MAX_FORWARDED  # nodes that its drafter can give it now; 0 = none
    num_tokens: int = 0  # its prompt and what was generated
    num_to_prefill: int = 0  # of these, tokens that a hub has to prefill before it can draft
    num_behind: int = 0  # likewise, but its drafter has those before: it was committed since the last draft
    is_held: bool = True  # its drafter has its tokens, or is prefilling them
    is_new: bool = False  # it was in no round before
    acceptance: Acceptance | None = None  # of its drafts so far; None = not known
    divergence: DivergenceHistory = field(default_factory=DivergenceHistory)  # of the target from its drafts
    stop_threshold: StopThreshold | None = None  # how sure its drafter must be to go on; None = the first one

    @property
    def limit(self) -> int:
        """Steps that a draft of it may have: no path and the target's own token exceed what remains."""
        return max(0, min(self.max_draft_tokens, self.max_remaining_tokens - 1))

    def fitting(self, budget: DraftBudget) -> DraftBudget:
        """The budget, as far as the sequence can use it."""
        return budget.limited(num_steps=self.max_remaining_tokens - 1, num_draft_tokens=self.max_draft_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundSnapshot:
    """Sequences whose next proposals are chosen together."""

    sequences: Sequence[SequenceSnapshot]
    num_sequences: int  # of the round that the proposals are for, as far as is known: others may have proposals already
    now_s: float = 0.0  # seconds of a monotonic clock
    costs: Costs | None = None  # what steps, proposals and prefill take; None = not known
    trials: Trials | None = None  # the account of what is tried; None = nothing was tried yet
    num_emitted: int = 0  # tokens that all rounds so far have given the sequences of this drafter
    was_interrupted: bool = False  # since the last snapshot the target did more than rounds, such as prefill a prompt
    nodes: NodeGains | None = None  # what the nodes of its drafter's trees gain; None = not known


class Choice(NamedTuple):
    """What to ask for, for one sequence, and why it is not more."""

    budget: DraftBudget
    reason: Reason = "cap"

    @staticmethod
    def of(budget: DraftBudget, reason: Reason = "cap") -> Choice:
        """Without draft tokens, the reason is "off"."""
        return Choice(budget, reason) if budget.num_draft_tokens else OFF


OFF = Choice(NO_DRAFT, "off")
PLAIN_TRIAL = Choice(NO_DRAFT, "probe")


class LengthPolicy(Protocol):
    """Chooses how much to speculate for the sequences of one round.

    Implementations hold configuration only. What is learnt from round to round is in the snapshot.
    """

    def choose(self, snapshot: RoundSnapshot) -> list[Choice]:
        """What to ask for, for each of `snapshot.sequences` in order.

        No draft tokens = do not speculate for this sequence in this round. Effects: perhaps on `snapshot.trials`.
        """
        ...
