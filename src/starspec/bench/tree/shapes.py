"""The grid: chains and trees of every depth, width and size that is tried."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from itertools import product

from starspec.errors import ConfigError
from starspec.speculation.budget import MAX_FORWARDED, DraftBudget


class Kind(Enum):
    """What is compared with what."""

    CHAIN = "chain"  # of a fixed length
    DOUBTING_CHAIN = "doubting chain"  # ends where the draft believes less than p_min
    TREE = "tree"  # with p_min or without


def kind_of(shape: DraftBudget) -> Kind:
    if not shape.is_chain:
        return Kind.TREE
    return Kind.DOUBTING_CHAIN if shape.p_min else Kind.CHAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """What is tried."""

    chains: tuple[int, ...] = (3, 4, 5, 8)
    depths: tuple[int, ...] = (4, 8)
    top_ks: tuple[int, ...] = (2, 3)
    nodes: tuple[int, ...] = (6, 10, 16)
    p_mins: tuple[float, ...] = (0.0, 0.3)

    def __post_init__(self) -> None:
        if not all(0.0 <= p_min <= 1.0 for p_min in self.p_mins):
            raise ConfigError(f"a p_min is a probability, 0 to 1, got {self.p_mins}")
        kinds = {shape.is_chain for shape in self.shapes()}
        if kinds != {True, False}:
            raise ConfigError("a grid needs at least one chain and one tree: they are compared")

    def shapes(self) -> list[DraftBudget]:
        """Chains first. No tree that is as deep as it has nodes, none with fewer guesses than nodes."""
        sides = product(self.p_mins, self.depths, self.top_ks, self.nodes)
        trees = [DraftBudget(nodes, depth, top_k, p_min) for p_min, depth, top_k, nodes in sides]
        chains = [DraftBudget.chain(length, p_min) for p_min in self.p_mins for length in self.chains]
        return chains + [each for each in trees if _is_worth_trying(each)]


def _is_worth_trying(tree: DraftBudget) -> bool:
    return tree.num_steps < tree.num_draft_tokens <= tree.num_guessed and tree.num_forwarded <= MAX_FORWARDED


def name_of(shape: DraftBudget) -> str:
    """What a shape is called in tables."""
    doubt = f", p_min {shape.p_min:g}" if shape.p_min else ""
    if shape.is_chain:
        return f"chain of {shape.num_steps}{doubt}"
    return f"tree {shape.num_steps} x {shape.top_k}, {shape.num_draft_tokens} nodes{doubt}"


CAUSAL_GRID = Grid()

HEAD_GRID = Grid(
    # a head's target is often so small, or its machine so short of arithmetic, that a few rows more cost time
    chains=(1, 2, 3, 4, 5, 6),
    depths=(2, 3, 4, 5),
    top_ks=(2, 4),
    nodes=(3, 4, 5, 6, 8, 12, 16, 24),
)
