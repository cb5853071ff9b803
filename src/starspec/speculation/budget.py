"""How much a hub may draft for one round: depth, width and number of nodes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import inf
from typing import Final, NamedTuple

# nodes that a draft model forwards for one proposal; a cache row has this many slots behind the longest sequence
MAX_FORWARDED = 64
# of `p_min`: one more node in a draft step that runs anyway costs less than another draft step
EXPANDED_SHARE: Final = 0.375
PROPOSED_SHARE: Final = 0.125  # of `p_min`: one more node to verify costs even less
MOST_REMEMBERED: Final = 1024  # cached chain budgets: the most common ones, and a hub needs one for every verdict


class TopKSpec(NamedTuple):
    """What a draft model must answer about the tokens after one node."""

    top_k: int  # how many tokens, at most
    needs_logprobs: bool = True  # whether their log-probabilities are needed too
    needs_entropy: bool = False  # whether the entropy of the distribution is needed
    num_stated: int = 0  # further tokens whose log-probabilities are stated to the target


@dataclass(frozen=True)
class DraftBudget:
    """The limits of one proposal. A chain is a tree with `top_k` 1 and as many nodes as steps.

        num_steps 3, top_k 2, num_draft_tokens 6        Growing takes `num_steps` draft steps. Each expands the `top_k`
                                                        likeliest nodes of the step before by `top_k` children each.
        root ── a ── c ── f                             The likeliest nodes of all are proposed.
             │    └─ d
             └─ b ── e                                  (EAGLE-2, arXiv 2406.16858, sections 4.1 and 4.2)

    Growing stops before a draft step that would hardly help: where the draft model gives the `top_k` likeliest nodes to
    expand a total probability below `p_min`. A node with less than `p_expanded` is not expanded, and one with less than
    `p_proposed` is not proposed. For rejection sampling, where nodes were drawn, each node must reach `p_min` itself.
    llama.cpp's `p_min` sets the same limit for one token; this one is for whole paths.

    A chain also ends before a token, but for the first one, where the draft model's distribution has an entropy above
    `max_entropy` (AdaEDL, arXiv 2410.18351). Trees ignore it.
    """

    num_draft_tokens: int  # nodes, at most, without the root; 0 = no proposal
    num_steps: int  # depth, at most
    top_k: int = 1
    p_min: float = 0.0  # least probability that a draft step is useful, 0..1
    max_entropy: float = inf  # nats; only of chains
    has_logprobs: bool = False  # the proposal states the log-probability of each node
    num_stated: int = 0  # the proposal states so many likeliest tokens after each node that was expanded

    @staticmethod
    def chain(num_draft_tokens: int, p_min: float = 0.0) -> DraftBudget:
        """A chain of at most `num_draft_tokens` tokens."""
        return _chain(num_draft_tokens, p_min)

    @property
    def is_chain(self) -> bool:
        return self.top_k == 1

    @property
    def p_expanded(self) -> float:
        """Least probability of the path to a node that is expanded. A chain's one node a step must reach `p_min`."""
        return self.p_min * EXPANDED_SHARE

    @property
    def p_proposed(self) -> float:
        """Least probability of the path to a node that is proposed."""
        return self.p_min * PROPOSED_SHARE

    @cached_property
    def top_k_spec(self) -> TopKSpec:
        """What the draft model must answer about each node. A chain with `p_min` 0 needs no probabilities."""
        needs_logprobs = not self.is_chain or self.p_min > 0.0 or self.has_logprobs
        return TopKSpec(self.top_k, needs_logprobs, self.is_chain and self.max_entropy < inf, self.num_stated)

    @property
    def num_forwarded(self) -> int:
        """Nodes that a draft model forwards to grow the tree, at most: not the root, and not the last step's nodes."""
        return self.top_k * max(0, self.num_steps - 1)

    @property
    def max_nodes(self) -> int:
        """Nodes that the draft model names while the tree grows, at most, whether or not they are proposed."""
        return self.top_k * (1 + self.num_forwarded) if self.num_steps else 0

    def with_steps(self, num_steps: int) -> DraftBudget:
        """The same width at another depth.

        A chain gets `num_steps` tokens. A tree keeps its node limit, and is as deep as fits.
        """
        if self.is_chain:
            return replace(self, num_draft_tokens=num_steps, num_steps=num_steps)
        return replace(self, num_steps=num_steps).limited()

    def stating(self, num: int) -> DraftBudget:
        """This budget with at least `num` stated tokens, if it is one for a proposal."""
        return self if self.num_stated >= num or not self.num_draft_tokens else replace(self, num_stated=num)

    def limited(self, *, num_draft_tokens: int = MAX_FORWARDED, num_steps: int = MAX_FORWARDED) -> DraftBudget:
        """This budget with at most these nodes and this depth.

        The result also fits the slots behind a row (MAX_FORWARDED). No limit goes below 0.
        """
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
"""The budget of a request for no proposal."""
