"""A target's connection to one hub: its tags, whether the hub is alive, how long to wait, and what was measured.

The connection does not decide which messages the hub gets. The target's listener decides that:
`engine/hub_tags.py` for sequences of our engine, `integrations/vllm/hub_client.py` for requests of vLLM. A target
may have several connections.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import assert_never

import structlog

from starspec.client.hub_record import HubRecord
from starspec.client.listener import HubListener
from starspec.client.tag import HubTag, TokenSource
from starspec.client.waited import Waited, round_of
from starspec.config import SampleMethod
from starspec.ids import Tag
from starspec.log_limit import LogLimit
from starspec.policy.deadline import Deadline
from starspec.policy.hub_account import HubAccount
from starspec.policy.liveness import PING_INTERVAL_S, HubLiveness
from starspec.policy.patience import note_deadline_passed
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.budget import MAX_FORWARDED
from starspec.stats import HubState
from starspec.wire.link import FAULT_INTERVAL_S
from starspec.wire.messages import Close, Fault, Goodbye, HubToTarget, Ping, Pong, Proposal, Reopen, TargetToHub
from starspec.wire.session import Role, TagSession
from starspec.wire.transports.base import TargetTransport

log = structlog.get_logger()


class HubConnection:
    """Connects a target with one hub. Not safe to use from two threads at once.

    Only the connection changes its state and its record. Others read them, and say by the methods what has happened.

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
        self._log_limit = LogLimit(clock)
        self._plain_tokens_per_s = 0.0  # sent with each ping; 0 = not known
        self._account = account
        self.tags: dict[Tag, HubTag] = {}
        self.record = HubRecord()
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

    @property
    def max_draft_tokens(self) -> int:
        """Nodes of a proposal, at most, as the hub's `Welcome` says."""
        welcome = self._transport.welcome
        return MAX_FORWARDED if welcome is None else min(MAX_FORWARDED, welcome.max_draft_tokens)

    # ---------------------------------------------------------------- what has happened

    def note_plain_speed(self, tokens_per_s: float) -> None:
        """The target decodes so fast without drafts; 0 = not known. The hub is told with each ping."""
        self._plain_tokens_per_s = tokens_per_s

    def end_paused_step(self) -> bool:
        """A step of the target begins or ends. If it is in a pause with this hub, the pause is one step shorter.

        Returns: whether the step is in a pause.
        """
        patience = self.record.patience
        if not patience.is_pausing:
            return False
        patience.note_paused_step(self._clock())
        return True

    def note_in_time(self) -> None:
        """The hub has answered in time, for one tag at least."""
        self.record.patience.note_in_time()

    def note_opening(self, tag: HubTag) -> None:
        """An `Open` of the tag is made, for a target whose tags wait together for room.

        Effects: no step waits for the answer if it may be another refusal.
        """
        room = self.record.room
        room.note_opening(self._clock())
        if room.is_full or self.is_pausing:
            tag.skip_wait()

    def note_to_prefill(self, tag: HubTag, num_tokens: int) -> None:
        """The hub is sent so many tokens to prefill. Its next answer about the tag says whether it did."""
        tag.note_prefill(num_tokens)
        self.record.lessons.note_sent(num_tokens)

    def note_prefilled(self, tag: HubTag, *, has_drafted: bool) -> None:
        """The hub has answered. Call it before the tag is told of the answer."""
        if tag.is_opening or tag.is_catching_up:
            self.record.lessons.note_answered(tag.end_prefill(), has_drafted=has_drafted)

    def note_room(self) -> None:
        """The hub has drafted for a tag that was just opened. For a target whose tags wait together for room."""
        self.record.room.note_room()

    def note_declined(self, retry_after_s: float) -> None:
        """The hub has no room, and says when to ask again. For a target whose tags wait together for room."""
        self.record.room.note_declined(self._clock(), retry_after_s)

    def note_unsendable(self, tag: HubTag) -> None:
        """`HubTag.ask` made no message. Effects: logs it, now and then."""
        event = "the hub cannot draft for a sequence: it is too long for a message, or has an unknown token id"
        self._log_limit.log(log.warning, event, num_tokens=len(tag.tokens))

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

    def holds_back(self, tag: HubTag) -> bool:
        """Whether a round should go without this tag's sequence, because its proposal may still come in time.

        For a target that has rounds in flight: it does not stand still for a proposal. This time counts as waited.
        """
        if (
            not tag.is_awaited
            or self.is_lost
            or self._is_resting
            or any(each.is_excused for each in self.tags.values())
        ):
            return False
        now = self._clock()
        return now - tag.hold_back(now) < self._deadline.seconds([tag.num_wanted], self.record.rounds)

    def wait(self, asked: Sequence[HubTag]) -> Waited:
        """Receive until all these tags are answered, the deadline has passed, or the hub is lost.

        This does not wait while a miss of any tag is excused: the hub is known to prefill. It also does not wait while
        the target rests. A hub that was silent for the whole wait is pinged, and is lost if it does not answer the
        ping. The hub is not pinged if all late tags are being opened: it may be prefilling.

        Args:
            asked: tags that were awaited when the step began. Some may have been answered since.
        Effects: calls the listener.
        """
        started_s = self._clock()
        awaited = [tag for tag in asked if tag.is_awaited]
        if awaited and (self._is_resting or any(tag.is_excused for tag in self.tags.values())):
            for tag in awaited:
                tag.stop_waiting()
            return Waited()
        held_s = [tag.held_back_s for tag in asked if tag.held_back_s is not None]
        late = self._wait_for(awaited, min(held_s, default=started_s)) if awaited else []
        is_telling = bool(asked) and not held_s
        round_ = round_of(asked, late, self._clock() - started_s) if is_telling else None
        if round_ is not None:
            self.record.rounds.add(round_)
        if self.record.patience.is_pausing:
            self.record.forget_rounds()
        return Waited(late, round_)

    def _wait_for(self, awaited: Sequence[HubTag], started_s: float) -> list[HubTag]:
        """Returns: those that are late."""
        deadline_s = started_s + self._deadline.seconds([tag.num_wanted for tag in awaited], self.record.rounds)
        is_heard = self._receive_until(deadline_s, awaited)
        late = [tag for tag in awaited if tag.is_awaited]
        if late:
            self._note_late(late, is_heard=is_heard, are_all_late=len(late) == len(awaited))
        return late

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
        self._transport.send([Ping(next(self._ping_numbers), self._plain_tokens_per_s)])

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
        if tag is None or not tag.take_if_sound(message, self._clock()):
            is_refused = tag is not None and tag.session.is_answered_by(message) and tag.refuse(self._clock())
            self._listener.dropped(tag if is_refused else None)
        elif isinstance(message, Reopen):
            self._listener.reopened(tag, message)
        elif message.retry_after_s:
            self._listener.declined(tag, message)
        else:
            self._listener.proposed(tag, message)

    def _complain(self, reason: str) -> None:
        """Log a Fault of the hub, now and then."""
        self._complaints.log(log.warning, "the hub dropped a message of ours", reason=reason)

    def _lose(self) -> None:
        """Forget the hub: everything about it is in `record` and in the tags."""
        self._liveness.lose(self._clock())
        self.record = self.record.after_loss()
        for tag in self.tags.values():
            tag.forget_hub()

    def _find(self) -> None:
        self._liveness.find(self._clock())
        self._listener.found()
