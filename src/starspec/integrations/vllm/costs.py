"""Tells the length policy's `Costs` what this server and its hub took in each step."""

from __future__ import annotations

from collections.abc import Sequence

from starspec.integrations.vllm.hub_client import HubClient, ToldTexts
from starspec.policy.length.costs import Costs
from starspec.policy.length.round_cost import RoundTimes


class HubCosts:
    """Looks at a hub client, and notes in `costs` what has changed since it looked last."""

    def __init__(self, hub: HubClient) -> None:
        self.costs = Costs()
        self._hub = hub
        self._told = ToldTexts()  # as it was when it was looked at last

    def forget_hub(self) -> None:
        """Another hub was found: costs of the last one say nothing about it, and neither do its answers."""
        self.costs.forget_hub()
        self._told = ToldTexts(self._told.num_tokens, *self._hub.told[1:])

    def look_at_answers(self, now: float) -> None:
        """Note what the hub has answered."""
        told, before = self._hub.told, self._told
        self._told = told
        prefill = self.costs.prefill
        prefill.add_answer(told.num_read - before.num_read, told.num_refused - before.num_refused)
        if prefill.is_going_on and not self._hub.is_reading:
            prefill.end(now)

    def look_at_round(self, waited_s: float, lengths: Sequence[int], now: float) -> None:
        """Note what came of a step's requests.

        Args:
            waited_s: for all that it asked for.
            lengths: tokens of each draft that came.
        """
        self._note_round()
        told, before = self._hub.told, self._told
        if told.num_tokens > before.num_tokens:
            drafting_s = self.costs.rounds.cost.seconds_of(lengths) if lengths else 0.0
            has_waited = told.num_opened > before.num_opened  # nobody waits for a row that catches up
            extra_s = waited_s - drafting_s if has_waited else None
            self.costs.prefill.add_request(told.num_tokens - before.num_tokens, extra_s)
        self.look_at_answers(now)

    def _note_round(self) -> None:
        """Rounds with a hub that is left alone for a while are forgotten: it may be faster after that."""
        if not self._hub.is_serving:
            self.costs.rounds = RoundTimes()
        elif self._hub.round is not None:
            self.costs.rounds.add(self._hub.round)
