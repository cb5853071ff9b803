"""What this server and its hub take, learnt from each step: vLLM's steps, the hub's rounds, its reading of new texts.

Each is noted only where nothing else was going on: while the hub reads a text, the time of a step counts towards what
reading costs. What steps are known to take then stays as it is, and grows no older.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from starspec.integrations.vllm.hub_client import HubClient, ToldTexts
from starspec.integrations.vllm.reading_cost import PrefillCost
from starspec.integrations.vllm.round_cost import RoundTimes
from starspec.integrations.vllm.step_cost import StepCost


class Costs:
    """Kept together, since a step tells of one or another."""

    def __init__(self, hub: HubClient) -> None:
        self.steps = StepCost()  # of vLLM, by their tokens
        self.rounds = RoundTimes()  # of the hub's drafts
        self.reading = PrefillCost()  # of what the hub has not read yet
        self._hub = hub
        self._told = ToldTexts()  # as the hub had been told, and had answered, when it was looked at last

    def forget_hub(self) -> None:
        """What the one before took says nothing of the next, and nor do its answers."""
        self.rounds = RoundTimes()
        self.reading.forget_hub()
        self._told = ToldTexts(self._told.num_tokens, *self._hub.told[1:])

    def note_step(self, size: int | None, seconds: float) -> None:
        """A step of vLLM's took so long.

        Args:
            size: its tokens; None if it did more than go on with rows of the last step, and read a prompt, say.
        """
        if self.reading.is_going_on and self.steps:
            is_comparable = size is not None and self.steps.covers(size)
            usual_s = float(self.steps.predict(np.array([size]))[0]) if is_comparable else None
            self.reading.note_step(seconds, usual_s)
        elif size is not None:
            self.steps.note(size, seconds)

    def note_round(self) -> None:
        """The hub's last round is looked at; of one that is left alone for a while nothing stays: it may be faster."""
        if not self._hub.is_serving:
            self.rounds = RoundTimes()
        elif self._hub.round is not None:
            self.rounds.note(self._hub.round)

    def note_told(self, waited_s: float, lengths: Sequence[int], now: float) -> None:
        """What a step told the hub, and what came of what it and others told it.

        Args:
            waited_s: for all that it asked for;
            lengths: drafts of so many tokens came.
        """
        told, before = self._hub.told, self._told
        if told.num_tokens > before.num_tokens:
            drafting_s = self.rounds.cost.seconds_of(lengths) if lengths else 0.0
            has_waited = told.num_opened > before.num_opened  # nobody waits for a row that catches up
            self.reading.note_told(told.num_tokens - before.num_tokens, waited_s - drafting_s if has_waited else None)
        self.notice_read(now)

    def notice_read(self, now: float) -> None:
        """What the hub has answered since it was looked at last."""
        told, before = self._hub.told, self._told
        self._told = told
        self.reading.note_answered(told.num_read - before.num_read, told.num_refused - before.num_refused)
        if self.reading.is_going_on and not self._hub.is_reading:
            self.reading.note_end(now)

    def end_step(self) -> None:
        """Whether or not anything was noted in it."""
        if not self.reading.is_going_on:
            self.steps.end_step()
