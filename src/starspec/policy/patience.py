"""How long a target waits for its hub: backoff after late proposals, and excuses while the hub prefills.

A *step* is one step of the target: a round of our engine, or a step of vLLM. The target waits once for a proposal. If
the proposal is late, steps go on without it, and the target tells the hub nothing more about the tag while the late
proposal may still be of use. A miss is excused while the hub is prefilling. Repeated misses back off exponentially.

The classes have no clock and do no I/O: `now` is seconds of one monotonic clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final

MAX_MISSES: Final = 3  # in a row, before the first pause
FIRST_PAUSE, LONGEST_PAUSE = 16, 256  # steps
LONGEST_PAUSE_S: Final = 5.0  # a pause of more than FIRST_PAUSE steps ends after this: the hub may be fast again
FIRST_PREFILL_WAIT_S: Final = 5.0  # after this, an unanswered `Open` counts as lost; the limit doubles each time
# The hub prefills up to 16 tokens, or the tokens of two rounds, about as fast as the tokens of one round.
MAX_UNSENT: Final = 16  # tokens
MAX_CATCH_UPS: Final = 3  # in a row, before a step waits for the answer
CATCH_UP_WAIT_S: Final = 1.0  # the same limit for the first `Verdict` after a pause


class Patience:
    """Exponential backoff, either with one tag or with a whole hub.

    After MAX_MISSES misses in a row, the target pauses: it does not wait for FIRST_PAUSE steps. After that pause, each
    further miss starts a pause that is twice as long. So a hopeless case costs one deadline in LONGEST_PAUSE steps, or
    one in LONGEST_PAUSE_S. One proposal in time resets everything. One miss between two such proposals may be excused.
    Each miss also halves the requested draft length: a short draft may come in time.
    """

    def __init__(self) -> None:
        self._num_misses = 0  # in a row
        self._has_excused = False
        self._num_paused = self._pause = 0  # steps of the present pause
        self._next_pause = FIRST_PAUSE
        self._ends_s = inf

    @property
    def is_pausing(self) -> bool:
        return self._num_paused < self._pause

    @property
    def has_missed(self) -> bool:
        """Whether the last wait was a miss."""
        return self._num_misses > 0

    def max_steps(self, num_steps: int) -> int:
        """How many of `num_steps` draft steps to ask for: half as many for each miss, and at least one."""
        return max(min(num_steps, 1), num_steps >> self._num_misses)

    def note_paused_step(self, now: float) -> None:
        """One step of the pause is over."""
        self._num_paused += 1
        if self._num_paused >= FIRST_PAUSE and now >= self._ends_s:
            self._pause = 0

    def note_in_time(self) -> None:
        """A proposal came in time: reset."""
        self._num_misses, self._pause = 0, 0
        self._next_pause, self._has_excused = FIRST_PAUSE, False

    def excuse(self) -> bool:
        """Excuse a miss that has a reason, if none was excused before. Returns: whether it is excused."""
        is_first, self._has_excused = not self._has_excused, True
        return is_first

    def note_miss(self, now: float) -> None:
        """A wait ended without the proposal."""
        self._num_misses += 1
        if self._num_misses >= MAX_MISSES:
            self._num_misses = MAX_MISSES - 1
            self._num_paused, self._pause, self._ends_s = 0, self._next_pause, now + LONGEST_PAUSE_S
            self._next_pause = min(2 * self._next_pause, LONGEST_PAUSE)


class PrefillWait:
    """How long the hub may leave a message unanswered while it prefills a prompt, or tokens committed in a pause.

    After that the answer may be lost, and the target sends an `Open` again. If the hub is in fact still prefilling, it
    loses nothing by this: the text is the same, and it continues where it is.
    """

    def __init__(self) -> None:
        self._limit_s = FIRST_PREFILL_WAIT_S
        self._until_s = inf

    def begin(self, now: float) -> None:
        """The hub has a prompt to prefill."""
        self._until_s = now + self._limit_s
        self._limit_s *= 2

    def begin_catch_up(self, now: float) -> None:
        """The hub has tokens to prefill that were committed in a pause."""
        self._until_s = now + CATCH_UP_WAIT_S

    def end(self) -> None:
        """The hub has answered."""
        self._limit_s, self._until_s = FIRST_PREFILL_WAIT_S, inf

    def is_overdue(self, now: float) -> bool:
        """Whether the message, or its answer, counts as lost."""
        return now > self._until_s


@dataclass(slots=True, eq=False, kw_only=True)
class TagWait:
    """Deadline bookkeeping for one sequence: which answer is outstanding, and what happens if it is late."""

    is_awaited: bool = False  # the next step waits for a proposal
    is_opening: bool = False  # the `Open` has no answer yet: the hub may have a long prompt to prefill
    is_late: bool = False  # a step has waited for the answer to a `Verdict`, and there is none yet
    is_excused: bool = False  # with `is_late`: the hub had to prefill first
    is_catching_up: bool = False  # the hub was told what it had missed, and has not answered; no step waits for that
    num_catch_ups: int = 0  # in a row
    has_to_catch_up: bool = False  # the hub may have to prefill tokens that it got without a request for a draft
    held_back_s: float | None = None  # since when rounds go first that are without its sequence; None = none did
    prefill_wait: PrefillWait = field(default_factory=PrefillWait)
    patience: Patience = field(default_factory=Patience)

    def must_be_answered(self, *, may_be_of_use: bool) -> bool:
        """Whether the target tells the hub nothing more before the hub answers.

        Args:
            may_be_of_use: whether a late proposal could still contain tokens beyond the committed ones.
        """
        is_hub_prefilling = self.is_opening or self.is_catching_up
        return is_hub_prefilling or (self.is_late and (self.is_excused or may_be_of_use))

    def may_catch_up(self, num_unsent: int, num_wanted: int) -> bool:
        """Whether to send the tokens first and to wait for a draft only a step later.

        This is False after a few times in a row, and after a miss. A step then waits for the answer, so that a slow hub
        is noticed.

        Args:
            num_unsent: committed tokens that the hub was not sent.
            num_wanted: draft steps that its last message asks for.
        """
        is_far_behind = num_unsent > max(MAX_UNSENT, 2 * (num_wanted + 1))
        return is_far_behind and self.num_catch_ups < MAX_CATCH_UPS and not self.patience.has_missed

    def begin_waiting(self, now: float, *, is_open: bool, is_draft_wanted: bool) -> None:
        """An `Open` or a `Verdict` is sent. The next step waits for the answer if it asks for a draft."""
        self.is_awaited, self.num_catch_ups, self.held_back_s = is_draft_wanted, 0, None
        self.is_opening = is_open and is_draft_wanted
        if self.is_opening:
            self.prefill_wait.begin(now)

    def hold_back(self, now: float) -> float:
        """A round goes first that is without its sequence. Returns: since when rounds do so."""
        if self.held_back_s is None:
            self.held_back_s = now
        return self.held_back_s

    def begin_catch_up(self, now: float) -> None:
        """A `Verdict` with many tokens is sent. No step waits for its answer."""
        self.is_catching_up = True
        self.num_catch_ups += 1
        self.prefill_wait.begin_catch_up(now)

    def fall_behind(self, is_behind: bool = True) -> None:
        """A step asked for no draft, so the hub may have to prefill that step's tokens before it drafts again.

        Args:
            is_behind: False = the last message asked for a draft.
        """
        self.has_to_catch_up = is_behind

    def skip_wait(self) -> None:
        """No step waits for the answer to the message that was just sent. It may still come."""
        self.is_awaited = False

    def stop_waiting(self) -> None:
        """Go on without the answer, which may still come."""
        self.is_awaited, self.is_late = False, not self.is_opening

    def note_late(self, now: float, is_hub_prefilling: bool) -> bool:
        """The deadline has passed without the awaited proposal. Steps go on; the sequence joins when the hub answers.

        A miss is excused if the sequence has to catch up, and once if the hub is prefilling.

        Args:
            is_hub_prefilling: whether the hub has a prompt of this target to prefill.
        Returns: whether the miss counts against the hub.
        """
        self.stop_waiting()
        if self.is_opening:
            return False
        if self.has_to_catch_up:
            self.is_excused = True
            self.prefill_wait.begin_catch_up(now)
        elif is_hub_prefilling and self.patience.excuse():
            self.is_excused = True
            self.prefill_wait.begin(now)
        else:
            self.patience.note_miss(now)
        return not self.is_excused

    def note_answer(self, now: float, *, is_hopeless: bool) -> None:
        """The hub has answered the last message. An awaited answer is in time, but a hopeless one counts as a miss.

        Args:
            is_hopeless: as `Proposal.is_hopeless`. Each such answer costs a step the round trip to the hub.
        """
        if self.is_awaited and is_hopeless:
            self.patience.note_miss(now)
        elif self.is_awaited:
            self.patience.note_in_time()
        self.clear()
        self.prefill_wait.end()

    def clear(self) -> None:
        """No answer is outstanding any more: it has come, or it will never come."""
        self.is_awaited = self.is_opening = self.is_late = self.is_excused = False
        self.is_catching_up = self.has_to_catch_up = False

    def reset_patience(self) -> None:
        """Forget all misses: they say nothing about another hub."""
        self.patience, self.prefill_wait = Patience(), PrefillWait()


def note_deadline_passed(
    late: Sequence[TagWait], all_tags: Iterable[TagWait], with_hub: Patience, now: float, *, are_all_late: bool
) -> None:
    """Note the misses of a step: one for each late tag, and one for the hub if it answered none of the awaited tags.

    Args:
        all_tags: all tags of this target at this hub.
        with_hub: the backoff with the hub as a whole. It excuses one step in which all late tags are excused.
        are_all_late: whether no awaited tag was answered.
    """
    is_hub_prefilling = any(each.is_opening for each in all_tags)
    counted = [each for each in late if each.note_late(now, is_hub_prefilling)]
    is_miss = bool(counted) or (any(each.is_excused for each in late) and not with_hub.excuse())
    if is_miss and are_all_late:
        with_hub.note_miss(now)
