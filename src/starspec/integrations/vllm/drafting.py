"""One vLLM step: rows in, draft tokens out. No vLLM, no threads and no sockets of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from starspec.integrations.vllm.draft import NO_DRAFT, Draft, DraftRequest, LocalNgramDrafts
from starspec.integrations.vllm.hub_client import HubClient, PrefillCounts
from starspec.integrations.vllm.rows import KnownRequest, RowBook, SeenRow, Tokens
from starspec.integrations.vllm.settings import VllmSettings
from starspec.policy.deadline import StepTimeDeadline
from starspec.policy.length.acceptance import Acceptance
from starspec.policy.length.costs import Costs
from starspec.policy.length.experiments import Experiments
from starspec.policy.length.fixed import FixedLength
from starspec.policy.length.measured_speed import MeasuredSpeed
from starspec.policy.length.snapshot import LengthPolicy, RoundSnapshot, SequenceSnapshot
from starspec.speculation.budget import DraftBudget


class HubCosts:
    """Reads the counts of a hub client, and adds to `costs` what has changed since the last look."""

    def __init__(self, hub: HubClient) -> None:
        self.costs = Costs(hub.round_times)
        self._hub = hub
        self._counts = PrefillCounts()  # when it was looked at last

    def forget_hub(self) -> None:
        """Another hub was found: costs of the last one say nothing about it, and neither do its answers."""
        self.costs.forget_hub(self._hub.round_times)
        self._counts = PrefillCounts(self._counts.num_sent, *self._hub.prefill_counts[1:])

    def look_at_answers(self, now: float) -> None:
        """Note what the hub has answered."""
        counts, before = self._hub.prefill_counts, self._counts
        self._counts = counts
        prefill = self.costs.prefill
        prefill.add_answer(counts.num_prefilled - before.num_prefilled, counts.num_refused - before.num_refused)
        if prefill.is_going_on and not self._hub.is_prefilling:
            prefill.end(now)

    def look_at_round(self, waited_s: float, lengths: Sequence[int], now: float) -> None:
        """Note what came of a step's requests.

        Args:
            waited_s: seconds that the step waited for all of them.
            lengths: tokens of each draft that came.
        """
        self.costs.rounds = self._hub.round_times
        counts, before = self._hub.prefill_counts, self._counts
        if counts.num_sent > before.num_sent:
            drafting_s = self.costs.rounds.cost.seconds_of(lengths) if lengths else 0.0
            has_waited = counts.num_opened > before.num_opened  # a step does not wait for a tag that catches up
            extra_s = waited_s - drafting_s if has_waited else None
            self.costs.prefill.add_request(counts.num_sent - before.num_sent, extra_s)
        self.look_at_answers(now)


@dataclass(slots=True)
class _Drafted:
    """What is remembered about the drafts of one request."""

    acceptance: Acceptance
    is_by_hub: bool  # whether `acceptance` is about a hub's drafts; False = n-grams
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
        self._hub_costs = HubCosts(hub)
        self.costs = self._hub_costs.costs
        self.experiments = Experiments()
        self._policy: LengthPolicy = FixedLength(DraftBudget.chain(max_draft_tokens))
        if settings.adaptive:
            self._policy = MeasuredSpeed(max_draft_tokens)
        self._hub = hub
        self._deadline = deadline
        self._settings = settings
        self._ngrams = LocalNgramDrafts(settings.prompt_lookup_min, settings.prompt_lookup_max)
        self._max_draft_tokens = max_draft_tokens
        self._max_model_len = max_model_len
        self._clock = clock
        self._book = RowBook()
        self._drafted: dict[KnownRequest, _Drafted] = {}
        self._usual = {by_hub: Acceptance() for by_hub in (False, True)}  # of all requests; new ones begin with it
        self._ended_s: float | None = None  # when the last step ended
        self._stepped: set[KnownRequest] = set()  # requests that got tokens in it
        self._num_found = 0  # as HubClient, at the last step

    def step(self, sampled: Sequence[Sequence[int]], lengths: NDArray[np.int32], token_ids: Tokens) -> list[list[int]]:
        """Take in a step, as `RowBook.see`.

        Returns: draft tokens of each row, none where there is no draft.
        """
        now = self._clock()
        rows = self._book.see(sampled, lengths, token_ids, now)
        self._notice_another_hub()  # `maintain` may have found one
        if self._ended_s is not None:
            self._deadline.note_step(now - self._ended_s)
            self.costs.add_step(self._size_of_step(rows), now - self._ended_s)
        self._hub_costs.look_at_answers(now)  # those that `maintain` received during vLLM's step
        for num_tokens in self._book.ended:
            self.costs.prefill.add_finished(num_tokens)
        seen = [row for row in rows if row is not None]
        budgets = self._policy.choose(self._snapshot(seen))
        wanted = [DraftRequest(row.request, each.num_draft_tokens) for row, each in zip(seen, budgets, strict=True)]
        drafts = self._ask(wanted)
        for row in seen:
            self._drafted[row.request].last = drafts.get(row.request, NO_DRAFT)
        if drafts:
            self.experiments.note_drafts()
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
        self._stepped.difference_update(gone)
        self._ngrams.forget(gone)
        self._hub.close(gone)
        self._hub.maintain()

    def shutdown(self) -> None:
        self._hub.shutdown()

    def _notice_another_hub(self) -> None:
        """Forget what was learnt from the last hub: it says nothing about the next one."""
        if self._hub.num_found != self._num_found:
            self._num_found = self._hub.num_found
            self._hub_costs.forget_hub()
            self.experiments.forget_hub()
            self._usual[True] = Acceptance()
            for state in self._drafted.values():
                if state.is_by_hub:
                    state.acceptance = Acceptance()

    def _size_of_step(self, rows: Sequence[SeenRow | None]) -> int | None:
        """Tokens of vLLM's step; None if it did more than continue rows of the last step, such as prefill a prompt."""
        requests = {row.request for row in rows if row is not None}
        if not rows or None in rows or not requests <= self._stepped:
            return None
        return len(rows) + sum(len(self._drafted[each].last.token_ids) for each in requests)

    def _snapshot(self, seen: Sequence[SeenRow]) -> RoundSnapshot:
        return RoundSnapshot(
            sequences=[self._snapshot_of(row, self._updated_acceptance(row)) for row in seen],
            num_sequences=len(seen),
            now_s=self._clock(),
            costs=self.costs,
            experiments=self.experiments,
        )

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
        is_by_hub = self._hub.is_serving
        if state is None or state.is_by_hub != is_by_hub:  # acceptance of n-grams says nothing about a hub
            usual = self._usual[is_by_hub]
            state = self._drafted[row.request] = _Drafted(Acceptance(usual.rate, usual.reach), is_by_hub)
        last = state.last if row.request in self._stepped else NO_DRAFT  # a preempted request's draft was not verified
        num_accepted = min(len(last.token_ids), row.num_new - 1)
        for acceptance in (state.acceptance, self._usual[is_by_hub]):
            acceptance.add(len(last.token_ids), num_accepted, last.num_requested)
        return state.acceptance

    def _ask(self, wanted: Sequence[DraftRequest]) -> dict[KnownRequest, Draft]:
        """Ask the hub, and measure how long it takes. If it does not serve, use the requests' own n-grams."""
        asked_s = self._clock()
        drafts = self._hub.draft(wanted)
        if drafts is None:
            drafts = {} if self._settings.fallback == "none" else self._ngrams.draft(wanted)
        self._notice_another_hub()
        now = self._clock()
        self._hub_costs.look_at_round(now - asked_s, [len(draft.token_ids) for draft in drafts.values()], now)
        return drafts
