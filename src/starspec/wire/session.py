"""The protocol of one tag, as a state machine without I/O. It makes late and lost messages harmless.

A *tag* is one sequence that a target decodes with proposals from the hub. Target and hub work at the same time, so
their messages cross on the wire: a proposal can arrive after the target has committed other tokens. Three rules keep
the two ends consistent.

1. **Only the target moves a tag forward.** Each of its messages about the tag (`Open`, `Verdict`, `Close`) starts a
   new *epoch*, one higher than the last. The hub only answers. Its `Proposal` and `Reopen` name the epoch they answer.
2. **Stale messages are dropped.** The hub drops a message unless its epoch is newer than all before. The target
   drops a `Proposal` for another epoch or another committed length, and a `Reopen` that is older than its last `Open`.
   A late, repeated or reordered message therefore changes nothing.
3. **A gap is repaired by starting over.** A hub that missed a verdict does not know the tokens in it. It forgets the
   tag and answers `Reopen`. The target then sends `Open` with all committed token ids, to this hub or to another one.

Every other message goes through TRANSITIONS, one table for both ends. The usual path is

    ABSENT -- Open --> DRAFTING -- Proposal --> PROPOSED -- Verdict --> DRAFTING -- ... -- Close --> CLOSED

A message that the table forbids raises an error and changes nothing. Nothing here decides a token: a hub that is slow,
wrong or down can slow generation; it cannot change the output.

Each end keeps one `TagSession` for each tag, and passes every message through it:

    session = TagSession(Role.TARGET, tag)
    transport.send([session.send(Open(tag, session.next_epoch, token_ids, ...))])
    for message in transport.receive(timeout_s):
        if session.receive(message) is not None:
            ...  # a proposal for exactly the tokens that are committed now, or a request to reopen

The hub does the same with `Role.HUB`, and sends `session.gap` when a verdict did not follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, TypeVar

from starspec.config import SampleMethod
from starspec.errors import LocalProtocolError, PeerProtocolError
from starspec.ids import Epoch, Tag
from starspec.speculation.acceptance import RULES
from starspec.speculation.budget import NO_DRAFT
from starspec.wire.messages import Close, Open, Proposal, Reopen, Verdict

FromTarget = Open | Verdict | Close
FromHub = Proposal | Reopen
TagMessage = FromTarget | FromHub
M = TypeVar("M", bound=TagMessage)


class Role(StrEnum):
    """Which end of the link a TagSession belongs to."""

    TARGET = "target"
    HUB = "hub"


class TagState(StrEnum):
    """What one end knows about a tag. The two ends reach the same states at different times."""

    ABSENT = "absent"  # the hub does not hold the tag (yet, or any more)
    IDLE = "idle"  # the hub holds the tag and owes no proposal
    DRAFTING = "drafting"  # the hub owes a proposal
    PROPOSED = "proposed"  # the hub has sent the proposal for this epoch
    CLOSED = "closed"  # the sequence has ended


class Event(StrEnum):
    """A kind of message in the table. The value is its label in the diagram."""

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
    Event.VERDICT: TagState.DRAFTING,  # in DRAFTING: the deadline passed and the target decoded without a proposal
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
    """The state of one tag at one end. Target and hub run the same class.

    Args:
        role: the end that this object belongs to.
        tag: the tag; never reused while the link lives.
    """

    def __init__(self, role: Role, tag: Tag) -> None:
        self.role = role
        self.tag = tag
        self.epoch = Epoch(0)  # of the target's newest message that this end knows; 0 = none yet
        self.prefix_len = 0  # committed tokens at that epoch
        self.state = TagState.ABSENT
        self.wanted = NO_DRAFT  # the proposal that the target asked for in this epoch
        self.method: SampleMethod = "coupled"  # how the target verifies
        self.num_stale = 0  # messages dropped by rule 2
        self._reopen_floor = Epoch(1)  # target: a Reopen of an earlier epoch is stale
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
    def is_idle(self) -> bool:
        """Whether the hub holds the tag, and knows that no proposal is wanted."""
        return self.state is TagState.IDLE

    @property
    def gap(self) -> Reopen | None:
        """Hub: the `Reopen` to send because a verdict did not follow the last known one; None if nothing is owed."""
        return Reopen(self.tag, self.epoch) if self._owes_reopen else None

    def is_followed_by(self, verdict: Verdict) -> bool:
        """Whether the tag is held and the verdict starts exactly where this end's knowledge of it ends."""
        return self.is_held and verdict.epoch == self.next_epoch and verdict.base_len == self.prefix_len

    def send(self, message: M) -> M:
        """Record a message that this end is about to send.

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
        """Record a message from the peer.

        Returns: the message; None if it is stale or, at the hub, does not follow. Then `gap` is the answer to send.
        Raises: PeerProtocolError if the protocol forbids it; nothing has changed then.
        """
        if isinstance(message, FromTarget) == (self.role is Role.TARGET):
            raise PeerProtocolError(f"a {self.role} received {_name(message)}, which only a {self.role} may send")
        if message.tag != self.tag:
            raise PeerProtocolError(f"tag {self.tag} was handed a message of tag {message.tag}")
        if self._is_stale(message):
            self.num_stale += 1
            return None
        event = self._event(message)
        self._apply(message, event)
        return None if event is Event.GAP else message

    def take_if_sound(self, message: TagMessage) -> bool:
        """As `receive`, but drop a message that breaks the protocol instead of raising.

        Returns: whether the message was accepted.
        """
        try:
            return self.receive(message) is not None
        except PeerProtocolError:
            return False

    def is_answered_by(self, message: FromHub) -> bool:
        """Target: whether a message is a proposal for the current epoch, valid or not."""
        return isinstance(message, Proposal) and message.epoch == self.epoch

    def lose(self) -> None:
        """The link is lost, and the hub has forgotten the tag: only `Open` or `Close` can follow."""
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
        """Check `message` against the table and its bounds, then apply it. Raises: PeerProtocolError."""
        following = TRANSITIONS[self.state].get(event)
        if following is None:
            raise PeerProtocolError(f"{event} is not allowed while tag {self.tag} is {self.state}")
        if event is Event.GAP and self.role is Role.TARGET:
            raise LocalProtocolError(f"tag {self.tag} is {self.state}: the hub needs Open before a verdict")
        if isinstance(message, FromHub) and message.epoch > self.epoch:
            raise PeerProtocolError(f"{event} of epoch {message.epoch}, but tag {self.tag} is at {self.epoch}")
        if isinstance(message, Proposal):
            self._check_size(message)
            if message.drawn and not RULES[self.method].needs_drawn:  # the verification would trust the probabilities
                raise PeerProtocolError("a proposal with draft probabilities, which were not asked for")
        self.state = following
        self._owes_reopen = event is Event.GAP
        match message:
            case Open():
                self.epoch, self.prefix_len = message.epoch, message.num_tokens
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
        """Raises: PeerProtocolError if the proposal has more nodes or depth than the target asked for."""
        num_nodes = len(proposal.token_ids)
        if num_nodes > self.wanted.num_draft_tokens:
            wanted = self.wanted.num_draft_tokens
            raise PeerProtocolError(f"{num_nodes} draft tokens proposed, {wanted} wanted")
        depth = num_nodes if proposal.parents is None else max(proposal.tree.depths, default=0)
        if depth > self.wanted.num_steps:
            raise PeerProtocolError(f"a proposal {depth} tokens deep, {self.wanted.num_steps} steps wanted")


def _name(message: TagMessage) -> str:
    return type(message).__name__
