"""How a coordinator makes a pipe of its stages: it attaches them all, and checks that they are one model."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from starspec.config.stages import HiddenDtype
from starspec.errors import ConfigError, PeerLost
from starspec.ids import PipeEpoch, TargetId
from starspec.models.layers import LayerRange, check_ranges
from starspec.stages.link import PipeLink
from starspec.wire.messages import PROTOCOL_VERSION, Attach, Attached, Beat, Detach, Gap, Outdated, Refused
from starspec.wire.stage_session import highest_epoch

BEATS_IN_LEASE: Final = 4  # while a stage has not answered
MAX_RAISES: Final = 8  # of the pipe epoch: one is enough, unless others attach the same stages
ASK_AGAIN_S: Final = 0.1  # a stage that was asked is not asked again sooner, whatever it says


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


def attach(
    link: PipeLink,
    names: Sequence[str],
    target_id: TargetId,
    *,
    lease_s: float,
    timeout_s: float,
    clock: Callable[[], float],
    hidden_dtype: HiddenDtype = "model",
) -> Pipe:
    """Begin a pipe epoch, higher than all that the stages have known.

    Args:
        names: endpoints of the stages, in the order of their layers. Each is told the one behind it.
        lease_s: stages whose coordinator is silent for longer leave the pipe.
        timeout_s: within which all must answer.
        hidden_dtype: of hidden states on their way.
    Raises: ConfigError if a stage refuses, knows epochs that cannot be, or the stages are not one model; PeerLost if
        one does not answer. Then those that have answered are told that they are free.
    """
    deadline_s, epoch, misled_before = clock() + timeout_s, PipeEpoch(1), -1
    for _ in range(1 + MAX_RAISES):
        nexts = (*names[1:], "")
        messages = [Attach(PROTOCOL_VERSION, target_id, epoch, lease_s, each, hidden_dtype) for each in nexts]
        try:
            answers = _ask(link, names, messages, deadline_s, clock)
            newest = max((_known_to(*pair) for pair in zip(names, answers, strict=True)), default=PipeEpoch(0))
            _check_distinct(names, answers)
            if not newest:
                stages = tuple(each for each in answers if isinstance(each, Attached))
                pipe = Pipe(tuple(names), stages, epoch, lease_s, target_id, hidden_dtype)
                place = misled(stages)
                if place is None:
                    return pipe
                if place == misled_before:  # one that started again meanwhile is known by its new name now
                    raise ConfigError(why_misled(names, stages, place))
                misled_before = place
        except (ConfigError, PeerLost):
            detach(link, len(names), epoch)
            raise
        epoch = PipeEpoch(max(newest, epoch) + 1)
    detach(link, len(names), epoch)
    raise PeerLost(f"the stages know a newer pipe epoch each time, {MAX_RAISES} times: do several targets attach them?")


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


def _check_distinct(names: Sequence[str], answers: Sequence[Attached | Outdated]) -> None:
    """Raises: ConfigError if two names lead to one process."""
    named: dict[str, str] = {}
    for name, each in zip(names, answers, strict=True):
        other = named.setdefault(each.stage_id, name)
        if other != name:
            raise ConfigError(f"{other} and {name} are the same stage: list it once in --stages")


def _known_to(name: str, answer: Attached | Outdated) -> PipeEpoch:
    """The epoch of an Outdated; 0 = it is none. Raises: ConfigError if no honest stage knows this epoch."""
    if not isinstance(answer, Outdated):
        return PipeEpoch(0)
    if answer.pipe_epoch > highest_epoch(time.time()):
        raise ConfigError(f"stage {name} says that it knows pipe epoch {answer.pipe_epoch}, which cannot be")
    return answer.pipe_epoch


def detach(link: PipeLink, num_stages: int, epoch: PipeEpoch) -> None:
    """Tell all stages that can be told that they are free."""
    for stage in range(num_stages):
        link.control(stage, Detach(epoch))


def _ask(
    link: PipeLink, names: Sequence[str], messages: Sequence[Attach], deadline_s: float, clock: Callable[[], float]
) -> list[Attached | Outdated]:
    """One answer of each stage. Those that have answered keep their leases meanwhile.

    A stage that says that it is not in the pipe has restarted, and is asked again.

    Raises: ConfigError if one refuses; PeerLost if one does not answer.
    """
    for stage, message in enumerate(messages):
        link.control(stage, message)
    answers: dict[int, Attached | Outdated] = {}
    asked_s = dict.fromkeys(range(len(names)), clock())
    beat_s = messages[0].lease_s / BEATS_IN_LEASE
    next_beat_s = clock() + beat_s
    while len(answers) < len(names):
        now = clock()
        if now >= deadline_s:
            missing = ", ".join(name for stage, name in enumerate(names) if stage not in answers)
            raise PeerLost(f"no answer from stage {missing}")
        if now >= next_beat_s:
            next_beat_s = now + beat_s
            for stage, message in enumerate(messages):
                link.control(stage, Beat(message.pipe_epoch, now))
        for stage, answer in link.receive(min(deadline_s, next_beat_s) - now):
            if stage >= len(names):
                continue  # a spare, which is asked for nothing yet
            match answer:
                case Refused(reason=reason):
                    raise ConfigError(f"stage {names[stage]} refuses: {reason}")
                case Gap(pipe_epoch=epoch) if epoch == messages[stage].pipe_epoch:
                    is_soon = clock() - asked_s[stage] < ASK_AGAIN_S
                    if not (is_soon or isinstance(answers.get(stage), Outdated)):
                        answers.pop(stage, None)
                        asked_s[stage] = clock()
                        link.control(stage, messages[stage])
                case Attached(pipe_epoch=epoch) if epoch == messages[stage].pipe_epoch:
                    answers[stage] = answer
                case Outdated():
                    answers[stage] = answer
    return [answers[stage] for stage in range(len(names))]
