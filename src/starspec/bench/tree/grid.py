"""The grid of shapes: chains and trees of different depth, width and size."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from itertools import product

from starspec.config import MAX_DRAFT_TOKENS, MAX_TOP_K
from starspec.errors import ConfigError
from starspec.speculation.budget import MAX_FORWARDED, DraftBudget


class Kind(Enum):
    """The kinds of shape that are compared."""

    CHAIN = "chain"  # of a fixed length
    DOUBTING_CHAIN = "doubting chain"  # ends below the probability p_min
    TREE = "tree"  # with p_min or without


def kind_of(shape: DraftBudget) -> Kind:
    if not shape.is_chain:
        return Kind.TREE
    return Kind.DOUBTING_CHAIN if shape.p_min else Kind.CHAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The shapes that are timed.

    Raises: ConfigError naming the option of a side that is out of range, or if no chain or no tree is left.
    """

    chains: tuple[int, ...] = (3, 4, 5, 8)  # 1..MAX_DRAFT_TOKENS
    depths: tuple[int, ...] = (4, 8)  # 1..MAX_DRAFT_TOKENS
    top_ks: tuple[int, ...] = (2, 3)  # 2..MAX_TOP_K
    nodes: tuple[int, ...] = (6, 10, 16)  # 1..MAX_DRAFT_TOKENS, without the root
    p_mins: tuple[float, ...] = (0.0, 0.3)  # 0 <= p_min < 1

    def __post_init__(self) -> None:
        _check_range("--chains", self.chains, 1, MAX_DRAFT_TOKENS)
        _check_range("--depths", self.depths, 1, MAX_DRAFT_TOKENS)
        _check_range("--top-ks", self.top_ks, 2, MAX_TOP_K)  # a tree with one child for each node is a chain
        _check_range("--nodes", self.nodes, 1, MAX_DRAFT_TOKENS)
        for p_min in self.p_mins:
            if not 0.0 <= p_min < 1.0:
                raise ConfigError(f"--p-mins: a p_min is a probability, 0 to 1 and less than 1, got {p_min:g}")
        kinds = {shape.is_chain for shape in self.shapes()}
        if kinds != {True, False}:
            raise ConfigError("a grid needs at least one chain and one tree: they are compared")

    def shapes(self) -> list[DraftBudget]:
        """Chains first, each shape once. Leaves out trees that are chains, or that cannot be filled."""
        sides = product(self.p_mins, self.depths, self.top_ks, self.nodes)
        trees = [DraftBudget(nodes, depth, top_k, p_min) for p_min, depth, top_k, nodes in sides]
        chains = [DraftBudget.chain(length, p_min) for p_min in self.p_mins for length in self.chains]
        return list(dict.fromkeys(chains + [each for each in trees if _is_worth_trying(each)]))

    def left_out(self) -> list[str]:
        """A sentence for each side with values that no tree uses."""
        trees = [shape for shape in self.shapes() if not shape.is_chain]
        used = {
            "depths": {shape.num_steps for shape in trees},
            "widths": {shape.top_k for shape in trees},
            "numbers of nodes": {shape.num_draft_tokens for shape in trees},
        }
        given = {"depths": self.depths, "widths": self.top_ks, "numbers of nodes": self.nodes}
        missing = {name: [each for each in values if each not in used[name]] for name, values in given.items()}
        return [
            f"{name} {', '.join(map(str, values))} fit no tree of this grid: it would be a chain or not filled"
            for name, values in missing.items()
            if values
        ]


def _check_range(option: str, sizes: tuple[int, ...], least: int, most: int) -> None:
    for size in sizes:
        if not least <= size <= most:
            raise ConfigError(f"{option} must be {least} to {most} each, got {size}")


def _is_worth_trying(tree: DraftBudget) -> bool:
    return tree.num_steps < tree.num_draft_tokens <= tree.max_nodes and tree.num_forwarded <= MAX_FORWARDED


def name_of(shape: DraftBudget) -> str:
    """The name of a shape in tables."""
    doubt = f", p_min {shape.p_min:g}" if shape.p_min else ""
    if shape.is_chain:
        return f"chain of {shape.num_steps}{doubt}"
    return f"tree {shape.num_steps} x {shape.top_k}, {shape.num_draft_tokens} nodes{doubt}"


CAUSAL_GRID = Grid()

HEAD_GRID = Grid(
    # with small targets or slow machines, a few more rows in a verification cost time
    chains=(1, 2, 3, 4, 5, 6),
    depths=(2, 3, 4, 5),
    top_ks=(2, 4),
    nodes=(3, 4, 5, 6, 8, 12, 16, 24),
)
