"""How much `starspec bench tree` measures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from starspec.bench.tree.grid import CAUSAL_GRID, HEAD_GRID, Grid
from starspec.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class TreePlan:
    """How much to measure.

    Raises: ConfigError naming `--temperatures` unless each is a number from 0 on, and there is one.
    """

    grid: Grid | None = None  # None = the default of the kind of draft
    only: Mapping[str, Any] = field(default_factory=dict)  # sides of the grid that replace the default
    temperatures: tuple[float, ...] = (0.0, 1.0)
    num_trial_prompts: int = 2  # of each file, with every shape
    num_prompts: int = 8  # of each file, with the best
    max_tokens: int = 96
    num_repeats: int = 3

    def __post_init__(self) -> None:
        if not self.temperatures or not all(0.0 <= each < inf for each in self.temperatures):
            raise ConfigError(f"--temperatures: numbers from 0 on, at least one, got {list(self.temperatures)}")
        if len(set(self.temperatures)) < len(self.temperatures):
            raise ConfigError(f"--temperatures: each once, got {list(self.temperatures)}")

    def grid_for(self, *, has_head: bool) -> Grid:
        """The shapes to time with a draft of this kind. Raises: ConfigError as Grid."""
        return replace(self.grid or (HEAD_GRID if has_head else CAUSAL_GRID), **self.only)


QUICK = TreePlan(
    grid=Grid(chains=(4,), depths=(5,), top_ks=(2,), nodes=(8, 10)),
    num_trial_prompts=1,
    num_prompts=1,
    max_tokens=32,
    num_repeats=1,
)
