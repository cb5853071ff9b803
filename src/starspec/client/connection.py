"""A target's connection to one hub: its tags, whether the hub is alive, how long to wait, and what was measured.

The connection does not decide which messages the hub gets. The target's listener decides that:
`engine/remote_drafts.py` for sequences of our engine, `integrations/vllm/hub_client.py` for requests of vLLM. A target
may have several connections.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, assert_never

import structlog

from starspec.client.tag import HubTag, TokenSource
from starspec.config import SampleMethod
from starspec.ids import Tag
from starspec.log_limit import LogLimit
from starspec.policy.deadline import Deadline, RecentRounds, Round
from starspec.policy.hub_account import HubAccount
from starspec.policy.length.hub_lessons import HubLessons
from starspec.policy.liveness import PING_INTERVAL_S, HubLiveness
from starspec.policy.patience import Patience, note_deadline_passed
from starspec.policy.reopening import HubRoom
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.budget import DraftBudget
from starspec.stats import HubState
from starspec.wire.link import FAULT_INTERVAL_S
from starspec.wire.messages import Close, Fault, Goodbye, HubToTarget, Ping, Pong, Proposal, Reopen, TargetToHub
from starspec.wire.session import Role, TagSession
from starspec.wire.transports.base import TargetTransport

log = structlog.get_logger()


@dataclass(slots=True)
class HubRecord:
    """What this target has learnt about one hub.

    The connection begins a new record when it loses the hub. Apart from that, only `forget_rounds` forgets anything.
    """

    patience: Patience = field(default_factory=Patience)  # with the hub as a whole
    rounds: RecentRounds = field(default_factory=RecentRounds)
    lessons: HubLessons = field(default_factory=HubLessons)  # for a target that weighs drafts by their cost
    room: HubRoom = field(default_factory=HubRoom)  # for a target whose tags wait together for room

    def forget_rounds(self) -> None:
        """Forget what rounds took: a pause begins, and after it the hub may be faster."""
        self.rounds = RecentRounds()
        self.lessons.forget_rounds()


class Waited(NamedTuple):
    """How a wait ended."""

    late: Sequence[HubTag] = ()  # awaited tags without an answer
    round: Round | None = None  # None = the wait does not tell how long drafting takes


class HubListener(Protocol):
    """What the target does when messages of its hub arrive, or when the hub is found."""

    def take(self, tag: HubTag, message: Proposal | Reopen) -> None:
        """The hub has answered the tag's last message, or it has dropped the tag."""
        ...

    def drop(self, tag: HubTag | None) -> None:
        """A message of the hub was dropped.

        Args:
            tag: the tag that waited for this message, if the message was its answer and broke the protocol; else None.
        """
        ...

    def find(self) -> None:
        """The hub was found, for the first time or again. It holds no tag: it needs an `Open` for each."""
        ...


