"""The hub's side of a vLLM server: a tag for each request, one message out and one wait a step.

vLLM's own tokens are there in each call, so nothing has to be kept for the hub. A request for which no draft is wanted
is not told to the hub. Its tokens are told when the next draft is wanted: all that lie behind the tag's prefix.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import structlog

from starspec.client.connection import HubConnection
from starspec.client.tag import HubTag
from starspec.integrations.vllm.draft import Draft, Wanted
from starspec.integrations.vllm.rows import KnownRequest
from starspec.policy.deadline import PayingDeadline, Round
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.budget import MAX_FORWARDED, DraftBudget
from starspec.wire.messages import Open, Proposal, Reopen, TargetToHub
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
        deadline: PayingDeadline,
        vocab_size: int,
        p_min: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._transport = transport
        self._vocab_size = vocab_size
        self._p_min = p_min
        self._clock = clock
        self._hub = HubConnection(transport, deadline, self, clock)
        self._tags: dict[KnownRequest, HubTag] = {}
        self.round: Round | None = None  # of this step; None = no sample
        self.told = ToldTexts()

    @property
    def is_here(self) -> bool:
        """Whether the hub can be spoken to."""
        return not self._hub.is_lost

    @property
    def is_serving(self) -> bool:
        """Whether the next step's proposals can be expected: a hub too slow for everybody is left alone for a while."""
        return self.is_here and not self._hub.record.patience.is_pausing

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
        return self._hub.is_prefilling

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
        return self._budget(MAX_FORWARDED).num_draft_tokens

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
        if self._hub.record.patience.is_pausing:
            self._hub.note_paused_step()
            for each_tag in self._tags.values():
                each_tag.has_to_catch_up = True
            return None
        messages = [message for each in wanted if (message := self._tell(each)) is not None]
        if messages:
            self._hub.send(messages)
        is_prefilling = self._hub.is_prefilling  # a prompt holds up whoever asks meanwhile
        waited = self._hub.wait([tag for each in wanted if (tag := self._tags.get(each.request)) and tag.is_awaited])
        self.round = None if is_prefilling else waited.round
        if self._hub.is_lost:
            return None
        return {each.request: draft for each in wanted if (draft := self._draft_of(each)) is not None}

    def close(self, requests: Sequence[KnownRequest]) -> None:
        """Free the tags of requests that are gone."""
        tags = [tag for request in requests if (tag := self._tags.pop(request, None)) is not None]
        messages = [message for tag in tags if (message := self._hub.close_tag(tag)) is not None]
        if messages:
            self._hub.send(messages)

    def tend(self) -> None:
        """Connect, connect again, and read what has come. Beside the steps; never waits."""
        self._hub.receive(0.0)
        self._hub.ping_if_due()

    def shutdown(self) -> None:
        """Leave in good order; no call follows."""
        self._transport.close()

    # ---------------------------------------------------------------- out

    def _tell(self, wanted: Wanted) -> TargetToHub | None:
        """What the hub has not heard of a request; nothing while it is not to draft for it."""
        tag, now = self._tags.get(wanted.request), self._clock()
        if tag is None and wanted.num_draft_tokens:
            tag = self._hub.new_tag(wanted.request, LIKELIEST, vocab_size=self._vocab_size)
            self._tags[wanted.request] = tag
        if tag is not None and tag.is_unanswered and tag.prefill_wait.is_overdue(now):
            wanted.request.read_by = self.reader_of(wanted.request)  # most of it, if its answer alone was lost
            tag.mark_absent()
        if tag is None or tag.is_unanswered:
            return None
        if self._rest_of(tag):  # it came late, and is right so far
            return None
        tag.drop_proposal()
        if tag.patience.is_pausing:
            tag.patience.note_paused_step(now)
            tag.has_to_catch_up = True
            return None
        budget = tag.limited(self._budget(wanted.num_draft_tokens))
        if not budget.num_draft_tokens or now < tag.open_at_s:
            return None
        return self._ask(tag, wanted.request, budget)

    def _ask(self, tag: HubTag, request: KnownRequest, budget: DraftBudget) -> TargetToHub | None:
        """A hub that is far behind drafts one token, so that its answer shows when it has caught up."""
        is_catch_up = tag.should_catch_up
        message = tag.ask(self._budget(1) if is_catch_up else budget, self._clock(), is_catch_up=is_catch_up)
        if message is None:
            log.warning("a request is too long to be told to the hub", num_tokens=len(request))
            return None
        if is_catch_up:
            self._note_told(tag, len(message.token_ids))
        elif isinstance(message, Open):
            self._note_opening(tag, request, len(message.token_ids))
        return message

    def _note_opening(self, tag: HubTag, request: KnownRequest, num_tokens: int) -> None:
        if request.read_by != self.num_found:  # what was told before and not answered stays told
            self._note_told(tag, num_tokens)
        self.told = self.told._replace(num_opened=self.told.num_opened + 1)

    def _note_told(self, tag: HubTag, num_tokens: int) -> None:
        tag.num_told = num_tokens
        self.told = self.told._replace(num_tokens=self.told.num_tokens + num_tokens)

    def _budget(self, num_tokens: int) -> DraftBudget:
        return self._hub.limited(DraftBudget.chain(num_tokens, self._p_min))

    # ---------------------------------------------------------------- in

    def _rest_of(self, tag: HubTag) -> tuple[int, ...]:
        """What is left of a tag's last proposal behind the committed tokens. vLLM verifies chains only."""
        if tag.proposal is None or not tag.proposal.tree.is_chain:
            return ()
        return tag.draft().token_ids

    def _draft_of(self, wanted: Wanted) -> Draft | None:
        """The rest of a late proposal is what is left of what was asked for, too."""
        tag = self._tags.get(wanted.request)
        token_ids = [] if tag is None else list(self._rest_of(tag)[: wanted.num_draft_tokens])
        if tag is None or tag.proposal is None or not token_ids:
            return None
        num_asked = tag.session.wanted.num_steps - (len(wanted.request) - tag.proposal.prefix_len)
        tag.proposal = None
        tag.patience.note_in_time()
        self._hub.record.patience.note_in_time()
        return Draft(token_ids, max(len(token_ids), min(num_asked, wanted.num_draft_tokens)))

    def take(self, tag: HubTag, message: Proposal | Reopen) -> None:
        """As HubListener."""
        now = self._clock()
        if tag.is_awaited:
            self._hub.record.patience.note_in_time()
        if tag.is_opening or tag.is_catching_up:
            self._note_prefilled(tag, message)
        tag.note_answer(now, is_hopeless=isinstance(message, Proposal) and message.is_hopeless)
        if isinstance(message, Reopen):
            return
        if message.retry_after_s:
            tag.session.lose()
            tag.open_at_s = now + message.retry_after_s
        else:
            tag.proposal = message

    def _note_prefilled(self, tag: HubTag, message: Proposal | Reopen) -> None:
        if isinstance(message, Reopen) or message.is_hopeless or message.retry_after_s:
            self.told = self.told._replace(num_refused=self.told.num_refused + tag.num_told)
        else:
            self.told = self.told._replace(num_read=self.told.num_read + tag.num_told)
        tag.num_told = 0

    def drop(self, tag: HubTag | None) -> None:
        """As HubListener: after an answer that breaks the protocol, the request is told anew."""
        if tag is not None:
            tag.mark_absent()

    def find(self) -> None:
        """As HubListener: requests are told to the hub in the step that wants drafts for them."""
