"""Which rows of a step get drafts, and how long ones: those that pay, and now and then what tells whether others would.

`draft_length.py` weighs what is known. Here is what is to be found out: rows without drafts probe, some steps go
without drafts so that a plain one is timed, and a text is told to the hub only where drafts make its reading good.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from starspec.integrations.vllm.costs import Costs
from starspec.integrations.vllm.draft_length import PROBE_TOKENS, Acceptance, PayingDrafts, ProbeSteps, paying_drafts
from starspec.integrations.vllm.hub_client import HubClient
from starspec.integrations.vllm.rows import KnownRequest, SeenRow

MAX_UNTIMED: Final = 4  # steps in a row in which a text is not told yet, so that a step of as many rows is timed before
PLAIN_EVERY: Final = 64  # steps: what a step of so many rows takes without drafts is looked at so often,
PLAIN_PAUSE: Final = 16  # and in no more than one step of so many


class LengthChoice:
    """Draft tokens of each row, step by step."""

    def __init__(self, hub: HubClient, costs: Costs, clock: Callable[[], float]) -> None:
        self._hub = hub
        self._costs = costs
        self._clock = clock
        self._num_steps = 0
        self._probe_steps = ProbeSteps()
        self._is_probing = False  # in this step nothing but probes is asked for
        self._plain_from = PLAIN_PAUSE  # step in which the next may go without drafts to be timed
        self._num_untimed = 0  # steps in a row that were to be timed

    def forget_hub(self) -> None:
        """That drafts did not pay says nothing of the next one."""
        self._probe_steps = ProbeSteps()

    def lengths(self, seen: Sequence[SeenRow], known: Sequence[Acceptance], most: Sequence[int]) -> list[int]:
        """Ask once a step.

        Args:
            known: what each row's request accepted lately.
            most: draft tokens that each can have.
        Returns: draft tokens to ask for, of each row; 0 = none.
        """
        self._is_probing = False
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

    def note_drafts(self) -> None:
        """Something was drafted of what the step asked for: if it was a probe, what comes of it will be known."""
        if self._is_probing:
            self._probe_steps.note_tried()

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
            if self._costs.reading.is_worth(num_tokens, len(seen) / held.speed, len(seen) / best.speed):
                break
            order = order[: len(order) // 2]
            limits = [0 if unread[place] and place not in order else limit for place, limit in enumerate(most)]
            best = self._weigh(known, limits)
        return best.lengths

    def _weigh(self, known: Sequence[Acceptance], most: Sequence[int]) -> PayingDrafts:
        rates, reaches = [each.rate for each in known], [each.reach for each in known]
        return paying_drafts(rates, most, self._costs.steps, self._costs.rounds.cost, reaches)

    def _has_to_be_plain(self, num_rows: int) -> bool:
        """Whether drafts that seem to pay are left out, since what a step takes without them was not measured lately.

        What only steps with drafts tell of it is how long it takes at most.
        """
        if self._costs.reading.is_going_on:  # nothing is measured beside it
            return False
        is_due = self._num_steps >= self._plain_from and not self._costs.steps.is_known(num_rows, PLAIN_EVERY)
        if is_due:
            self._plain_from = self._num_steps + PLAIN_PAUSE
        return is_due

    def _has_to_be_timed(self, num_rows: int) -> bool:
        """Whether a text has to wait, since no step of so many rows was timed that could tell what reading costs."""
        if self._costs.reading.is_going_on:  # nothing is measured beside it
            return False
        has_to = not self._costs.steps.covers(num_rows) and self._num_untimed < MAX_UNTIMED
        self._num_untimed = self._num_untimed + 1 if has_to else 0
        return has_to

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
        is_worth = self._costs.reading.is_worth_a_probe(len(requests[shortest]), self._clock())
        return [is_worth and place == shortest for place in range(len(requests))]


def _num_to_read(unread: Sequence[int], drafts: PayingDrafts) -> int:
    """Tokens of the texts that have to be read for some drafts."""
    return sum(num for num, length in zip(unread, drafts.lengths, strict=True) if length)
