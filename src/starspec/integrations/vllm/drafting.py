"""One vLLM step without vLLM, threads or sockets of its own: rows in, draft tokens out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from starspec.integrations.vllm.deadline import Deadline
from starspec.integrations.vllm.draft_length import PROBE_TOKENS, Acceptance, PayingDrafts, ProbeSteps, paying_drafts
from starspec.integrations.vllm.hub_client import HubClient, ToldTexts, Wanted
from starspec.integrations.vllm.reading_cost import ReadingCost
from starspec.integrations.vllm.round_cost import RoundTimes
from starspec.integrations.vllm.rows import KnownRequest, RowBook, SeenRow, Tokens
from starspec.integrations.vllm.settings import VllmSettings
from starspec.integrations.vllm.step_cost import StepCost
from starspec.speculation.ngram import NgramIndex

MAX_UNTIMED: Final = 4  # steps in a row in which a text is not told yet, so that a step of as many rows is timed before
PLAIN_EVERY: Final = 64  # steps: what a step of so many rows takes without drafts is looked at so often,
PLAIN_PAUSE: Final = 16  # and in no more than one step of so many
MAX_CATCH_UP: Final = 4096  # tokens that n-gram indexes take in in one step: a hub may go while prompts are long


@dataclass(slots=True)
class _Drafted:
    """What is kept of a request besides its tokens."""

    acceptance: Acceptance
    is_by_hub: bool  # whose drafts it tells of
    num_drafted: int = 0  # tokens handed to vLLM in the last step
    num_asked: int = 0  # and that the hub was asked for
    index: NgramIndex | None = None


class StepDrafter:
    """Drafts for the rows of each step: a hub's, or n-grams while there is none.

    Args:
        max_draft_tokens: vLLM's `num_speculative_tokens`.
        max_model_len: tokens that a row can hold.
    """

    def __init__(
        self,
        hub: HubClient,
        deadline: Deadline,
        settings: VllmSettings,
        max_draft_tokens: int,
        max_model_len: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._hub = hub
        self._deadline = deadline
        self._settings = settings
        self._max_draft_tokens = max_draft_tokens
        self._max_model_len = max_model_len
        self._clock = clock
        self._book = RowBook()
        self._drafted: dict[KnownRequest, _Drafted] = {}
        self._ended_s: float | None = None  # the last step
        self._num_steps = 0
        self._probe_steps = ProbeSteps()
        self._is_probing = False  # in this step nothing but probes is asked for
        self._stepped: set[KnownRequest] = set()  # what was sampled for in it
        self._usual = {by_hub: Acceptance() for by_hub in (False, True)}  # of all requests
        self._step_cost = StepCost()  # of vLLM's steps, by their tokens
        self._round_times = RoundTimes()  # of the hub's drafts
        self._reading_cost = ReadingCost()  # of what it has not read yet
        self._num_catch_up = 0
        self._num_found = 0  # the hub, up to the last step
        self._told = ToldTexts()  # as the hub had been told, and had answered, when it was looked at last
        self._plain_from = PLAIN_PAUSE  # step in which the next may go without drafts to be timed
        self._num_untimed = 0  # steps in a row that were to be timed

    def step(self, sampled: Sequence[Sequence[int]], lengths: NDArray[np.int32], token_ids: Tokens) -> list[list[int]]:
        """As `RowBook.see`. Returns: draft tokens of each row, none where there is no draft."""
        now = self._clock()
        rows = self._book.see(sampled, lengths, token_ids, now)
        self._notice_another_hub()  # which `tend` found
        if self._ended_s is not None:
            self._deadline.note_step(now - self._ended_s)
            self._note_cost(rows, now - self._ended_s)
        self._notice_read()  # what `tend` received while vLLM was at its step
        for num_tokens in self._book.ended:
            self._reading_cost.note_answer(num_tokens)
        seen = [row for row in rows if row is not None]
        wanted = [Wanted(row.request, length) for row, length in zip(seen, self._choose(seen), strict=True)]
        asked_s = self._clock()
        drafts = self._propose(wanted)
        self._notice_another_hub()
        if not self._hub.is_serving:  # the next one may be faster
            self._round_times = RoundTimes()
            self._deadline.forget_rounds()
        elif self._hub.round is not None:
            self._round_times.note(self._hub.round)
        for each in wanted:
            state = self._drafted[each.request]
            state.num_drafted, state.num_asked = len(drafts.get(each.request, ())), each.num_draft_tokens
        self._note_reading(self._clock() - asked_s, [len(token_ids) for token_ids in drafts.values()])
        if self._is_probing and drafts:
            self._probe_steps.note_tried()
        self._stepped = {each.request for each in wanted}
        if not self._reading_cost.is_going_on:
            self._step_cost.end_step()
        self._ended_s = self._clock()
        self._book.end_step(self._ended_s)
        return [[] if row is None else drafts.get(row.request, []) for row in rows]

    def tend(self) -> None:
        """Beside the steps: keep the connection, and close the tags of requests that are gone."""
        gone = self._book.forget(self._clock(), self._hub.reader_of)
        for request in gone:
            self._drafted.pop(request, None)
        self._stepped.difference_update(gone)
        self._hub.close(gone)
        self._hub.tend()

    def shutdown(self) -> None:
        self._hub.shutdown()

    def _notice_another_hub(self) -> None:
        """What the one before took says nothing of it."""
        if self._hub.num_found != self._num_found:
            self._num_found = self._hub.num_found
            self._round_times, self._probe_steps = RoundTimes(), ProbeSteps()
            self._reading_cost.forget_hub()
            self._told = ToldTexts(self._told.num_tokens, *self._hub.told[1:])  # answers of the one before
            self._usual[True] = Acceptance()
            for state in self._drafted.values():
                if state.is_by_hub:
                    state.acceptance = Acceptance()

    def _note_cost(self, rows: Sequence[SeenRow | None], step_s: float) -> None:
        """A step that only went on with rows of the last one, and read no prompt, tells what its tokens cost.

        While the hub reads a text, such a step tells what that costs.
        """
        requests = {row.request for row in rows if row is not None}
        is_usual = bool(rows) and None not in rows and requests <= self._stepped
        size = len(rows) + sum(self._drafted[each].num_drafted for each in requests) if is_usual else 0
        if self._reading_cost.is_going_on and self._step_cost:
            is_comparable = is_usual and self._step_cost.covers(size)
            usual_s = float(self._step_cost.predict(np.array([size]))[0]) if is_comparable else None
            self._reading_cost.note_step(step_s, usual_s)
        elif is_usual:
            self._step_cost.note(size, step_s)

    def _note_reading(self, waited_s: float, lengths: Sequence[int]) -> None:
        """What this step told the hub, and what came of what it and others told it."""
        told, before = self._hub.told, self._told
        if told.num_tokens > before.num_tokens:
            drafting_s = self._round_times.cost.seconds_of(lengths) if lengths else 0.0
            self._reading_cost.note_told(told.num_tokens - before.num_tokens, waited_s - drafting_s)
        self._notice_read()

    def _notice_read(self) -> None:
        """What the hub has answered since it was looked at last."""
        told, before = self._hub.told, self._told
        self._told = told
        self._reading_cost.note_answered(told.num_read - before.num_read, told.num_refused - before.num_refused)
        if self._reading_cost.is_going_on and not self._hub.is_reading:
            self._reading_cost.note_end(self._clock())

    def _choose(self, seen: Sequence[SeenRow]) -> list[int]:
        """How long a draft each row is worth, after what came of its last one and what steps cost."""
        self._is_probing = False
        known = [self._after_verifying(row) for row in seen]
        most = [self._most(row.request) for row in seen]
        if not self._settings.adaptive:
            return most
        if not seen:
            return []
        self._num_steps += 1
        lengths = self._paying_lengths(seen, known, most)
        if any(lengths) and self._has_to_be_plain(len(seen)):
            return [0] * len(seen)
        has_new_rows = any(row.is_first for row in seen)
        if not self._probe_steps.includes(self._num_steps, is_drafting=any(lengths), has_new_rows=has_new_rows):
            return lengths
        are_idle = [each.is_idle and limit > 0 for each, limit in zip(known, most, strict=True)]
        may_probe = self._may_probe([row.request for row in seen], are_idle, most)
        probes = [min(PROBE_TOKENS, limit) if may else 0 for may, limit in zip(may_probe, most, strict=True)]
        self._is_probing = any(probes) and not any(lengths)
        return [length or probe for length, probe in zip(lengths, probes, strict=True)]

    def _paying_lengths(self, seen: Sequence[SeenRow], known: Sequence[Acceptance], most: Sequence[int]) -> list[int]:
        """What the hub has not read it reads only if drafts save more, until the requests end, than reading costs.

        Where all together are not worth it, the shorter half of them may be.
        """
        best = self._weigh(known, most)
        unread = [0 if self._hub.has_read(row.request) else len(row.request) for row in seen]
        if not self._hub.is_serving or not _num_to_read(unread, best):
            return best.lengths
        held = self._weigh(known, [0 if num else limit for num, limit in zip(unread, most, strict=True)])
        if self._has_to_be_timed(len(seen)):
            return held.lengths
        order = sorted((place for place, num in enumerate(unread) if num), key=unread.__getitem__)
        while best.speed is not None and held.speed is not None and (num_tokens := _num_to_read(unread, best)):
            if self._reading_cost.is_worth(num_tokens, len(seen) / held.speed, len(seen) / best.speed):
                break
            order = order[: len(order) // 2]
            limits = [0 if unread[place] and place not in order else limit for place, limit in enumerate(most)]
            best = self._weigh(known, limits)
        return best.lengths

    def _has_to_be_plain(self, num_rows: int) -> bool:
        """Whether drafts that seem to pay are left out, since what a step takes without them was not measured lately.

        What only steps with drafts tell of it is how long it takes at most.
        """
        if self._reading_cost.is_going_on:  # nothing is measured beside it
            return False
        is_due = self._num_steps >= self._plain_from and not self._step_cost.is_known(num_rows, PLAIN_EVERY)
        if is_due:
            self._plain_from = self._num_steps + PLAIN_PAUSE
        return is_due

    def _has_to_be_timed(self, num_rows: int) -> bool:
        """Whether a text has to wait, since no step of so many rows was timed that could tell what reading costs."""
        if self._reading_cost.is_going_on:  # nothing is measured beside it
            return False
        has_to = not self._step_cost.covers(num_rows) and self._num_untimed < MAX_UNTIMED
        self._num_untimed = self._num_untimed + 1 if has_to else 0
        return has_to

    def _weigh(self, known: Sequence[Acceptance], most: Sequence[int]) -> PayingDrafts:
        rates, reaches = [each.rate for each in known], [each.reach for each in known]
        return paying_drafts(rates, most, self._step_cost, self._round_times.cost, reaches)

    def _may_probe(self, requests: Sequence[KnownRequest], idle: Sequence[bool], most: Sequence[int]) -> list[bool]:
        """Of rows without drafts for long those whose texts the hub has; if it has none, the shortest of them.

        What the hub has not read it has to read first, which may cost more than all drafts of a request would save, and
        what one achieves is what others are thought to: should drafts pay, all get them.
        """
        if not self._hub.is_serving or not any(idle):
            return list(idle)
        are_held = [self._hub.holds(request) and limit > 0 for request, limit in zip(requests, most, strict=True)]
        if any(are_held):
            return [is_idle and is_held for is_idle, is_held in zip(idle, are_held, strict=True)]
        shortest = min((place for place, is_idle in enumerate(idle) if is_idle), key=lambda place: len(requests[place]))
        is_worth = self._reading_cost.is_worth_a_probe(len(requests[shortest]), self._clock())
        return [is_worth and place == shortest for place in range(len(requests))]

    def _most(self, request: KnownRequest) -> int:
        """Draft tokens that a request has room for and can get."""
        most = min(self._max_draft_tokens, self._max_model_len - len(request) - 1)
        return max(0, min(most, self._hub.most(request)) if self._hub.is_serving else most)

    def _after_verifying(self, row: SeenRow) -> Acceptance:
        state = self._drafted.get(row.request)
        is_by_hub = self._hub.is_serving
        if state is None or state.is_by_hub != is_by_hub:  # what n-grams achieve says nothing of a hub
            usual = self._usual[is_by_hub]
            state = self._drafted[row.request] = _Drafted(Acceptance(usual.rate, usual.reach), is_by_hub)
        num_drafted = state.num_drafted if row.request in self._stepped else 0  # of one preempted, nothing was verified
        num_accepted = min(num_drafted, row.num_new - 1)
        for acceptance in (state.acceptance, self._usual[is_by_hub]):
            acceptance.note(num_drafted, num_accepted, state.num_asked)
        return state.acceptance

    def _propose(self, wanted: Sequence[Wanted]) -> dict[KnownRequest, list[int]]:
        drafts = self._hub.draft(wanted)
        if drafts is not None:
            return drafts
        if self._settings.fallback == "none":
            return {}
        self._num_catch_up = 0
        return {each.request: self._look_up(each) for each in wanted if each.num_draft_tokens}

    def _look_up(self, wanted: Wanted) -> list[int]:
        """An n-gram draft; none before the index has all tokens."""
        state = self._drafted[wanted.request]
        if state.index is None:
            state.index = NgramIndex(self._settings.prompt_lookup_min, self._settings.prompt_lookup_max)
        start = len(state.index)
        new = wanted.request.token_ids(start, start + MAX_CATCH_UP - self._num_catch_up)
        self._num_catch_up += len(new)
        state.index.append(new)
        if len(state.index) < len(wanted.request):
            return []
        return state.index.propose(wanted.num_draft_tokens)


def _num_to_read(unread: Sequence[int], drafts: PayingDrafts) -> int:
    """Tokens of the texts that have to be read for some drafts."""
    return sum(num for num, length in zip(unread, drafts.lengths, strict=True) if length)
