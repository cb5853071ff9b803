"""The coordinator of a pipe: a Verifier whose windows travel through stages."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from starspec.errors import ConfigError, LocalProtocolError, PeerLost
from starspec.models.runner import ModelInfo
from starspec.policy.pipe_depth import PipeDepth
from starspec.stages.attach import Pipe, detach
from starspec.stages.frames import Frame, heard
from starspec.stages.link import PipeLink
from starspec.stages.mirror import MirroredRows
from starspec.windows.verifier import Landed, Ticket
from starspec.windows.window import Judge, Window
from starspec.wire.codec import MAX_TRAVERSAL_BYTES, encode
from starspec.wire.messages import (
    Beat,
    CoordinatorToStage,
    Gap,
    JudgeOf,
    Judges,
    Landing,
    Retract,
    RowLaw,
    StageToCoordinator,
    Traversal,
)

CHANGES_WAIT_S: Final = 1.0  # leases and frees travel alone if no launch takes them along
BEATS_A_LEASE: Final = 4


class _Launch(NamedTuple):
    number: int
    ticket: Ticket | None  # None: nothing but leases and frees
    rows: tuple[int, ...]
    judges: tuple[Judge, ...]
    launched_s: float


class RemoteVerifier:
    """Implements Verifier over stages.

    A second window of a row may be launched before the first one has landed, if the first is a chain: the caller
    commits it whole, and takes back what was refused with `cache.truncate`. The verdict of a window that stood on
    refused tokens has no tokens.

    Args:
        link: to the stages.
        pipe: the attached stages.
        info: of the model.
        depth: as for Verifier; None = follows what traversals take.
        clock: seconds.
    """

    def __init__(
        self, link: PipeLink, pipe: Pipe, info: ModelInfo, *, depth: int | None, clock: Callable[[], float]
    ) -> None:
        self.info = info
        self.cache = MirroredRows(pipe.num_rows, pipe.max_len, pipe.num_cache_bytes)
        self.compute_s = 0.0  # of all stages, for all that has landed
        self._link = link
        self._pipe = pipe
        self._clock = clock
        self._numbers, self._tickets = itertools.count(1), itertools.count()
        self._in_flight: deque[_Launch] = deque()
        self._ruled: dict[int, int] = {}  # row -> the lease whose law the last stage knows
        self._launched_s = self._beat_s = clock()
        self._lost: str | None = None
        self._depth = PipeDepth(depth)

    @property
    def depth(self) -> int:
        """As Verifier."""
        return self._depth.value

    @property
    def num_in_flight(self) -> int:
        """Launches that have not landed."""
        return len(self._in_flight)

    def launch(self, windows: Sequence[Window], feature_layers: Sequence[int] = ()) -> Ticket:
        """As Verifier. Raises: PeerLost if a stage is gone; ConfigError if features or scores are wanted."""
        if feature_layers:
            raise ConfigError("the stages of a target send no features: choose a draft that needs none")
        if any(each.scoring or (each.judge and each.judge.law.num_node_tops is not None) for each in windows):
            raise ConfigError("the stages of a target send no log-probabilities of prompts and drafts")
        self._check_alive()
        for each in windows:
            self.cache.check_fits(each.segment.row, len(each.segment.token_ids))
        heads = [self.cache.launch(each.segment) for each in windows]
        told = [
            JudgeOf.of(index, each.judge.prefix_len, each.segment.token_ids[0], each.judge.tree, self._law(each, lease))
            for index, (each, lease) in enumerate(zip(windows, (head.lease for head in heads), strict=True))
            if each.judge is not None
        ]
        ticket = Ticket(next(self._tickets))
        judges = tuple(each.judge for each in windows if each.judge is not None)
        launch = _Launch(next(self._numbers), ticket, tuple(each.row for each in heads), judges, self._clock())
        self._send(launch, Traversal(self._pipe.epoch, launch.number, self.cache.take_changes(), heads), Judges(told))
        return ticket

    def poll(self, timeout_s: float) -> list[Landed]:
        """As Verifier. Raises: PeerLost if a stage is gone; then nothing lands any more."""
        self._check_alive()
        self._keep_up()
        landed = [self._hear(stage, message) for stage, message in self._link.receive(timeout_s)]
        self._check_alive()
        return [each for each in landed if each is not None]

    def close(self) -> None:
        """Free all rows of all stages, and end the connections."""
        detach(self._link, len(self._pipe.stages), self._pipe.epoch)
        self._link.close()

    def _law(self, window: Window, lease: int) -> RowLaw | None:
        """The sequence's law, if the last stage does not know it."""
        row, judge = window.segment.row, window.judge
        if judge is None or self._ruled.get(row) == lease:
            return None
        self._ruled[row] = lease
        law, token_ids = judge.law, list[int]()
        if law.sampling.adjusts_logits:
            token_ids = [*self.cache.tokens_of(row), window.segment.token_ids[0]]
        return RowLaw(law.sampling, law.relaxation, law.num_logprobs, judge.counts.prompt_len, token_ids)

    def _send(self, launch: _Launch, traversal: Traversal, judges: Judges) -> None:
        self._send_retracted()
        self._in_flight.append(launch)
        self._launched_s = self._clock()
        try:
            self._link.send(Frame(traversal, encode(judges, MAX_TRAVERSAL_BYTES), b"").parts)
        except LocalProtocolError as error:  # the stages would miss this number
            self._lost = str(error)
            raise

    def _send_retracted(self) -> None:
        """Tell the stages which windows in flight they need not compute."""
        flying = {row for launch in self._in_flight for row in launch.rows}
        for each in self.cache.take_retracted():
            if each.row in flying:
                self._tell_all(Retract(self._pipe.epoch, *each))

    def _keep_up(self) -> None:
        """Send what does not wait for a launch."""
        now = self._clock()
        self._send_retracted()
        if self.cache.has_changes and now - self._launched_s >= CHANGES_WAIT_S:
            launch = _Launch(next(self._numbers), None, (), (), now)
            self._send(launch, Traversal(self._pipe.epoch, launch.number, self.cache.take_changes(), []), Judges([]))
        if now - self._beat_s >= self._pipe.lease_s / BEATS_A_LEASE:
            self._beat_s = now
            self._tell_all(Beat(self._pipe.epoch))

    def _tell_all(self, message: CoordinatorToStage) -> None:
        for stage in range(len(self._pipe.stages)):
            self._link.control(stage, message)

    def _hear(self, stage: int, message: StageToCoordinator) -> Landed | None:
        if not isinstance(message, Gap | Landing) or message.pipe_epoch != self._pipe.epoch:
            return None
        if isinstance(message, Gap):
            self._lost = f"stage {self._pipe.names[stage]} broke off: {message.reason}"
            return None
        is_last = stage == len(self._pipe.stages) - 1
        if not (is_last and self._in_flight and _fits(message, self._in_flight[0])):
            self._lost = f"stage {self._pipe.names[stage]} answered what it was not asked"
            return None
        launch = self._in_flight.popleft()
        self.compute_s += message.compute_s
        if message.verdicts:
            self._depth.add(self._clock() - launch.launched_s, message.slowest_s)
        if launch.ticket is None:
            return None
        return Landed(launch.ticket, [heard(each) for each in message.verdicts], None)

    def _check_alive(self) -> None:
        if self._lost is not None:
            raise PeerLost(self._lost)


def _fits(landing: Landing, launch: _Launch) -> bool:
    """Whether a landing is a possible answer to a launch."""
    if landing.number != launch.number or len(landing.verdicts) != len(launch.judges):
        return False
    pairs = zip(landing.verdicts, launch.judges, strict=True)
    return all(max(verdict.nodes, default=-1) < judge.tree.num_draft_tokens for verdict, judge in pairs)
