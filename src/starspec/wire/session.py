"""Why asynchrony cannot corrupt anything: one tag of the draft link, as a state machine without I/O.

Hub and target work at the same time and their messages cross on the wire. Three rules keep them right:

1. **Only the target moves a tag.** Each of its messages about a tag (`Open`, `Verdict`, `Close`) begins a new
   epoch, one higher than the last. The hub only answers: `Proposal` and `Reopen` carry the epoch they speak of.
2. **Old messages die before the table is asked.** The hub drops what is not newer than what it knows. The target
   drops a `Proposal` that was not drawn from exactly its present tokens (`epoch` and `prefix_len`), and a `Reopen`
   from before its last `Open`. A late, repeated or overtaken message therefore changes nothing.
3. **A hole is never papered over.** A hub that missed a verdict cannot know the tokens in it: it forgets the tag and
   says `Reopen`. `Open` carries all committed ids, so a tag is made whole by one message, on this hub or another.

What is left goes through TRANSITIONS, the same table for both sides. A message that the table forbids raises and
changes nothing. Nothing here decides a token: a drafter that is late, wrong or gone costs speed only.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, TypeVar

from starspec.config import SampleMethod
from starspec.errors import LocalProtocolError, PeerProtocolError
from starspec.ids import Epoch, Tag
from starspec.speculation.budget import NO_DRAFT
from starspec.wire.messages import Close, Open, Proposal, Reopen, Verdict

FromTarget = Open | Verdict | Close
FromHub = Proposal | Reopen
TagMessage = FromTarget | FromHub
M = TypeVar("M", bound=TagMessage)


class Role(StrEnum):
    """Which end of the link a session stands for."""

    TARGET = "target"
    HUB = "hub"


class TagState(StrEnum):
    """What both ends know of a tag; each in its own time."""

    ABSENT = "absent"  # the hub does not hold it: not yet, or no longer
    IDLE = "idle"  # the hub holds it and owes nothing
    DRAFTING = "drafting"  # the hub owes a proposal
    PROPOSED = "proposed"  # the proposal for this epoch is made
    CLOSED = "closed"  # finished for good


class Event(StrEnum):
    """A message as the table sees it; the value is its label in the diagram."""

    OPEN = "Open"
    OPEN_IDLE = "Open, 0 wanted"
    VERDICT = "Verdict"
    VERDICT_IDLE = "Verdict, 0 wanted"
    GAP = "Verdict that does not follow"
    CLOSE = "Close"
    PROPOSAL = "Proposal"
    REOPEN = "Reopen"


_FROM_ANY_HELD_STATE: Final[Mapping[Event, TagState]] = {
    Event.OPEN: TagState.DRAFTING,
    Event.OPEN_IDLE: TagState.IDLE,
    Event.VERDICT: TagState.DRAFTING,  # in DRAFTING: the deadline passed and the target went on without a proposal
    Event.VERDICT_IDLE: TagState.IDLE,
    Event.GAP: TagState.ABSENT,
    Event.CLOSE: TagState.CLOSED,
    Event.REOPEN: TagState.ABSENT,
}

TRANSITIONS: Final[Mapping[TagState, Mapping[Event, TagState]]] = {
    TagState.ABSENT: {
        Event.OPEN: TagState.DRAFTING,
        Event.OPEN_IDLE: TagState.IDLE,
        Event.GAP: TagState.ABSENT,
        Event.CLOSE: TagState.CLOSED,
        Event.REOPEN: TagState.ABSENT,
    },
    TagState.IDLE: _FROM_ANY_HELD_STATE,
    TagState.DRAFTING: {**_FROM_ANY_HELD_STATE, Event.PROPOSAL: TagState.PROPOSED},
    TagState.PROPOSED: _FROM_ANY_HELD_STATE,
    TagState.CLOSED: {},
}


class TagSession:
    """One end's view of one tag. Both ends run this class; `role` says which end it is.

    Args:
        role: the end that this object stands for.
        tag: the tag; never reused while the link lives.
    """

    def __init__(self, role: Role, tag: Tag) -> None:
        self.role = role
        self.tag = tag
        self.epoch = Epoch(0)  # of the newest message of the target that this end knows; 0 = none yet
        self.prefix_len = 0  # committed tokens at that epoch
        self.state = TagState.ABSENT
        self.wanted = NO_DRAFT  # what the target asked for in this epoch
        self.method: SampleMethod = "coupled"  # how it verifies
        self.num_stale = 0  # messages dropped by rule 2
        self._reopen_floor = Epoch(1)  # target: a Reopen from before this epoch is old news
        self._owes_reopen = False

    @property
    def next_epoch(self) -> Epoch:
        """The epoch of the target's next message."""
        return Epoch(self.epoch + 1)

    @property
    def is_held(self) -> bool:
        """Whether the hub holds the tag, as far as this end knows."""
        return self.state not in (TagState.ABSENT, TagState.CLOSED)

    @property
    def gap(self) -> Reopen | None:
        """Hub: the `Reopen` owed since a verdict did not follow the last known one; None when nothing is owed."""
        return Reopen(self.tag, self.epoch) if self._owes_reopen else None

    def is_followed_by(self, verdict: Verdict) -> bool:
        """Whether a verdict continues exactly what this end knows of a tag that is held."""
        return self.is_held and verdict.epoch == self.next_epoch and verdict.base_len == self.prefix_len

    def send(self, message: M) -> M:
        """Account for a message that this end is about to send.

        Returns: the message.
        Raises: LocalProtocolError if the protocol forbids it now; nothing has changed then.
        """
        try:
            if isinstance(message, FromTarget) != (self.role is Role.TARGET):
                raise LocalProtocolError(f"a {self.role} never sends {_name(message)}")
            self._check_epoch_sent(message)
            self._apply(message, self._event(message))
        except PeerProtocolError as error:
            raise LocalProtocolError(str(error)) from None
        return message

    def receive(self, message: TagMessage) -> TagMessage | None:
        """Account for a message from the peer.

        Returns: the message, or None if it is stale or (at the hub) does not follow: then `gap` is what to answer.
        Raises: PeerProtocolError if the protocol forbids it; nothing has changed then.
        """
        if isinstance(message, FromTarget) == (self.role is Role.TARGET):
            raise PeerProtocolError(f"a {self.role} was sent {_name(message)}, which only it may send")
        if message.tag != self.tag:
            raise PeerProtocolError(f"tag {self.tag} was handed a message of tag {message.tag}")
        if self._is_stale(message):
            self.num_stale += 1
            return None
        event = self._event(message)
        self._apply(message, event)
        return None if event is Event.GAP else message

    def take_if_sound(self, message: TagMessage) -> bool:
        """As `receive`, where a message that breaks the protocol is no worse than a stale one: it changes nothing.

        Returns: whether it was taken in.
        """
        try:
            return self.receive(message) is not None
        except PeerProtocolError:
            return False

    def is_answered_by(self, message: FromHub) -> bool:
        """Target: whether a proposal speaks of what the hub was told last, be it sound or not."""
        return isinstance(message, Proposal) and message.epoch == self.epoch

    def lose(self) -> None:
        """The link is gone, and whatever the hub held with it: only `Open` or `Close` can follow."""
        if self.state is not TagState.CLOSED:
            self.state = TagState.ABSENT
            self._reopen_floor = self.next_epoch
            self._owes_reopen = False

    def _check_epoch_sent(self, message: TagMessage) -> None:
        expected = self.next_epoch if self.role is Role.TARGET else self.epoch
        if message.tag != self.tag or message.epoch != expected:
            given = f"{_name(message)} of tag {message.tag} and epoch {message.epoch}"
            raise LocalProtocolError(f"{given} sent where tag {self.tag} has epoch {expected}")
        if isinstance(message, Proposal) and message.prefix_len != self.prefix_len:
            raise LocalProtocolError(f"proposal from {message.prefix_len} tokens, committed are {self.prefix_len}")
        if isinstance(message, Verdict) and self.is_held and message.base_len != self.prefix_len:
            raise LocalProtocolError(f"verdict on {message.base_len} tokens, committed are {self.prefix_len}")

    def _is_stale(self, message: TagMessage) -> bool:
        match message:
            case Proposal(epoch=epoch, prefix_len=prefix_len):
                is_answered = self.state is TagState.PROPOSED or self._reopen_floor > self.epoch
                is_elsewhere = is_answered or prefix_len != self.prefix_len
                return epoch < self.epoch or (epoch == self.epoch and is_elsewhere)
            case Reopen(epoch=epoch):
                return epoch < self._reopen_floor
            case _:
                return message.epoch <= self.epoch

    def _event(self, message: TagMessage) -> Event:
        match message:
            case Open(num_draft_tokens=wanted):
                return Event.OPEN if wanted else Event.OPEN_IDLE
            case Verdict(num_draft_tokens=wanted):
                if not self.is_followed_by(message) and self.state is not TagState.CLOSED:
                    return Event.GAP
                return Event.VERDICT if wanted else Event.VERDICT_IDLE
            case Close():
                return Event.CLOSE
            case Proposal():
                return Event.PROPOSAL
            case Reopen():
                return Event.REOPEN

    def _apply(self, message: TagMessage, event: Event) -> None:
        """Check `message` against the table and the bounds, then take it in. Raises: PeerProtocolError."""
        following = TRANSITIONS[self.state].get(event)
        if following is None:
            raise PeerProtocolError(f"{event} is not allowed while tag {self.tag} is {self.state}")
        if event is Event.GAP and self.role is Role.TARGET:
            raise LocalProtocolError(f"tag {self.tag} is {self.state}: the hub needs Open before a verdict")
        if isinstance(message, FromHub) and message.epoch > self.epoch:
            raise PeerProtocolError(f"{event} of epoch {message.epoch}, but tag {self.tag} is at {self.epoch}")
        if isinstance(message, Proposal):
            self._check_size(message)
            if message.drawn and self.method != "rejection":  # they would be believed
                raise PeerProtocolError("a proposal with probabilities, where none were wanted")
        self.state = following
        self._owes_reopen = event is Event.GAP
        match message:
            case Open():
                self.epoch, self.prefix_len = message.epoch, len(message.token_ids)
                self._reopen_floor, self.wanted = message.epoch, message.budget
                self.method = message.method
            case Verdict():
                self.epoch, self.prefix_len = message.epoch, message.base_len + len(message.token_ids)
                self.wanted = message.budget
            case Close():
                self.epoch = self._reopen_floor = message.epoch
            case Reopen():
                self._reopen_floor = self.next_epoch

    def _check_size(self, proposal: Proposal) -> None:
        """Raises: PeerProtocolError for more nodes or more depth than was asked for: there may be no room for them."""
        num_nodes = len(proposal.token_ids)
        if num_nodes > self.wanted.num_draft_tokens:
            wanted = self.wanted.num_draft_tokens
            raise PeerProtocolError(f"{num_nodes} draft tokens proposed, {wanted} wanted")
        depth = num_nodes if proposal.parents is None else max(proposal.tree.depths, default=0)
        if depth > self.wanted.num_steps:
            raise PeerProtocolError(f"a proposal {depth} tokens deep, {self.wanted.num_steps} steps wanted")


def _name(message: TagMessage) -> str:
    return type(message).__name__
