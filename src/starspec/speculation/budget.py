"""How much a hub is asked to draft for one round: how deep, how wide, how many nodes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Final, NamedTuple

MAX_FORWARDED = 64  # nodes that a draft forwards for one proposal: so many slots lie behind a row's longest sequence
EXPANDED_SHARE: Final = 0.375  # of `p_min`: one more node of a layer that is drafted anyway costs less than a layer
PROPOSED_SHARE: Final = 0.125  # and one more to verify costs less than that
MOST_REMEMBERED: Final = 1024  # chains: the commonest budgets, of which a hub makes one for each verdict


class TopKSpec(NamedTuple):
    """What a draft is asked about the tokens after a node."""

    top_k: int  # how many, at most
    needs_logprobs: bool = True  # whether it is to say how likely they are, too


@dataclass(frozen=True)
class DraftBudget:
    """The bounds of one proposal. A chain is a tree with `top_k` 1 and as many nodes as steps.

    num_steps 3, top_k 2, num_draft_tokens 6        growing takes `num_steps` draft layers; each expands the
                                                    `top_k` likeliest nodes of the one before, by `top_k`
    root ── a ── c ── f                             children each; the likeliest nodes of all are proposed
         │    └─ d
         └─ b ── e                                  (EAGLE-2, arXiv 2406.16858, sections 4.1 and 4.2)

    Growing ends before a layer that would hardly help: where the draft itself thinks that the `top_k` likeliest nodes
    from which it would go on are reached with less than `p_min`, all together. None that it gives less than
    `p_expanded` is among them, and none is proposed that it gives less than `p_proposed`. Of nodes that were drawn, for
    rejection sampling, each is asked for `p_min`. (llama.cpp's `p_min` asks as much of one token, this of whole paths.)
    """

    num_draft_tokens: int  # nodes, at most; never counts the root; 0 = no proposal
    num_steps: int  # depth, at most
    top_k: int = 1
    p_min: float = 0.0  # that a layer is drafted for something, 0..1

    @staticmethod
    def chain(num_draft_tokens: int, p_min: float = 0.0) -> DraftBudget:
        return _chain(num_draft_tokens, p_min)

    @property
    def is_chain(self) -> bool:
        return self.top_k == 1

    @property
    def p_expanded(self) -> float:
        """Of the path to each node that is expanded. (A chain has one a layer, of which `p_min` is asked.)"""
        return self.p_min * EXPANDED_SHARE

    @property
    def p_proposed(self) -> float:
        """Of the path to a node that is proposed."""
        return self.p_min * PROPOSED_SHARE

    @cached_property
    def top_k_spec(self) -> TopKSpec:
        """What is asked about each node: a chain that no doubt ends needs no probabilities."""
        return TopKSpec(self.top_k, needs_logprobs=not self.is_chain or self.p_min > 0.0)

    @property
    def num_forwarded(self) -> int:
        """Nodes that a draft forwards to grow it, at most: not the root, and not the last layer."""
        return self.top_k * max(0, self.num_steps - 1)

    @property
    def max_nodes(self) -> int:
        """Nodes that become known while it grows."""
        return self.top_k * (1 + self.num_forwarded) if self.num_steps else 0

    def with_steps(self, num_steps: int) -> DraftBudget:
        """The same width at another depth: a chain of so many tokens; a tree with no more nodes, as deep as fits."""
        if self.is_chain:
            return DraftBudget.chain(num_steps, self.p_min)
        return replace(self, num_steps=num_steps).limited()

    def limited(self, *, num_draft_tokens: int = MAX_FORWARDED, num_steps: int = MAX_FORWARDED) -> DraftBudget:
        """No more nodes and no deeper than this, nor than what fits (MAX_FORWARDED); nothing below 0."""
        nodes = max(0, min(self.num_draft_tokens, num_draft_tokens))
        steps = max(0, min(self.num_steps, num_steps, nodes, 1 + MAX_FORWARDED // self.top_k))
        nodes = min(nodes, steps) if self.is_chain else nodes * (steps > 0)
        if (nodes, steps) == (self.num_draft_tokens, self.num_steps):
            return self
        return replace(self, num_draft_tokens=nodes, num_steps=steps)


@lru_cache(maxsize=MOST_REMEMBERED)
def _chain(num_draft_tokens: int, p_min: float) -> DraftBudget:
    return DraftBudget(num_draft_tokens, num_draft_tokens, p_min=p_min)


NO_DRAFT: Final = DraftBudget.chain(0)
"""Asks for no proposal."""
