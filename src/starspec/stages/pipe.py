"""What a pipe is: stages that are one model, in the order of their layers, each of which sends to the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from starspec.config.stages import HiddenDtype
from starspec.errors import ConfigError
from starspec.ids import PipeEpoch, TargetId
from starspec.models.layers import LayerRange, check_ranges
from starspec.wire.messages import PROTOCOL_VERSION, Attach, Attached


@dataclass(frozen=True, slots=True)
class Pipe:
    """Stages in the order of their layers. Raises: ConfigError if they are not one model."""

    names: tuple[str, ...]
    stages: tuple[Attached, ...]
    epoch: PipeEpoch
    lease_s: float
    target_id: TargetId
    hidden_dtype: HiddenDtype = "model"  # of hidden states on their way

    def __post_init__(self) -> None:
        named = list(zip(self.names, self.stages, strict=True))
        check_ranges([(name, LayerRange(each.start, each.end, each.num_layers)) for name, each in named])
        for name, each in named:
            if each.fingerprint != self.stages[0].fingerprint:
                raise ConfigError(f"stages {self.names[0]} and {name} have different models or weights")
            if each.dtype != self.stages[0].dtype:
                differing = f"{self.stages[0].dtype}, and stage {name} in {each.dtype}"
                raise ConfigError(f"stage {self.names[0]} computes in {differing}: give both the same --dtype")

    @property
    def num_rows(self) -> int:
        return min(each.num_rows for each in self.stages)

    @property
    def max_len(self) -> int:
        return min(each.max_len for each in self.stages)

    @property
    def is_invariant(self) -> bool:
        """Whether at no stage a token's bits depend on what it is batched with."""
        return all(each.is_invariant for each in self.stages)

    @property
    def num_cache_bytes(self) -> int:
        return sum(each.num_cache_bytes for each in self.stages)

    def attaching(self, epoch: PipeEpoch, after: str) -> Attach:
        """What attaches a process to this pipe. Args: after: endpoint of the stage behind it; "" = there is none."""
        return Attach(PROTOCOL_VERSION, self.target_id, epoch, self.lease_s, after, self.hidden_dtype)

    def why_no_place(self, what: Attached) -> str | None:
        """Why a process cannot be any stage of this pipe; None if it can."""
        first = self.stages[0]
        if (what.fingerprint, what.num_layers) != (first.fingerprint, first.num_layers):
            return "it has another model, or other weights"
        if what.dtype != first.dtype:
            return f"it computes in {what.dtype}, and the stages in {first.dtype}: give all the same --dtype"
        if (what.start, what.end) not in [(each.start, each.end) for each in self.stages]:
            return f"it has layers {what.start}:{what.end}, and no stage has these"
        if what.num_rows < self.num_rows:
            return f"it has {what.num_rows} rows, and the stages {self.num_rows}: give it a higher --max-num-seqs"
        if what.max_len < self.max_len:
            return f"its rows have {what.max_len} places, and those of the stages {self.max_len}: see --max-model-len"
        return None


def misled(stages: Sequence[Attached]) -> int | None:
    """The place of a stage that sends to another one than the one behind it; None if there is none."""
    links = enumerate(pairwise(stages))
    return next((place for place, (near, far) in links if near.next_id != far.stage_id), None)


def why_misled(names: Sequence[str], stages: Sequence[Attached], place: int) -> str:
    """One sentence about that stage."""
    next_id, wanted = stages[place].next_id, names[place + 1]
    found = next((name for name, each in zip(names, stages, strict=True) if each.stage_id == next_id), None)
    other = "a stage that is not in --stages" if found is None else f"stage {found}"
    return (
        f"stage {names[place]} sends to {other}, not to {wanted}, which comes behind it: start {names[place]} with a "
        f"--next that leads to {wanted}, or with none"
    )


def same_stage(name: str, other: str) -> str:
    """One sentence about two names that lead to one process."""
    return f"{name} and {other} are the same stage: list it once in --stages and --spares"
