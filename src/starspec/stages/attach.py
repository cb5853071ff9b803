"""How a coordinator makes a pipe of its stages at the start: it attaches them all, and raises what is wrong."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import structlog

from starspec.config.stages import HiddenDtype
from starspec.errors import ConfigError, PeerLost
from starspec.ids import PipeEpoch, StageId, TargetId
from starspec.stages.link import PipeLink
from starspec.stages.pipe import Pipe, misled, same_stage, why_misled
from starspec.wire.messages import (
    PROTOCOL_VERSION,
    Alive,
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
from starspec.wire.stage_news import FromStage
from starspec.wire.stage_session import highest_epoch

BEATS_IN_LEASE: Final = 4  # while a stage has not answered
MAX_RAISES: Final = 8  # of the pipe epoch: one is enough, unless others attach the same stages
ASK_AGAIN_S: Final = 0.1  # a stage that was asked is not asked again sooner, whatever it says
SPARES_S: Final = 1.0  # so much longer than the stages may spares take to say who they are, before the target goes on
SLOW_S: Final = 5.0  # until the log says what is waited for

log = structlog.get_logger()


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
    slow_s: float = SLOW_S,
) -> Pipe:
    """Begin a pipe epoch, higher than all that the stages have known.

    Args:
        names: endpoints of the stages, in the order of their layers. Each is told the one behind it.
        lease_s: stages whose coordinator is silent for longer leave the pipe.
        timeout_s: within which all must answer.
        hidden_dtype: of hidden states on their way.
        spares: endpoints of spares, which need not be there. They are not attached.
        slow_s: after which the log says what is waited for.
    Raises: ConfigError if a stage refuses, knows epochs that cannot be, or the stages are not one model, or if two
        names lead to one process; PeerLost if a stage does not answer, or does not reach the next one. Then those that
        have answered are told that they are free.
    """
    deadline_s, epoch, misled_before = clock() + timeout_s, PipeEpoch(1), -1
    if spares:
        _check_spares(link, names, spares, deadline_s, clock)
    for _ in range(1 + MAX_RAISES):
        nexts = (*names[1:], "")
        messages = [Attach(PROTOCOL_VERSION, target_id, epoch, lease_s, each, hidden_dtype) for each in nexts]
        try:
            answers = _ask(link, names, messages, deadline_s, slow_s, clock)
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
    link: PipeLink,
    names: Sequence[str],
    messages: Sequence[Attach],
    deadline_s: float,
    slow_s: float,
    clock: Callable[[], float],
) -> list[Attached | Outdated]:
    """One answer of each stage. Those that have answered keep their leases meanwhile.

    Raises: ConfigError if one refuses; PeerLost if one does not answer.
    """
    asking = _Asking(link, names, messages, clock)
    started_s, is_told, beat_s = clock(), False, messages[0].lease_s / BEATS_IN_LEASE
    next_beat_s = started_s + beat_s
    while len(asking.answers) < len(names):
        now = clock()
        if now >= deadline_s:
            raise PeerLost(asking.why_waiting())
        if now - started_s >= slow_s and not is_told:
            is_told = True
            log.warning("waiting for stages", why=asking.why_waiting())
        if now >= next_beat_s:
            next_beat_s = now + beat_s
            for stage, message in enumerate(messages):
                link.control(stage, Beat(message.pipe_epoch, now))
        for stage, answer in link.receive(min(deadline_s, next_beat_s) - now):
            if stage < len(names):  # the others are spares, which are asked for nothing yet
                asking.hear(stage, answer)
    return [asking.answers[stage] for stage in range(len(names))]


class _Asking:
    """Stages that are asked to attach. Effects: each is sent its message."""

    def __init__(
        self, link: PipeLink, names: Sequence[str], messages: Sequence[Attach], clock: Callable[[], float]
    ) -> None:
        self.answers: dict[int, Attached | Outdated] = {}
        self._link, self._names, self._messages, self._clock = link, names, messages, clock
        self._alive: set[int] = set()  # those that have answered beats
        self._asked_s = dict.fromkeys(range(len(names)), clock())
        for stage, message in enumerate(messages):
            link.control(stage, message)

    def hear(self, stage: int, answer: FromStage) -> None:
        """Note what a stage says. One that is not in the pipe has restarted, and is asked again.

        Raises: ConfigError if it refuses.
        """
        asked = self._messages[stage]
        match answer:
            case Refused(reason=reason):
                raise ConfigError(f"stage {self._names[stage]} refuses: {reason}")
            case Gap(pipe_epoch=epoch) if epoch == asked.pipe_epoch:
                is_soon = self._clock() - self._asked_s[stage] < ASK_AGAIN_S
                if not (is_soon or isinstance(self.answers.get(stage), Outdated)):
                    self.answers.pop(stage, None)
                    self._asked_s[stage] = self._clock()
                    self._link.control(stage, asked)
            case Attached(pipe_epoch=epoch) if epoch == asked.pipe_epoch:
                self.answers[stage] = answer
            case Outdated():
                self.answers[stage] = answer
            case Alive(pipe_epoch=epoch) if epoch == asked.pipe_epoch:
                self._alive.add(stage)

    def why_waiting(self) -> str:
        """Which stage has not answered, or cannot reach the next one: until then it answers beats, and nothing else."""
        missing = [stage for stage in range(len(self._names)) if stage not in self.answers]
        silent = [stage for stage in missing if stage not in self._alive]
        if silent or missing[0] == len(self._names) - 1:
            return f"no answer from stage {', '.join(self._names[stage] for stage in silent or missing)}"
        near, far = self._names[missing[0]], self._names[missing[0] + 1]
        return f"stage {near} does not reach the one behind it: can its machine connect to {far}, or to its --next?"
