"""One vLLM step: rows in, draft tokens out. No vLLM, no threads and no sockets of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import structlog
from numpy.typing import NDArray

from starspec.client.pace import PacedChoices
from starspec.integrations.vllm.draft import NO_DRAFT, Draft, DraftRequest, LocalNgramDrafts
from starspec.integrations.vllm.hub_client import HubClient
from starspec.integrations.vllm.rows import KnownRequest, RowBook, SeenRow, Tokens
from starspec.integrations.vllm.settings import VllmSettings
from starspec.log_limit import LogLimit
from starspec.policy.deadline import StepTimeDeadline
from starspec.policy.hub_cost import HubCost, RoundGain
from starspec.policy.length.acceptance import SHRUNK_FADE, Acceptance
from starspec.policy.length.costs import Costs
from starspec.policy.length.fixed import FixedLength
from starspec.policy.length.goodput import Goodput
from starspec.policy.length.hub_lessons import HubLessons
from starspec.policy.length.snapshot import Choice, RoundSnapshot, SequenceSnapshot
from starspec.policy.length.trials import Trials
from starspec.speculation.budget import DraftBudget

log = structlog.get_logger()


@dataclass(slots=True)
class _Drafted:
    """What is remembered about the drafts of one request."""

    acceptance: Acceptance
    usual: Acceptance  # of all requests with the same drafter: with this hub, or with n-grams
    last: Draft = NO_DRAFT  # handed to vLLM in the last step


class StepDrafter:
    """Drafts for the rows of each step: from a hub, or from n-grams while there is no hub.

    Args:
        max_draft_tokens: vLLM's `num_speculative_tokens`.
        max_model_len: tokens that a row can hold.
    """

    def __init__(
        self,
        hub: HubClient,
        deadline: StepTimeDeadline,
        settings: VllmSettings,
        max_draft_tokens: int,
        max_model_len: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._own_costs = Costs()  # its parts about a hub are not used
        make_policy = Goodput if settings.adaptive else FixedLength
        self._choices = PacedChoices(make_policy(DraftBudget.chain(max_draft_tokens)), clock)
        self._hub = hub
        self._deadline = deadline
        self._settings = settings
        self._ngrams = LocalNgramDrafts(settings.prompt_lookup_min, settings.prompt_lookup_max)
        self._max_draft_tokens = max_draft_tokens
        self._max_model_len = max_model_len
        self._clock = clock
        self._book = RowBook()
        self._drafted: dict[KnownRequest, _Drafted] = {}
        self._ngram_lessons = HubLessons.of_local_drafter()
        self._hub_trials, self._ngram_trials = Trials(), Trials()
        self._ended_s: float | None = None  # when the last step ended
        self._stepped: set[KnownRequest] = set()  # requests that got tokens in it
        self._cost = HubCost(hub.account)
        self._log_limit = LogLimit(clock)
        self._is_by_hub = False  # the drafts of the last step
        self._num_emitted = 0  # tokens of all steps

    @property
    def costs(self) -> Costs:
        """Those of this server and of its present hub."""
        return self._costs_with(self._hub.lessons)

    def _costs_with(self, lessons: HubLessons) -> Costs:
        return replace(self._own_costs, rounds=lessons.rounds, prefill=lessons.prefill)

    def step(self, sampled: Sequence[Sequence[int]], lengths: NDArray[np.int32], token_ids: Tokens) -> list[list[int]]:
        """Take in a step, as `RowBook.see`.

        Returns: draft tokens of each row, none where there is no draft.
        """
        now = self._clock()
        rows = self._book.see(sampled, lengths, token_ids, now)
        size = self._size_of_step(rows)
        if self._ended_s is not None:
            self._deadline.note_step(now - self._ended_s)
            self.costs.add_step(size, now - self._ended_s)
            if size is not None:
                self._end_account(rows, now - self._ended_s, now)
        # answers that `maintain` received during vLLM's step
        self._hub.lessons.weigh_answers(is_prefilling=self._hub.is_prefilling)
        for num_tokens in self._book.ended:
            self.costs.add_finished(num_tokens)
        seen = [row for row in rows if row is not None]
        chosen = self._chosen(seen, was_interrupted=size is None)
        is_plain = self._cost.is_plain_round_due(len(seen), now, is_hub_lost=not self._hub.is_serving)
        wanted = [
            DraftRequest(row.request, 0 if is_plain else each.budget.num_draft_tokens)
            for row, each in zip(seen, chosen, strict=True)
        ]
        drafts = self._ask(wanted)
        for row in seen:
            self._drafted[row.request].last = drafts.get(row.request, NO_DRAFT)
        self._stepped = {row.request for row in seen}
        self.costs.end_step()
        self._ended_s = self._clock()
        self._book.end_step(self._ended_s)
        return [[] if row is None else drafts.get(row.request, NO_DRAFT).token_ids for row in rows]

    def maintain(self) -> None:
        """Between steps: keep the connection, and close the tags of requests that are gone."""
        gone = self._book.forget(self._clock(), self._hub.holder_of)
        for request in gone:
            self._drafted.pop(request, None)
        if gone:
            self._choices.forget()  # it holds the requests that it was about
        self._stepped.difference_update(gone)
        self._ngrams.forget(gone)
        self._hub.close(gone)
        self._hub.maintain()

    def shutdown(self) -> None:
        self._hub.shutdown()

    def _size_of_step(self, rows: Sequence[SeenRow | None]) -> int | None:
        """Tokens of vLLM's step; None if it did more than continue rows of the last step, such as prefill a prompt."""
        requests = {row.request for row in rows if row is not None}
        if not rows or None in rows or not requests <= self._stepped:
            return None
        return len(rows) + sum(len(self._drafted[each].last.token_ids) for each in requests)

    def _end_account(self, rows: Sequence[SeenRow | None], step_s: float, now: float) -> None:
        """Tell the account what vLLM's step took and gained. Its time is that of its rows."""
        account = self._cost.account
        if account is None:
            return
        going_on = [row for row in rows if row is not None]
        drafted = [(len(self._drafted[row.request].last.token_ids), row.num_new - 1) for row in going_on]
        gain = RoundGain(len(going_on), has_drafts=any(num_drafted for num_drafted, _ in drafted))
        if gain.has_drafts and self._is_by_hub:
            num_accepted = sum(min(num_drafted, num_accepted) for num_drafted, num_accepted in drafted)
            gain = gain._replace(drafted_share=1.0, num_gained=num_accepted / len(going_on))
        if self._cost.end_round(step_s, gain, now):
            event = "the hub takes more time than its drafts save; it is asked for none for a while"
            self._log_limit.log(log.warning, event, seconds=round(account.rest_s(now), 1))

    @property
    def _lessons(self) -> HubLessons:
        """About the drafter of the next step."""
        return self._hub.lessons if self._hub.is_serving else self._ngram_lessons

    def _chosen(self, seen: Sequence[SeenRow], *, was_interrupted: bool) -> list[Choice]:
        acceptances = [self._updated_acceptance(row) for row in seen]
        sequences = [self._snapshot_of(row, each) for row, each in zip(seen, acceptances, strict=True)]
        self._num_emitted += sum(row.num_new for row in seen)

        def snapshot() -> RoundSnapshot:
            return RoundSnapshot(
                sequences=sequences,
                num_sequences=len(sequences),
                now_s=self._clock(),
                costs=self._costs_with(self._lessons),
                trials=self._hub_trials if self._hub.is_serving else self._ngram_trials,
                num_emitted=self._num_emitted,
                was_interrupted=was_interrupted,
            )

        about = [
            self._lessons,
            *((row.request, each.max_draft_tokens) for row, each in zip(seen, sequences, strict=True)),
        ]
        chosen = self._choices.choose(about, snapshot, is_urgent=any(each.num_to_prefill for each in sequences))
        pairs = zip(chosen, sequences, strict=True)
        return [choice._replace(budget=each.fitting(choice.budget)) for choice, each in pairs]

    def _snapshot_of(self, row: SeenRow, acceptance: Acceptance) -> SequenceSnapshot:
        request, is_by_hub = row.request, self._hub.is_serving
        return SequenceSnapshot(
            max_remaining_tokens=self._max_model_len - len(request),
            max_draft_tokens=self._hub.max_draft_tokens(request) if is_by_hub else self._max_draft_tokens,
            num_tokens=len(request),
            num_to_prefill=len(request) if is_by_hub and not self._hub.has_prefilled(request) else 0,
            is_held=not is_by_hub or self._hub.holds(request),
            is_new=row.is_first,
            acceptance=acceptance,
        )

    def _updated_acceptance(self, row: SeenRow) -> Acceptance:
        """The acceptance of a row's request, with the verdict on its last draft."""
        state = self._drafted.get(row.request)
        usual = self._lessons.acceptance
        if state is None or state.usual is not usual:  # acceptance with another drafter says nothing about this one
            state = self._drafted[row.request] = _Drafted(Acceptance(usual=usual, fade=SHRUNK_FADE), usual)
        last = state.last if row.request in self._stepped else NO_DRAFT  # a preempted request's draft was not verified
        num_accepted = min(len(last.token_ids), row.num_new - 1)
        for acceptance in (state.acceptance, usual):
            acceptance.add(len(last.token_ids), num_accepted, last.num_requested)
        return state.acceptance

    def _ask(self, wanted: Sequence[DraftRequest]) -> dict[KnownRequest, Draft]:
        """Ask the hub, and measure how long it takes. If it does not serve, use the requests' own n-grams."""
        asked_s = self._clock()
        drafts = self._hub.draft(wanted)
        self._is_by_hub = drafts is not None
        if drafts is None:
            drafts = {} if self._settings.fallback == "none" else self._ngrams.draft(wanted)
        now, lengths = self._clock(), [len(draft.token_ids) for draft in drafts.values()]
        self._hub.lessons.weigh_step(now - asked_s, lengths, is_prefilling=self._hub.is_prefilling)
        if self._cost.account is not None:
            self._cost.account.add_time(now - asked_s)
        return drafts
