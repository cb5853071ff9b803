"""Which layers of a model a stage has: [start, end). A model that is not cut is one stage with all of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from starspec.errors import ConfigError


@dataclass(frozen=True, slots=True)
class LayerRange:
    """Consecutive layers of a model. The first stage also has the embeddings, the last one the norm and the head.

    Raises: ConfigError if the model has no such layers.
    """

    start: int
    end: int  # exclusive
    num_layers: int  # of the model

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end <= self.num_layers:
            raise ConfigError(
                f"layers {self} do not exist: the model has layers 0:{self.num_layers}, and a stage has at least one"
            )

    @classmethod
    def whole(cls, num_layers: int) -> LayerRange:
        return cls(0, num_layers, num_layers)

    @classmethod
    def parse(cls, text: str, num_layers: int) -> LayerRange:
        """The range that a user wrote as start:end, the end exclusive, or as a share, such as 1/2: the first of two.

        Raises: ConfigError if it is not a range.
        """
        share = re.fullmatch(r"\s*([0-9]{1,6})\s*/\s*([0-9]{1,6})\s*", text)
        if share is not None and 1 <= int(share[1]) <= int(share[2]):
            number, of = int(share[1]), int(share[2])
            return cls(num_layers * (number - 1) // of, num_layers * number // of, num_layers)
        match = re.fullmatch(r"\s*([0-9]{1,6})\s*:\s*([0-9]{1,6})\s*", text)
        if match is None:
            raise ConfigError(
                f"layers '{text}' are not a range: write the first layer and the one behind the last, as 0:14, or a "
                "share of all, as 1/2"
            )
        return cls(int(match[1]), int(match[2]), num_layers)

    @property
    def size(self) -> int:
        return self.end - self.start

    @property
    def is_first(self) -> bool:
        return self.start == 0

    @property
    def is_last(self) -> bool:
        return self.end == self.num_layers

    @property
    def is_whole(self) -> bool:
        return self.is_first and self.is_last

    def __str__(self) -> str:
        return f"{self.start}:{self.end}"


def check_ranges(stages: Sequence[tuple[str, LayerRange]]) -> None:
    """Check that stages, in this order, have each layer of one model once.

    Args:
        stages: name and layers of each.
    Raises: ConfigError that says which layers are missing or twice there, or which stages do not fit together.
    """
    if not stages:
        raise ConfigError("a target needs at least one stage")
    names = [name for name, _ in stages]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"stage {twice} is listed twice")
    before, num_layers, num_covered = "", stages[0][1].num_layers, 0
    for name, layers in stages:
        if layers.num_layers != num_layers:
            raise ConfigError(
                f"stage {names[0]} has a model of {num_layers} layers, and stage {name} one of {layers.num_layers}"
            )
        _check_next(before, num_covered, name, layers)
        before, num_covered = f"{name} ({layers})", layers.end
    if num_covered < num_layers:
        raise ConfigError(f"no stage has layers {num_covered}:{num_layers}, behind {before}")


def _check_next(before: str, num_covered: int, name: str, layers: LayerRange) -> None:
    """Args: before: the stage before, with its layers; "" = there is none. num_covered: layers of all stages before."""
    here = f"{name} ({layers})"
    if layers.start > num_covered:
        where = f"between {before} and {here}" if before else f"before {here}"
        raise ConfigError(
            f"no stage has layers {num_covered}:{layers.start}, {where}; list stages in their layers' order"
        )
    if layers.start < num_covered:
        raise ConfigError(
            f"stages {before} and {here} overlap, or are not in the order of their layers: the second should begin "
            f"with layer {num_covered}"
        )
