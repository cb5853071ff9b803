"""All targets of a hub: what they ask of it together, and which of them it drafts for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace

from starspec.config import HubConfig
from starspec.errors import OurBug
from starspec.hub.buffer import RequestBuffer
from starspec.hub.sequence import DraftLimits, DraftSequence
from starspec.hub.target_record import TargetRecord
from starspec.ids import LinkId, TargetId
from starspec.policy.admission import PAUSE_S, AdmissionControl, Load
from starspec.policy.capacity import num_full, typical
from starspec.policy.draft_batch import TagKey
from starspec.policy.rate_limit import TokenBucket
from starspec.policy.run_ahead import AheadChoice
from starspec.speculation.budget import DraftBudget
from starspec.stats import HubStats, HubTargetStats


class TargetRecords:
    """The targets, by sequence.

    Args:
        config: how many of them are drafted for at once, and what single ones are promised.
        sequences: of all targets; changed by others.
        buffer: knows what draft steps cost; changed by others.
    """

    def __init__(
        self,
        config: HubConfig,
        sequences: Mapping[TagKey, DraftSequence],
        buffer: RequestBuffer,
    ) -> None:
        self._config = config
        # of a name, and not of a sequence: who connects anew has not got more
        self._buckets = {TargetId(name): TokenBucket(rate) for name, rate in config.rate_limits.items()}
        self._records: dict[LinkId, TargetRecord] = {}
        self._admission = None if config.admission == "off" else AdmissionControl(config.admission)
        self._sequences = sequences
        self._buffer = buffer

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, link_id: LinkId) -> bool:
        return link_id in self._records

    def __getitem__(self, link_id: LinkId) -> TargetRecord:
        return self._records[link_id]

    def join(self, link_id: LinkId, target_id: TargetId, limits: DraftLimits) -> None:
        """A target comes. Raises: OurBug if it is there."""
        if link_id in self._records:
            raise OurBug(f"sequence {link_id} of target {target_id} joins twice")
        objective_ms = self._config.slo_round_ms.get(target_id)
        self._records[link_id] = TargetRecord(
            target_id,
            limits,
            AheadChoice(self._config.run_ahead),
            self._buckets.get(target_id),
            None if objective_ms is None else objective_ms / 1e3,
        )

    def leave(self, link_id: LinkId) -> None:
        """A target is gone. Idempotent."""
        self._records.pop(link_id, None)
        if self._admission is not None:
            self._admission.leave(link_id)

    def ask_admission(self, link_id: LinkId, budget: DraftBudget, now: float) -> bool:
        """A target that has no place asks for one with every tag that is to get draft tokens.

        Returns: whether it is drafted for. Effects: it may get a place.
        """
        if self._admission is None or self._admission.is_held(link_id):
            return True
        return bool(budget.num_draft_tokens) and self._admission.ask(link_id, self._load(now), now)

    def is_served_freely(self, link_id: LinkId) -> bool:
        """Whether the target is drafted for now, whatever it asks for: it holds a place and has no rate limit."""
        is_admitted = self._admission is None or self._admission.is_held(link_id)
        return is_admitted and not self._records[link_id].is_limited

    def review(self, now: float) -> None:
        """Take back places that others need more, if it is time to look."""
        if self._admission is not None and self._admission.is_review_due(now):
            for link_id, num_tags in Counter(key.link_id for key in self._sequences).items():
                self._records[link_id].note_sequences(num_tags)
            self._admission.review(self._load(now), now)

    def count(self, stats: HubStats, now: float) -> None:
        """Say what is known of how many targets there may be. Effects: the statistics."""
        load = self._load(now)
        demands = [demand for name, demand in load.demands.items() if name in load.busy]
        stats.num_full = 0
        if demands and load.cost is not None:
            one = typical(demands)
            service_s = one.num_steps * load.cost.alone_s
            stats.num_full = num_full(service_s, one.return_s) if service_s else 0
        if self._admission is not None:
            stats.num_admitted, stats.num_max = self._admission.num_held, self._admission.num_max

    def statuses(self) -> dict[TargetId, HubTargetStats]:
        """What is known of each target, by name; of targets with the same name, of the one that came last."""
        num_tags = Counter(key.link_id for key in self._sequences)
        return {
            record.target_id: replace(deepcopy(record.stats), num_tags=num_tags[name])
            for name, record in self._records.items()
        }

    def _load(self, now: float) -> Load:
        demands = {name: record.demand() for name, record in self._records.items()}
        return Load(
            {name: demand for name, demand in demands.items() if demand is not None},
            {name: record.plain_tokens_per_s for name, record in self._records.items()},
            frozenset(key.link_id for key, sequence in self._sequences.items() if sequence.is_asking(now - PAUSE_S)),
            self._buffer.step_cost,
            self._buffer.max_sequences,
            frozenset(key.link_id for key in self._sequences),
            self._buffer.num_rows,
        )
