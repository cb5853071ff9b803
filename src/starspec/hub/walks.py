"""How far walks along a growing tree's levels have come: what is known of a tree only grows, so none begins anew."""

from __future__ import annotations

from collections.abc import Set
from typing import NamedTuple

from starspec.speculation.budget import DraftBudget
from starspec.speculation.tree import ROOT


class Walk:
    """Along EAGLE-2's levels below a node, as far as they are known; goes on from there when more is known.

    What is expanded stays as it is until a verdict, so no level is walked twice.
    """

    def __init__(self, budget: DraftBudget, start: int) -> None:
        self.budget = budget
        self.scores: dict[int, float] = {}  # nodes with their log-confidences below `start`, level by level
        self.to_expand = [start]  # of the level that was reached
        self.num_steps = 0  # behind it


class Outcome(NamedTuple):
    """A node that is the next root, if a verdict leads to it; or one whose children are such nodes, once known."""

    doubt: float  # minus the log of how likely the path to it is: the likeliest sorts first
    node: int
    depth: int


class Outlook:
    """The outcomes of one proposal below which something may be missing, as far as they were looked at.

    Args:
        budget: of the proposal that follows.
        ends: where the guesses that are right may end: the root and what is proposed.
    """

    def __init__(self, budget: DraftBudget, ends: Set[int]) -> None:
        self.budget = budget
        self.ends = ends
        self.outcomes = [Outcome(0.0, ROOT, 0)]  # likeliest first
        self._walks: dict[int, Walk] = {}

    def walk(self, outcome: Outcome) -> Walk:
        walk = self._walks.get(outcome.node)
        if walk is None:
            walk = self._walks[outcome.node] = Walk(self.budget, outcome.node)
        return walk
