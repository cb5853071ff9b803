"""A vLLM server's hub: a tag for each request, and one message and one wait in each step.

A message about a request is sent only when a draft is wanted for it. It has all tokens that the hub does not have yet.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from starspec.client.connection import HubConnection
from starspec.client.tag import HubTag
from starspec.integrations.vllm.draft import Draft, DraftRequest
from starspec.integrations.vllm.rows import KnownRequest
from starspec.integrations.vllm.settings import VllmSettings
from starspec.policy.deadline import StepTimeDeadline
from starspec.policy.hub_account import HubAccount
from starspec.policy.length.hub_lessons import HubLessons
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.budget import DraftBudget
from starspec.wire.messages import Open, Proposal, Reopen, TargetToHub
from starspec.wire.transports.base import TargetTransport

LIKELIEST: Final = SamplingSpec(temperature=0.0)  # what the hub proposes; vLLM tells a proposer no sampling parameters


def account_of(settings: VllmSettings) -> HubAccount | None:
    """The hub's account of a server with these settings; None if it keeps none.

    Lengths that adapt weigh a hub's cost themselves, and an operator who sets the longest wait says by it what a hub
    may cost. Fixed lengths are what the operator asked for: the account only decides whether the hub is asked at all.
    """
    return None if settings.adaptive or settings.deadline_ms is not None else HubAccount()


class HubClient:
    """Proposals from a hub, over any transport. Not safe to call from two threads at once.

    Args:
        vocab_size: as in the handshake. The hub drops a whole multipart that has another token id.
        p_min: of each draft, as in `DraftBudget`.
        clock: seconds, monotonic.
        account: as HubConnection.
    """

    def __init__(
        self,
        transport: TargetTransport,
        deadline: StepTimeDeadline,
        vocab_size: int,
        p_min: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        account: HubAccount | None = None,
    ) -> None:
        self.account = account
        self._transport = transport
        self._vocab_size = vocab_size
        self._p_min = p_min
        self._clock = clock
        self._hub = HubConnection(transport, deadline, self, clock, account)
        self._tags: dict[KnownRequest, HubTag] = {}

    @property
    def is_here(self) -> bool:
        """Whether messages can be sent to the hub."""
        return not self._hub.is_lost

    @property
    def is_serving(self) -> bool:
        """Whether the next step can get proposals. During a pause with a slow hub, or a rest from it, it cannot."""
        return self.is_here and not self._hub.is_pausing

    @property
    def num_found(self) -> int:
        """As HubConnection."""
        return self._hub.num_found

    @property
    def num_tags(self) -> int:
        return len(self._tags)

    @property
    def lessons(self) -> HubLessons:
        """What was learnt about this hub. After the hub was lost, this is another object."""
        return self._hub.record.lessons

    @property
    def is_prefilling(self) -> bool:
        """As HubConnection."""
        return self._hub.is_prefilling

    def holds(self, request: KnownRequest) -> bool:
        """Whether the hub has prefilled a request, as far as is known, or is prefilling it."""
        tag = self._tags.get(request)
        return tag is not None and tag.session.is_held

    def holder_of(self, request: KnownRequest) -> int | None:
        """The number of this hub, as `num_found` counts, if it holds the request; None if not."""
        return self.num_found if self.holds(request) else None

    def has_prefilled(self, request: KnownRequest) -> bool:
        """Whether this hub has prefilled nearly all of a request, as far as is known, or is prefilling it."""
        return self.holds(request) or request.prefilled_by == self.num_found

    def max_draft_tokens(self, request: KnownRequest) -> int:
        """Draft tokens that the hub may give a request in the next step."""
        tag = self._tags.get(request)
        if tag is not None and (tag.patience.is_pausing or not tag.reopening.is_due(self._clock())):
            return 0
        return self._hub.max_draft_tokens

    def draft(self, wanted: Sequence[DraftRequest]) -> dict[KnownRequest, Draft] | None:
        """Send the committed tokens to the hub, and wait for its proposals: one multipart, one wait until the deadline.

        Returns: the draft of each request whose proposal came and begins with its present tokens; None if the hub
            does not serve in this step.
        """
        if not self._transport.is_connected:  # `maintain` connects
            self._hub.notice_connection()
            return None
        self._hub.receive(0.0)
        if self._hub.is_lost:
            return None
        if self._hub.end_paused_step() or self._hub.is_pausing:
            for each_tag in self._tags.values():
                each_tag.fall_behind()
            return None
        messages = [message for each in wanted if (message := self._next_message(each)) is not None]
        if messages:
            self._hub.send(messages)
        is_prefilling = self._hub.is_prefilling  # which delays all other drafts
        waited = self._hub.wait([tag for each in wanted if (tag := self._tags.get(each.request)) and tag.is_awaited])
        if self._hub.is_lost:
            return None
        if waited.round is not None and self.is_serving and not is_prefilling:
            self.lessons.note_round(waited.round)
        return {each.request: draft for each in wanted if (draft := self._draft_of(each)) is not None}

    def close(self, requests: Sequence[KnownRequest]) -> None:
        """Free the tags of requests that are gone."""
        tags = [tag for request in requests if (tag := self._tags.pop(request, None)) is not None]
        messages = [message for tag in tags if (message := self._hub.close_tag(tag)) is not None]
        if messages:
            self._hub.send(messages)

    def maintain(self) -> None:
        """Keep the connection, connect again, and take in messages. Called between the steps; never waits."""
        self._hub.receive(0.0)
        self._hub.ping_if_due()

    def shutdown(self) -> None:
        """Leave in good order. No other call follows."""
        self._transport.close()

    # ---------------------------------------------------------------- out

    def _next_message(self, wanted: DraftRequest) -> TargetToHub | None:
        """Returns: the message that asks for a draft; None if no draft is wanted, or none can be asked for now."""
        tag, now = self._tags.get(wanted.request), self._clock()
        if tag is None and wanted.num_draft_tokens:
            tag = self._hub.new_tag(wanted.request, LIKELIEST, vocab_size=self._vocab_size)
            self._tags[wanted.request] = tag
        if tag is not None and tag.give_up_if_overdue(now):
            wanted.request.note_prefilled(self.num_found)  # true if only the answer was lost
        if tag is None or tag.is_unanswered:
            return None
        if self._rest_of(tag):  # the proposal came late, and begins with the tokens
            return None
        tag.drop_proposal()
        if tag.end_paused_step(now):
            tag.fall_behind()
            return None
        budget = tag.limited(self._budget(wanted.num_draft_tokens))
        if not budget.num_draft_tokens or not tag.reopening.is_due(now):
            return None
        return self._ask(tag, wanted.request, budget)

    def _ask(self, tag: HubTag, request: KnownRequest, budget: DraftBudget) -> TargetToHub | None:
        """Ask for the draft. A hub that has to catch up drafts one token, so that its answer shows that it has."""
        is_catch_up = tag.should_catch_up
        message = tag.ask(self._budget(1) if is_catch_up else budget, self._clock(), is_catch_up=is_catch_up)
        if message is None:
            self._hub.note_unsendable(tag)
            return None
        if is_catch_up:
            self._hub.note_to_prefill(tag, len(message.token_ids))
        elif isinstance(message, Open):
            self._count_opened(tag, request, len(message.token_ids))
        return message

    def _count_opened(self, tag: HubTag, request: KnownRequest, num_tokens: int) -> None:
        if request.prefilled_by != self.num_found:  # else these tokens are counted already
            self._hub.note_to_prefill(tag, num_tokens)
        self.lessons.note_opened()

    def _budget(self, num_tokens: int) -> DraftBudget:
        return DraftBudget.chain(min(num_tokens, self._hub.max_draft_tokens), self._p_min)

    # ---------------------------------------------------------------- in

    def _rest_of(self, tag: HubTag) -> tuple[int, ...]:
        """The tokens of the last proposal that follow the committed ones. vLLM verifies chains only."""
        if tag.proposal is None or not tag.proposal.tree.is_chain:
            return ()
        return tag.draft().token_ids

    def _draft_of(self, wanted: DraftRequest) -> Draft | None:
        """The draft of a request. Tokens that were committed meanwhile count neither as drafted nor as requested."""
        tag = self._tags.get(wanted.request)
        token_ids = [] if tag is None else list(self._rest_of(tag)[: wanted.num_draft_tokens])
        if tag is None or tag.proposal is None or not token_ids:
            return None
        num_requested = tag.num_wanted - (len(wanted.request) - tag.proposal.prefix_len)
        tag.note_use()
        self._hub.note_in_time()
        return Draft(token_ids, max(len(token_ids), min(num_requested, wanted.num_draft_tokens)))

    def proposed(self, tag: HubTag, proposal: Proposal) -> None:
        """As HubListener."""
        self._count_answered(tag, has_drafted=not proposal.is_hopeless)
        tag.note_proposal(proposal, self._clock())

    def declined(self, tag: HubTag, answer: Proposal) -> None:
        """As HubListener."""
        self._count_answered(tag, has_drafted=False)
        tag.note_declined(self._clock(), answer.retry_after_s)

    def reopened(self, tag: HubTag, answer: Reopen) -> None:  # noqa: ARG002 (of the interface)
        """As HubListener."""
        self._count_answered(tag, has_drafted=False)
        tag.note_answer(self._clock(), is_hopeless=False)

    def _count_answered(self, tag: HubTag, *, has_drafted: bool) -> None:
        """Call it before the tag is told of the answer."""
        if tag.is_awaited:
            self._hub.note_in_time()
        self._hub.note_prefilled(tag, has_drafted=has_drafted)

    def dropped(self, tag: HubTag | None) -> None:
        """As HubListener: a request whose answer breaks the protocol is opened anew."""
        if tag is not None:
            tag.mark_absent()

    def found(self) -> None:
        """As HubListener: there is nothing to do before the next step wants drafts."""
