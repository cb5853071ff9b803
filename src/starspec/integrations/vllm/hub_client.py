"""The hub's side of a vLLM server: a tag for each request, one message out and one wait a step.

It is not `engine/remote_drafts.py`: that one follows sequences of our own engine, their laws and hidden states, over
rounds that it times itself. Both keep to `wire/session.py` and `client/connection.py`, which hold what must not go
wrong. vLLM's own tokens are in front of every call, so nothing has to be kept for the hub: what it has not heard of a
request is what lies behind the tag's prefix, and a message that tells it may as well go out a step later.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from math import inf
from typing import Final, NamedTuple

import structlog

from starspec.client.connection import HubConnection
from starspec.ids import Tag
from starspec.integrations.vllm.deadline import Deadline
from starspec.integrations.vllm.draft import Draft, Wanted
from starspec.integrations.vllm.hub_tag import HubTag
from starspec.integrations.vllm.round_cost import Round
from starspec.integrations.vllm.rows import KnownRequest
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.budget import MAX_FORWARDED, DraftBudget
from starspec.wire.codec import fits_a_frame
from starspec.wire.messages import Close, Open, Proposal, Reopen, TargetToHub, TreeShape, Verdict
from starspec.wire.session import Role, TagSession
from starspec.wire.transports.base import TargetTransport

log = structlog.get_logger()

LIKELIEST: Final = SamplingSpec(temperature=0.0)  # what to propose: vLLM tells a proposer no sampling parameters


class ToldTexts(NamedTuple):
    """What the hub was told of more than a round commits, texts above all: tokens, since the client began."""

    num_tokens: int = 0
    num_read: int = 0  # of these: it drafted behind them,
    num_refused: int = 0  # or would not
    num_opened: int = 0  # how often it was told of a text, which the step then waited for


class HubClient:
    """Proposals from a hub, over any transport. Not safe to call from two threads at once.

    Args:
        vocab_size: as the handshake told it; the hub refuses other token ids, and with one all that came beside it.
        p_min: of every draft that is asked for, as `DraftBudget` has it.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        transport: TargetTransport,
        deadline: Deadline,
        vocab_size: int,
        p_min: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._transport = transport
        self._deadline = deadline
        self._vocab_size = vocab_size
        self._p_min = p_min
        self._clock = clock
        self._hub = HubConnection(transport, self, clock)
        self._tags: dict[KnownRequest, HubTag] = {}
        self._by_number: dict[Tag, HubTag] = {}
        self._tag_numbers = itertools.count(1)
        self.round: Round | None = None  # of this step; None = no sample
        self.told = ToldTexts()

    @property
    def is_here(self) -> bool:
        """Whether the hub can be spoken to."""
        return not self._hub.is_lost

    @property
    def is_serving(self) -> bool:
        """Whether the next step's proposals can be expected: a hub too slow for everybody is left alone for a while."""
        return self.is_here and not self._hub.patience.is_pausing

    @property
    def num_found(self) -> int:
        """How often the hub was found; each time it may be another."""
        return self._hub.num_found

    @property
    def num_tags(self) -> int:
        return len(self._tags)

    @property
    def is_reading(self) -> bool:
        """Whether the hub was told of more than a round commits, and has not answered to it."""
        return any(tag.is_opening or tag.is_catching_up for tag in self._tags.values())

    def holds(self, request: KnownRequest) -> bool:
        """Whether the hub has a request's text, as far as is known, or is reading it."""
        tag = self._tags.get(request)
        return tag is not None and tag.session.is_held

    def reader_of(self, request: KnownRequest) -> int | None:
        """This hub's number, as `num_found` counts, if it has a request's text; None if not."""
        return self.num_found if self.holds(request) else None

    def has_read(self, request: KnownRequest) -> bool:
        """Whether this hub has read nearly all of a request, as far as is known, or is at it."""
        return self.holds(request) or request.read_by == self.num_found

    def most(self, request: KnownRequest) -> int:
        """Draft tokens that the hub may give a request in the next step."""
        tag = self._tags.get(request)
        if tag is not None and (tag.patience.is_pausing or self._clock() < tag.open_at_s):
            return 0
        return self._limited(MAX_FORWARDED)

    def draft(self, wanted: Sequence[Wanted]) -> dict[KnownRequest, Draft] | None:
        """Tell the hub what was committed, and wait for its proposals: one multipart out, one deadline's wait.

        Returns: the draft of each request whose proposal came, was sound and fits its present tokens; None if the
            hub does not serve in this step.
        """
        self.round = None
        if not self._transport.is_connected:  # connecting is for `tend`
            self._hub.notice_connection()
            return None
        self._hub.receive(0.0)
        if self._hub.is_lost:
            return None
        if self._hub.patience.is_pausing:
            self._deadline.forget_rounds()  # after the pause it may be faster
            self._hub.patience.pass_step(self._clock())
            for each_tag in self._tags.values():
                each_tag.has_to_catch_up = True
            return None
        messages = [message for each in wanted for message in self._tell(each)]
        if messages:
            self._transport.send(messages)
        self._await([tag for each in wanted if (tag := self._tags.get(each.request)) and tag.is_awaited])
        if self._hub.is_lost:
            return None
        return {each.request: draft for each in wanted if (draft := self._draft_of(each)) is not None}

    def close(self, requests: Sequence[KnownRequest]) -> None:
        """Free the tags of requests that are gone. A hub that fell silent may hold them still, so it is told too."""
        messages: list[TargetToHub] = []
        for request in requests:
            tag = self._tags.pop(request, None)
            if tag is None:
                continue
            del self._by_number[tag.session.tag]
            messages.append(tag.session.send(Close(tag=tag.session.tag, epoch=tag.session.next_epoch)))
        if messages:
            self._transport.send(messages)

    def tend(self) -> None:
        """Connect, connect again, and read what has come. Beside the steps; never waits."""
        self._hub.receive(0.0)
        self._hub.ping_if_due()

    def shutdown(self) -> None:
        """Leave in good order; no call follows."""
        self._transport.close()

    # ---------------------------------------------------------------- out

    def _tell(self, wanted: Wanted) -> list[TargetToHub]:
        """What the hub has not heard of a request; nothing while it is not to draft for it."""
        tag = self._tags.get(wanted.request)
        if tag is None and wanted.num_draft_tokens:
            tag = HubTag(wanted.request, TagSession(Role.TARGET, Tag(next(self._tag_numbers))))
        if tag is not None and tag.is_unanswered and tag.reading.is_overdue(self._clock()):
            tag.request.read_by = self.reader_of(tag.request)  # most of it, if its answer alone was lost
            tag.give_up()
        if tag is None or tag.is_unanswered:
            return []
        if tag.draft():  # it came late, and is right so far
            return []
        tag.proposal, tag.is_behind, tag.is_excused = None, False, False
        if tag.patience.is_pausing:
            tag.patience.pass_step(self._clock())
            tag.has_to_catch_up = True
            return []
        num_tokens = tag.patience.fitting(self._limited(wanted.num_draft_tokens))
        if not num_tokens or self._clock() < tag.open_at_s:
            return []
        self._tags[wanted.request] = self._by_number[tag.session.tag] = tag
        is_told_first = tag.is_told_first
        num_tokens = 1 if is_told_first else num_tokens
        message = self._verdict(tag, num_tokens) if tag.session.is_held else self._open(tag, num_tokens)
        if not self._can_be_told(message):
            tag.open_at_s = inf  # such a request is decoded plainly to its end
            return []
        if is_told_first:
            tag.begin_catching_up(self._clock())
            self._note_told(tag, len(message.token_ids))
        elif not tag.session.is_held:
            self._note_opening(tag, len(message.token_ids))
        if not is_told_first:
            tag.is_awaited, tag.num_catch_ups = True, 0
        return [tag.session.send(message)]

    def _note_opening(self, tag: HubTag, num_tokens: int) -> None:
        tag.begin_opening(self._clock())
        if not self.has_read(tag.request):  # what was told before and not answered stays told
            self._note_told(tag, num_tokens)
        self.told = self.told._replace(num_opened=self.told.num_opened + 1)

    def _note_told(self, tag: HubTag, num_tokens: int) -> None:
        tag.num_told = num_tokens
        self.told = self.told._replace(num_tokens=self.told.num_tokens + num_tokens)

    def _open(self, tag: HubTag, num_tokens: int) -> Open:
        return Open(
            tag=tag.session.tag,
            epoch=tag.session.next_epoch,
            token_ids=tag.request.token_ids(),
            prompt_len=tag.request.prompt_len,
            sampling=LIKELIEST,
            num_draft_tokens=num_tokens,
            shape=self._shape(num_tokens),
        )

    def _verdict(self, tag: HubTag, num_tokens: int) -> Verdict:
        base_len = tag.session.prefix_len
        return Verdict(
            tag=tag.session.tag,
            epoch=tag.session.next_epoch,
            base_len=base_len,
            token_ids=tag.request.token_ids(base_len),
            num_draft_tokens=num_tokens,
            shape=self._shape(num_tokens),
        )

    def _shape(self, num_tokens: int) -> TreeShape | None:
        return TreeShape.of(DraftBudget.chain(num_tokens, self._p_min))

    def _can_be_told(self, message: Open | Verdict) -> bool:
        if not fits_a_frame(message):
            log.warning("a request is too long to be told to the hub", num_tokens=len(message.token_ids))
            return False
        return all(0 <= each < self._vocab_size for each in message.token_ids)

    def _limited(self, num_tokens: int) -> int:
        welcome = self._transport.welcome
        return num_tokens if welcome is None else min(num_tokens, welcome.max_draft_tokens)

    # ---------------------------------------------------------------- waiting

    def _await(self, awaited: list[HubTag]) -> None:
        """Wait for the hub, and learn from how long it took."""
        if not awaited:
            return
        asked_s = self._clock()
        has_to_read = self.is_reading  # a prompt holds up whoever asks meanwhile
        lengths = [tag.session.wanted.num_steps for tag in awaited]
        late = self._hub.wait(awaited, self._tags.values(), self._deadline.seconds(lengths))
        if late is None or (late and all(tag.is_opening for tag in late)):  # a prompt that is read is no sample
            return
        if not late and not any(tag.has_tokens for tag in awaited):  # nor is an answer for which nothing was drafted
            return
        round_ = Round([tag.num_layers for tag in awaited], self._clock() - asked_s)
        self._deadline.note_round(round_)
        self.round = None if has_to_read else round_

    def _draft_of(self, wanted: Wanted) -> Draft | None:
        """The rest of a late proposal is what is left of what was asked for, too."""
        tag = self._tags.get(wanted.request)
        token_ids = [] if tag is None else tag.draft()[: wanted.num_draft_tokens]
        if tag is None or tag.proposal is None or not token_ids:
            return None
        num_asked = tag.session.wanted.num_steps - (len(wanted.request) - tag.proposal.prefix_len)
        tag.proposal = None
        self._note_in_time(tag)
        return Draft(token_ids, max(len(token_ids), min(num_asked, wanted.num_draft_tokens)))

    def _note_in_time(self, tag: HubTag) -> None:
        tag.patience.note_in_time()
        self._hub.patience.note_in_time()

    # ---------------------------------------------------------------- in

    def lose(self) -> None:
        """As HubListener: every tag is opened anew in the step that wants a draft of it, perhaps at another hub."""
        self._deadline.forget_rounds()
        for tag in self._tags.values():
            tag.give_up()
            tag.forget_delays()
            tag.proposal, tag.num_told = None, 0

    def find(self) -> None:
        """As HubListener: there is nothing to do before the next step."""

    def take(self, message: Proposal | Reopen) -> None:
        """As HubListener."""
        tag = self._by_number.get(message.tag)
        if tag is None:
            return
        if not tag.session.take_if_sound(message):
            self._refuse(message, tag)
            return
        if tag.is_awaited:
            self._hub.patience.note_in_time()
        if tag.is_opening or tag.is_catching_up:
            self._note_reading(tag, message)
        tag.is_catching_up = False
        tag.take_answer(self._clock(), is_hopeless=isinstance(message, Proposal) and message.is_hopeless)
        if isinstance(message, Proposal) and message.retry_after_s:
            tag.session.lose()
            tag.open_at_s = self._clock() + message.retry_after_s
        elif isinstance(message, Proposal):
            tag.proposal = message

    def _note_reading(self, tag: HubTag, message: Proposal | Reopen) -> None:
        if isinstance(message, Reopen) or message.is_hopeless or message.retry_after_s:
            self.told = self.told._replace(num_refused=self.told.num_refused + tag.num_told)
        else:
            self.told = self.told._replace(num_read=self.told.num_read + tag.num_told)
        tag.num_told = 0

    def _refuse(self, message: Proposal | Reopen, tag: HubTag) -> None:
        """What the protocol forbids changes nothing, but that no other answer is going to follow."""
        is_owed = tag.is_awaited or tag.is_opening or tag.is_behind or tag.is_catching_up
        if is_owed and tag.session.is_answered_by(message):
            tag.give_up()
            tag.patience.note_miss(self._clock())
