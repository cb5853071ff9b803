"""Tells the length policy's `Costs` what this server and its hub took in each step."""

from __future__ import annotations

from collections.abc import Sequence

from starspec.integrations.vllm.hub_client import HubClient, PrefillCounts
from starspec.policy.length.costs import Costs


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
