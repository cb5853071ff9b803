"""How a coordinator makes a pipe of its stages: it attaches them all, and checks that they are one model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from starspec.errors import ConfigError, PeerLost
from starspec.ids import PipeEpoch, TargetId
from starspec.models.layers import LayerRange, check_ranges
from starspec.stages.link import PipeLink
from starspec.wire.messages import PROTOCOL_VERSION, Attach, Attached, Outdated, Refused


@dataclass(frozen=True, slots=True)
class Pipe:
    """Stages in the order of their layers. Raises: ConfigError if they are not one model."""

    names: tuple[str, ...]
    stages: tuple[Attached, ...]
    epoch: PipeEpoch
    lease_s: float

    def __post_init__(self) -> None:
        named = list(zip(self.names, self.stages, strict=True))
        check_ranges([(name, LayerRange(each.start, each.end, each.num_layers)) for name, each in named])
        for name, each in named:
            if each.fingerprint != self.stages[0].fingerprint:
                raise ConfigError(f"stages {self.names[0]} and {name} have different models or weights")

    @property
    def num_rows(self) -> int:
        return min(each.num_rows for each in self.stages)

    @property
    def max_len(self) -> int:
        return min(each.max_len for each in self.stages)

    @property
    def num_cache_bytes(self) -> int:
        return sum(each.num_cache_bytes for each in self.stages)


def attach(
    link: PipeLink,
    names: Sequence[str],
    target_id: TargetId,
    *,
    lease_s: float,
    timeout_s: float,
    clock: Callable[[], float],
) -> Pipe:
    """Begin a pipe epoch, higher than all that the stages have known.

    Args:
        names: of the stages, in the order of their layers.
        lease_s: stages whose coordinator is silent for longer leave the pipe.
        timeout_s: within which all must answer.
    Raises: ConfigError if a stage refuses or the stages are not one model; PeerLost if one does not answer.
    """
    deadline_s, epoch = clock() + timeout_s, PipeEpoch(1)
    while True:
        answers = _ask(link, names, Attach(PROTOCOL_VERSION, target_id, epoch, lease_s), deadline_s, clock)
        newest = max((each.pipe_epoch for each in answers if isinstance(each, Outdated)), default=PipeEpoch(0))
        if not newest:
            stages = tuple(each for each in answers if isinstance(each, Attached))
            return Pipe(tuple(names), stages, epoch, lease_s)
        epoch = PipeEpoch(max(newest, epoch) + 1)


def _ask(
    link: PipeLink, names: Sequence[str], message: Attach, deadline_s: float, clock: Callable[[], float]
) -> list[Attached | Outdated]:
    """One answer of each stage. Raises: ConfigError if one refuses; PeerLost if one does not answer."""
    for stage in range(len(names)):
        link.control(stage, message)
    answers: dict[int, Attached | Outdated] = {}
    while len(answers) < len(names):
        if (left_s := deadline_s - clock()) <= 0.0:
            missing = ", ".join(name for stage, name in enumerate(names) if stage not in answers)
            raise PeerLost(f"no answer from stage {missing}")
        for stage, answer in link.receive(left_s):
            if isinstance(answer, Refused):
                raise ConfigError(f"stage {names[stage]} refuses: {answer.reason}")
            if isinstance(answer, Attached) and answer.pipe_epoch != message.pipe_epoch:
                continue  # it was for an earlier one
            if isinstance(answer, Attached | Outdated):
                answers[stage] = answer
    return [answers[stage] for stage in range(len(names))]