class HubConnection:
    """Connects a target with one hub. Not safe to use from two threads at once.

    Args:
        deadline: the rule for the longest wait.
        clock: seconds, monotonic.
        account: of what the hub costs and saves, which the target keeps; None = the hub may cost anything.
    """

    def __init__(
        self,
        transport: TargetTransport,
        deadline: Deadline,
        listener: HubListener,
        clock: Callable[[], float],
        account: HubAccount | None = None,
    ) -> None:
        self._transport = transport
        self._deadline = deadline
        self._listener = listener
        self._clock = clock
        self._liveness = HubLiveness(clock())
        self._num_connects = 0
        self._tag_numbers = itertools.count(1)
        self._ping_numbers = itertools.count(1)
        self._next_ping_s = 0.0
        self._complaints = LogLimit(clock, num_lines=1, interval_s=FAULT_INTERVAL_S)
        self._account = account
        self.tags: dict[Tag, HubTag] = {}
        self.record = HubRecord()
        self.plain_tokens_per_s = 0.0  # sent with each ping: the target's speed without drafts; 0 = not known
        self.is_waiting = False  # `wait` is running, so a message is handled as soon as it arrives

    @property
    def is_lost(self) -> bool:
        """Whether it is useless to send anything to the hub, or to wait for it."""
        return self._liveness.is_lost

    @property
    def state(self) -> HubState:
        return self._liveness.state

    @property
    def state_s(self) -> float:
        """Seconds in this state."""
        return self._liveness.state_s(self._clock())

    @property
    def num_found(self) -> int:
        """How often the hub was found; each time it may be another one."""
        return self._liveness.num_found

    @property
    def lost_s(self) -> float:
        """Seconds without a usable hub so far."""
        return self._liveness.lost_s(self._clock())

    @property
    def is_pausing(self) -> bool:
        """Whether to ask for no drafts for now: the hub is late again and again, or is not worth its time."""
        return self.record.patience.is_pausing or self._is_resting

    @property
    def may_open(self) -> bool:
        """Whether tags that the hub does not hold may be opened now."""
        return not self.is_lost and self.record.room.may_ask(self._clock()) and not self._is_resting

    @property
    def _is_resting(self) -> bool:
        return self._account is not None and self._account.is_resting(self._clock())

    @property
    def is_prefilling(self) -> bool:
        """Whether the hub was sent more tokens than a round commits, and has not answered yet."""
        return any(tag.is_opening or tag.is_catching_up for tag in self.tags.values())

    def limited(self, budget: DraftBudget) -> DraftBudget:
        """The budget with at most as many nodes as the hub's `Welcome` allows."""
        welcome = self._transport.welcome
        return budget if welcome is None else budget.limited(num_draft_tokens=welcome.max_draft_tokens)

    # ---------------------------------------------------------------- tags

    def new_tag(
        self,
        tokens: TokenSource,
        sampling: SamplingSpec,
        method: SampleMethod = "coupled",
        vocab_size: int | None = None,
    ) -> HubTag:
        """Make a tag, which the hub does not know yet. Args: as HubTag."""
        tag = HubTag(TagSession(Role.TARGET, Tag(next(self._tag_numbers))), tokens, sampling, method, vocab_size)
        self.tags[tag.session.tag] = tag
        return tag

    def close_tag(self, tag: HubTag) -> Close | None:
        """The sequence has ended: drop its tag. Returns: the message for the hub, as `HubTag.close`."""
        del self.tags[tag.session.tag]
        return tag.close()

    # ---------------------------------------------------------------- messages

    def send(self, messages: Sequence[TargetToHub]) -> None:
        """As TargetTransport."""
        self._transport.send(messages)

    def receive(self, timeout_s: float) -> bool:
        """Take in the messages that have come, or wait up to `timeout_s` for the first. Effects: calls the listener.

        Returns: whether there was any message.
        """
        messages = self._transport.receive(timeout_s)
        for message in messages:
            self._handle(message)
        self.notice_connection()
        return bool(messages)

    def notice_connection(self) -> None:
        """Lose the hub if its link has ended or if it hangs; find it if a new link has begun. Receives nothing.

        Effects: calls the listener.
        """
        if not self._transport.is_connected:
            if not self.is_lost:
                self._lose()
        elif self._transport.num_connects != self._num_connects:
            self._num_connects = self._transport.num_connects
            if not self.is_lost:
                self._lose()
            self._find()
        elif self._liveness.hangs(self._clock()):
            self._lose()

    def ping_if_due(self) -> None:
        """Show the hub that this target lives, and find a hub that is back."""
        now = self._clock()
        if self._transport.is_connected and now >= self._next_ping_s:
            self._ping(now)

    # ---------------------------------------------------------------- waiting

    def wait(self, awaited: Sequence[HubTag]) -> Waited:
        """Receive until all awaited tags are answered, the deadline has passed, or the hub is lost.

        This does not wait while a miss of any tag is excused: the hub is known to prefill. It also does not wait while
        the target rests. A hub that was silent for the whole wait is pinged, and is lost if it does not answer the
        ping. The hub is not pinged if all late tags are being opened: it may be prefilling.

        Effects: calls the listener.
        """
        if not awaited:
            return Waited()
        if self._is_resting or any(tag.is_excused for tag in self.tags.values()):
            for tag in awaited:
                tag.stop_waiting()
            return Waited()
        started_s = self._clock()
        deadline_s = started_s + self._deadline.seconds([tag.num_wanted for tag in awaited], self.record.rounds)
        is_heard = self._receive_until(deadline_s, awaited)
        late = [tag for tag in awaited if tag.is_awaited]
        if late:
            self._note_late(late, is_heard=is_heard, are_all_late=len(late) == len(awaited))
        round_ = _round_of(awaited, late, self._clock() - started_s)
        if round_ is not None:
            self.record.rounds.add(round_)
        if self.record.patience.is_pausing:
            self.record.forget_rounds()
        return Waited(late, round_)

    def _receive_until(self, deadline_s: float, awaited: Sequence[HubTag]) -> bool:
        """Returns: whether there was any message."""
        is_heard = False
        self.is_waiting = True
        while not self.is_lost and any(tag.is_awaited for tag in awaited):
            left_s = deadline_s - self._clock()
            if left_s <= 0:
                break
            is_heard |= self.receive(left_s)
        self.is_waiting = False
        return is_heard

    def _note_late(self, late: Sequence[HubTag], *, is_heard: bool, are_all_late: bool) -> None:
        now = self._clock()
        note_deadline_passed(late, self.tags.values(), self.record.patience, now, are_all_late=are_all_late)
        if not is_heard and not all(tag.is_opening for tag in late):
            self._liveness.suspect(now)
            self._ping(now)

    def _ping(self, now: float) -> None:
        self._next_ping_s = now + PING_INTERVAL_S
        self._transport.send([Ping(next(self._ping_numbers), self.plain_tokens_per_s)])

    # ---------------------------------------------------------------- events

    def _handle(self, message: HubToTarget) -> None:
        if self.is_lost:
            if self._liveness.may_be_found(self._clock()):
                self._find()
            return
        self._liveness.note_message()
        match message:
            case Proposal() | Reopen():
                self._take(message)
            case Fault(reason=reason):
                self._complain(reason)
            case Pong() | Goodbye():
                pass  # nothing to do; after a Goodbye the transport ends the connection
            case _:
                assert_never(message)

    def _take(self, message: Proposal | Reopen) -> None:
        tag = self.tags.get(message.tag)
        if tag is not None and tag.session.take_if_sound(message):
            if isinstance(message, Reopen):
                tag.reopening.note_reopen(self._clock())
            else:
                tag.reopening.note_proposal(self._clock())
            self._listener.take(tag, message)
            return
        is_refused = tag is not None and tag.session.is_answered_by(message) and tag.refuse(self._clock())
        self._listener.drop(tag if is_refused else None)

    def _complain(self, reason: str) -> None:
        """Log a Fault of the hub, now and then."""
        self._complaints.log(log.warning, "the hub dropped a message of ours", reason=reason)

    def _lose(self) -> None:
        """Forget the hub: everything about it is in `record` and in the tags."""
        self._liveness.lose(self._clock())
        self.record = HubRecord()
        for tag in self.tags.values():
            tag.forget_hub()

    def _find(self) -> None:
        self._liveness.find(self._clock())
        self._listener.find()


def _round_of(awaited: Sequence[HubTag], late: Sequence[HubTag], seconds: float) -> Round | None:
    """Returns: what this wait shows about the time that drafting takes. None if the hub prefilled, or drafted nothing.

    A hub may end a draft early, so a proposal counts with its own length.
    """
    if late and all(tag.is_opening for tag in late):
        return None
    if not late and not any(tag.num_proposed for tag in awaited):
        return None
    return Round([tag.num_proposed or tag.num_wanted for tag in awaited], seconds)
