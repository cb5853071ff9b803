"""The grid: chains and trees of every depth, width and size that is tried."""

from __future__ import annotations

from dataclasses import dataclass

from starspec.errors import ConfigError
from starspec.speculation.budget import MAX_FORWARDED, DraftBudget


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """What is tried."""

    chains: tuple[int, ...] = (2, 3, 4, 5, 6)
    depths: tuple[int, ...] = (3, 4, 6)
    top_ks: tuple[int, ...] = (2, 3, 4)
    nodes: tuple[int, ...] = (6, 10, 16, 24)

    def __post_init__(self) -> None:
        kinds = {shape.is_chain for shape in self.shapes()}
        if kinds != {True, False}:
            raise ConfigError("a grid needs at least one chain and one tree: they are compared")

    def shapes(self) -> list[DraftBudget]:
        """Chains first. No tree that is as deep as it has nodes, none with fewer guesses than nodes."""
        trees = [
            DraftBudget(nodes, depth, top_k) for depth in self.depths for top_k in self.top_ks for nodes in self.nodes
        ]
        return [DraftBudget.chain(length) for length in self.chains] + [
            each for each in trees if _is_worth_trying(each)
        ]


def _is_worth_trying(tree: DraftBudget) -> bool:
    return tree.num_steps < tree.num_draft_tokens <= tree.num_guessed and tree.num_forwarded <= MAX_FORWARDED


def name_of(shape: DraftBudget) -> str:
    """What a shape is called in tables."""
    if shape.is_chain:
        return f"chain of {shape.num_steps}"
    return f"tree {shape.num_steps} x {shape.top_k}, {shape.num_draft_tokens} nodes"


CAUSAL_GRID = Grid()

HEAD_GRID = Grid(
    # a head's target is often so small, or its machine so short of arithmetic, that a few rows more cost time
    chains=(1, 2, 3, 4, 5, 6),
    depths=(2, 3, 4, 5),
    top_ks=(2, 4),
    nodes=(3, 4, 5, 6, 8, 12, 16, 24),
)
