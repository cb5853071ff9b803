"""How a coordinator makes a pipe of its stages at the start: it attaches them all, and raises what is wrong."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from starspec.config.stages import HiddenDtype
from starspec.errors import ConfigError, PeerLost
from starspec.ids import PipeEpoch, StageId, TargetId
from starspec.stages.link import PipeLink
from starspec.stages.pipe import Pipe, misled, same_stage, why_misled
from starspec.wire.messages import (
    PROTOCOL_VERSION,
    Attach,
    Attached,
    Beat,
    Detach,
    Gap,
    Identify,
    Identity,
    Outdated,
    Refused,
)
from starspec.wire.stage_session import highest_epoch

BEATS_IN_LEASE: Final = 4  # while a stage has not answered
MAX_RAISES: Final = 8  # of the pipe epoch: one is enough, unless others attach the same stages
ASK_AGAIN_S: Final = 0.1  # a stage that was asked is not asked again sooner, whatever it says
SPARES_S: Final = 1.0  # so much longer than the stages may spares take to say who they are, before the target goes on


def attach(
    link: PipeLink,
    names: Sequence[str],
    target_id: TargetId,
    *,
    lease_s: float,
    timeout_s: float,
    clock: Callable[[], float],
    hidden_dtype: HiddenDtype = "model",
    spares: Sequence[str] = (),
) -> Pipe:
    """Begin a pipe epoch, higher than all that the stages have known.

    Args:
        names: endpoints of the stages, in the order of their layers. Each is told the one behind it.
        lease_s: stages whose coordinator is silent for longer leave the pipe.
        timeout_s: within which all must answer.
        hidden_dtype: of hidden states on their way.
        spares: endpoints of spares, which need not be there. They are not attached.
    Raises: ConfigError if a stage refuses, knows epochs that cannot be, or the stages are not one model, or if two
        names lead to one process; PeerLost if a stage does not answer. Then those that have answered are told that they
        are free.
    """
    deadline_s, epoch, misled_before = clock() + timeout_s, PipeEpoch(1), -1
    if spares:
        _check_spares(link, names, spares, deadline_s, clock)
    for _ in range(1 + MAX_RAISES):
        nexts = (*names[1:], "")
        messages = [Attach(PROTOCOL_VERSION, target_id, epoch, lease_s, each, hidden_dtype) for each in nexts]
        try:
            answers = _ask(link, names, messages, deadline_s, clock)
            newest = max((_known_to(*pair) for pair in zip(names, answers, strict=True)), default=PipeEpoch(0))
            _check_distinct(zip(names, (each.stage_id for each in answers), strict=True))
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


def _check_distinct(known: Iterable[tuple[str, StageId]]) -> None:
    """Args: known: names, and who answers there. Raises: ConfigError if two names lead to one process."""
    named: dict[StageId, str] = {}
    for name, stage_id in known:
        other = named.setdefault(stage_id, name)
        if other != name:
            raise ConfigError(same_stage(other, name))


def _check_spares(
    link: PipeLink, names: Sequence[str], spares: Sequence[str], deadline_s: float, clock: Callable[[], float]
) -> None:
    """Ask stages and spares who they are. A spare that is not there is asked when it is (`membership.py`).

    One that is a stage under another name answers about when the stage does.

    Raises: ConfigError if two names lead to one process.
    """
    every, known = (*names, *spares), dict[int, StageId]()
    started_s = ask_s = now = clock()
    until_s = deadline_s
    while len(known) < len(every) and now < until_s:
        if now >= ask_s:
            ask_s = now + ASK_AGAIN_S
            for index in set(range(len(every))) - set(known):
                link.control(index, Identify())
        for index, answer in link.receive(min(ask_s, until_s) - now):
            if isinstance(answer, Identity):
                known[index] = answer.stage_id
        now = clock()
        if until_s == deadline_s and set(range(len(names))) <= set(known):
            until_s = min(deadline_s, now + (now - started_s) + SPARES_S)
    _check_distinct((every[index], known[index]) for index in sorted(known))


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
