"""The coordinator of a pipe: a Verifier whose windows travel through stages.

If a stage is gone, the pipe is down: launches go nowhere, until all positions are attached again (`membership.py`).
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import structlog

from starspec.errors import ConfigError, LocalProtocolError
from starspec.log_limit import LogLimit
from starspec.models.runner import ModelInfo
from starspec.policy.pipe_depth import PipeTimes, Traversed
from starspec.stages.account import PipeAccount, possible
from starspec.stages.frames import Frame, heard
from starspec.stages.landings import Asked, LandingCheck
from starspec.stages.link import PipeLink
from starspec.stages.member import MAX_FAULTS, USUAL_TIMES, StageTimes
from starspec.stages.membership import Membership
from starspec.stages.mirror import MirroredRows
from starspec.stages.pipe import Pipe
from starspec.stats import PipeStats
from starspec.tracing import Tracer, flow_id
from starspec.windows.verifier import Landed, Lost, Ticket
from starspec.windows.window import Window
from starspec.wire.codec import MAX_TRAVERSAL_BYTES, encode, size_of
from starspec.wire.messages import (
    Alive,
    JudgeOf,
    Judges,
    Landing,
    Retract,
    RowLaw,
    StageWork,
    Traversal,
    WindowHead,
)
from starspec.wire.stage_news import FromStage

CHANGES_WAIT_S: Final = 1.0  # leases and frees travel alone if no launch takes them along
STALLED: Final = 5  # times `seen_within_s`, and two round trips: so long nothing may land, and nothing move
MAX_BUSY_S: Final = 600.0  # so long nothing may land, although stages say that they compute or that something arrives

log = structlog.get_logger()


class _Launch(NamedTuple):
    number: int
    ticket: Ticket | None  # None: nothing but leases and frees
    rows: tuple[int, ...]
    num_tokens: int
    asked: tuple[Asked, ...]
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
        depth: as for Verifier; None = as many rounds as fill the pipe, as measured.
        clock: seconds.
        max_tokens: as for Verifier.
        spares: names of processes that may take the place of a stage; the link counts them behind the stages.
        times: how long to wait.
        trace: records traversals, if given.
    """

    def __init__(
        self,
        link: PipeLink,
        pipe: Pipe,
        info: ModelInfo,
        *,
        depth: int | None,
        clock: Callable[[], float],
        max_tokens: int | None = None,
        spares: Sequence[str] = (),
        times: StageTimes = USUAL_TIMES,
        trace: Tracer | None = None,
    ) -> None:
        self.info = info
        self.max_tokens = max_tokens
        self.cache = MirroredRows(pipe.num_rows, pipe.max_len, pipe.num_cache_bytes)
        self.num_losses = 0  # of the pipe
        self.traversals = PipeTimes(len(pipe.stages))
        self._depth = depth
        self._link = link
        self._clock = clock
        self._log_limit = LogLimit(clock)
        self._times = times
        self._trace = trace
        self._target_id = pipe.target_id
        self._account = PipeAccount(len(pipe.stages))
        self._members = Membership(pipe, spares, times, clock())
        self._check = LandingCheck(info.vocab_size, [(each.start, each.end) for each in pipe.stages])
        self._tickets = itertools.count()
        self._news: list[Lost] = []
        self._is_down = False  # it was noted that the pipe is
        self._why_down: str | None = None  # the last time
        self._has_ended = False  # the loss was told as one that ends all requests
        self._is_woken = False  # the last wait ended for something else than a stage
        self._begin()

    @property
    def depth(self) -> int:
        if not self._members.is_up or self._is_full:
            return 0
        return self.traversals.num_rounds if self._depth is None else self._depth

    @property
    def _is_full(self) -> bool:
        """Whether a stage that pauses might not keep a chunk and a round more than what is in flight (`inbox.py`)."""
        return self.max_tokens is not None and sum(each.num_tokens for each in self._in_flight) > self.max_tokens // 2

    def num_windows(self, num_running: int, num_wanted: int) -> int:
        """As Verifier. A given depth is shared by the sequences."""
        return num_wanted if self._depth is None else max(1, self._depth // max(1, num_running))

    @property
    def refusal(self) -> str | None:
        return self._members.reason if self._members.has_given_up else None

    @property
    def pipe(self) -> PipeStats:
        """As Verifier."""
        return self._account.of(self._members, self.depth, self.num_in_flight, self.num_losses)

    @property
    def num_in_flight(self) -> int:
        """Launches that have not landed."""
        return len(self._in_flight)

    def launch(self, windows: Sequence[Window], feature_layers: Sequence[int] = ()) -> Ticket:
        """As Verifier. While the pipe is down, what is launched is lost.

        Raises: ConfigError if features or scores are wanted.
        """
        if feature_layers:
            raise ConfigError("the stages of a target send no features: choose a draft that needs none")
        if any(each.scoring or (each.judge and each.judge.law.num_node_tops is not None) for each in windows):
            raise ConfigError("the stages of a target send no log-probabilities of prompts and drafts")
        for each in windows:
            self.cache.check_fits(each.segment.row, len(each.segment.token_ids))
        heads = [self.cache.launch(each.segment) for each in windows]
        ticket = Ticket(next(self._tickets))
        if not self._members.is_up:
            return ticket
        told = [
            JudgeOf.of(index, each.judge.prefix_len, each.segment.token_ids[0], each.judge.tree, self._law(each, lease))
            for index, (each, lease) in enumerate(zip(windows, (head.lease for head in heads), strict=True))
            if each.judge is not None
        ]
        asked = tuple(
            Asked(head.row, head.lease, each.segment.token_ids[0], each.judge)
            for each, head in zip(windows, heads, strict=True)
            if each.judge is not None
        )
        self._send(ticket, heads, Judges(told), asked)
        return ticket

    def poll(self, timeout_s: float) -> Sequence[Landed | Lost]:
        """As Verifier."""
        end_s = self._clock() + timeout_s
        while True:
            self._keep_up()
            left_s = max(0.0, end_s - self._clock())
            landed = self._receive(min(left_s, self._times.beat_s))
            if landed or self._news or self._is_woken or self._clock() >= end_s:
                break
        if landed:
            return landed
        news, self._news = self._news, []
        return news

    def close(self) -> None:
        """Free all rows of all stages, and end the connections."""
        self._detach()
        self._link.close()

    def _detach(self) -> None:
        for member, message in self._members.end():
            self._link.control(member, message)

    def _begin(self) -> None:
        """A pipe epoch begins: all rows are empty, and nothing is in flight."""
        self._epoch = self._members.pipe_epoch
        self._numbers = itertools.count(1)
        self._in_flight: deque[_Launch] = deque()
        self._ruled: dict[int, int] = {}  # row -> the lease whose law the last stage knows
        self._check.start_over()
        self._launched_s = self._moved_s = self._landed_s = self._clock()

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

    def _send(self, ticket: Ticket | None, heads: list[WindowHead], told: Judges, asked: tuple[Asked, ...]) -> None:
        self._send_retracted()
        self._launched_s = self._clock()
        rows, num_tokens = tuple(each.row for each in heads), sum(each.num_tokens for each in heads)
        launch = _Launch(next(self._numbers), ticket, rows, num_tokens, asked, self._launched_s)
        traversal = Traversal(self._epoch, launch.number, self.cache.take_changes(), heads)
        if not self._in_flight:
            self._moved_s = self._landed_s = self._launched_s
        self._in_flight.append(launch)
        try:
            self._link.send(Frame(traversal, encode(told, MAX_TRAVERSAL_BYTES), b"").parts, self._members.chain[0])
        except LocalProtocolError as error:  # the stages would miss this number
            self._members.lose(str(error), self._launched_s)
            raise

    def _send_retracted(self) -> None:
        """Tell the stages which windows in flight they need not compute."""
        flying = {row for launch in self._in_flight for row in launch.rows}
        for each in self.cache.take_retracted():
            if each.row in flying:
                for member in self._members.chain:
                    self._link.control(member, Retract(self._epoch, *each))

    def _keep_up(self) -> None:
        """Send what does not wait for a launch."""
        now = self._clock()
        for member, message in self._members.due(now):
            self._link.control(member, message)
        if not self._members.is_up:
            return
        self._send_retracted()
        is_late = bool(self._in_flight and self._in_flight[-1].ticket is not None)
        is_late = is_late and now - max(self._moved_s, self._launched_s) >= self._times.seen_within_s
        if is_late or (self.cache.has_changes and now - self._launched_s >= CHANGES_WAIT_S):
            self._send(None, [], Judges([]), ())  # if the last traversal was lost, this one does not follow

    def _receive(self, timeout_s: float) -> list[Landed]:
        """Take in what has come, and see who is gone."""
        asked_s = self._clock()
        messages = self._link.receive(timeout_s)
        now = self._clock()
        self._is_woken = not messages and now < asked_s + timeout_s
        landed = [self._hear(member, message, now) for member, message in messages]
        if self._in_flight and self._members.is_up:
            self._look_for_stall(now)
        is_up_again = self._members.judge(now)
        for why in self._members.left_out():
            self._log_limit.log(log.warning, "a stage cannot take a place", why=why)
        if is_up_again:
            self._come_up()
        elif not (self._members.is_up or self._is_down):
            self._go_down()
        found = [each for each in landed if each is not None]
        if self._members.has_given_up and not (self._has_ended or found):
            self._give_up()
        return found

    def _look_for_stall(self, now: float) -> None:
        """Nobody waits for ever, whatever stages say."""
        members, idle_s, waited_s = self._members, now - self._moved_s, now - self._landed_s
        if idle_s >= STALLED * self._times.seen_within_s + 2 * members.round_trips_s:
            members.lose_idle(idle_s, now)
        elif waited_s >= MAX_BUSY_S:
            # all of them are faulty then: it cannot be waited for so long three times
            members.lose(f"nothing has landed for {waited_s:.0f} s", now, MAX_FAULTS * members.chain)

    def _hear(self, member: int, message: FromStage, now: float) -> Landed | None:
        self._members.hear(member, message, now)
        is_in_chain = self._members.is_up and member in self._members.chain
        if isinstance(message, Alive) and message.is_busy and is_in_chain and message.pipe_epoch == self._epoch:
            self._moved_s = now
        if not (isinstance(message, Landing) and message.pipe_epoch == self._epoch):
            return None
        if not is_in_chain:
            if self._members.is_up:
                self._members.blame([member], now)
            return None
        if (problem := self._why_not_asked(member, message)) is not None:
            what = f"stage {self._members.members[member].name} answered what it was not asked: {problem}"
            is_last = member == self._members.chain[-1]  # then any stage before may be the cause
            self._members.lose(what, now, self._members.chain if is_last else [member])
            return None
        return self._land(message, now)

    def _why_not_asked(self, member: int, landing: Landing) -> str | None:
        """Why this does not answer the oldest traversal; None if it does."""
        if member != self._members.chain[-1]:
            return "it is not the last one"
        if not self._in_flight or landing.number != self._in_flight[0].number:
            return f"traversal {landing.number}"
        return self._check.complaint(landing, self._in_flight[0].asked, self.cache.holds)

    def _land(self, message: Landing, now: float) -> Landed | None:
        """The oldest traversal has come to its end."""
        launch = self._in_flight.popleft()
        self._moved_s = self._landed_s = now
        traversal_s = now - launch.launched_s
        work = [possible(each, traversal_s) for each in message.work]
        self._account.note(work, size_of(message), launch.launched_s, now)
        took = self._note_traversal(launch, work, traversal_s)
        if self._trace is not None:
            flow = flow_id(self._target_id, self._epoch, launch.number)
            start_s, num = launch.launched_s, len(launch.rows)
            self._trace.slice("pipe", "traversal", start_s, now, flow_from=flow, windows=num)
        if launch.ticket is None:
            return None
        verdicts = [heard(each) for each in message.verdicts]
        return Landed(launch.ticket, verdicts, None, took=took if self._depth is None else None)

    def _note_traversal(self, launch: _Launch, work: Sequence[StageWork], traversal_s: float) -> Traversed | None:
        """Learn what rounds take. Chunks say nothing about that.

        Returns: what the traversal took; None = it says nothing.
        """
        if not launch.asked:
            return None
        links_s = traversal_s - sum(each.compute_s + each.wait_s for each in work)
        took = Traversed(max(0.0, links_s), tuple(each.compute_s for each in work))
        self.traversals.note(took)
        return took

    def _go_down(self) -> None:
        self._why_down = self._members.reason
        self._log_limit.log(log.warning, "the stages are attached anew", why=self._why_down)
        self._is_down = True
        self.num_losses += 1

    def _come_up(self) -> None:
        names = [self._members.members[each].name for each in self._members.chain]
        self._log_limit.log(log.info, "all stages are attached", stages=names)
        self.cache.start_over()
        self._is_down = self._has_ended = False
        self._begin()
        self._news.append(Lost(f"the stages were attached anew: {self._why_down}", True))

    def _give_up(self) -> None:
        reason = f"{self._members.reason}; no other stage took its place within {self._times.wait_s:g} s"
        self._log_limit.log(log.error, "requests end: a stage is gone", why=reason)
        self._has_ended = True
        self._detach()
        self._in_flight.clear()
        self.cache.start_over()
        self._news.append(Lost(reason, False))
