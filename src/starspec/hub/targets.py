"""All targets of a hub: what they ask of it together, who is admitted, who gives way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace

from starspec.config import HubConfig
from starspec.errors import OurBug
from starspec.hub.buffer import RequestBuffer
from starspec.hub.committed import DraftLimits
from starspec.hub.law_timer import LawTimer
from starspec.hub.sequence import DraftSequence
from starspec.hub.target_state import TargetState
from starspec.ids import LinkId, TargetId
from starspec.policy.admission import PAUSE_S, REVIEW_S, AdmissionControl, Load, count_max
from starspec.policy.capacity import num_full, typical
from starspec.policy.draft_batch import TagKey
from starspec.policy.fairness import HeldTag, tag_to_drop, target_to_take_from
from starspec.policy.peer_limits import rate_limit
from starspec.policy.run_ahead import AheadChoice
from starspec.speculation.budget import DraftBudget
from starspec.stats import HubStats, HubTargetStats
from starspec.tracing import Tracer


class ConnectedTargets:
    """All targets of a hub: what they ask of it together, and which of them are admitted.

    Args:
        config: admission, rate limits, latency objectives.
        sequences: of all targets; the hub changes this mapping.
        buffer: knows what draft steps cost.
        max_held_tokens: as Drafter.
        clock: times the targets' laws.
        trace: as for `TargetState`.
    """

    def __init__(
        self,
        config: HubConfig,
        sequences: Mapping[TagKey, DraftSequence],
        buffer: RequestBuffer,
        max_held_tokens: int,
        clock: Callable[[], float],
        trace: Tracer | None = None,
    ) -> None:
        self._config = config
        self._max_held_tokens = max_held_tokens
        # one for each name, not for each link: a target cannot raise its limit by connecting again
        self._rate_limits = {TargetId(name): rate_limit(rate) for name, rate in config.rate_limits.items()}
        self._links: dict[LinkId, TargetState] = {}
        self._admission = None if config.admission == "off" else AdmissionControl(config.admission)
        self._sequences = sequences
        self._buffer = buffer
        self._clock = clock
        self._trace = trace
        self._num_max = 0  # as counted last: counting takes a millisecond or two
        self._counted_s = float("-inf")

    def __len__(self) -> int:
        return len(self._links)

    def __contains__(self, link_id: LinkId) -> bool:
        return link_id in self._links

    def __getitem__(self, link_id: LinkId) -> TargetState:
        return self._links[link_id]

    def join(self, link_id: LinkId, target_id: TargetId, limits: DraftLimits) -> None:
        """A target connects. Raises: OurBug if the link exists."""
        if link_id in self._links:
            raise OurBug(f"link {link_id} of target {target_id} joins twice")
        objective_ms = self._config.slo_round_ms.get(target_id)
        self._links[link_id] = TargetState(
            target_id,
            limits,
            AheadChoice(self._config.run_ahead),
            LawTimer(self._clock),
            self._rate_limits.get(target_id),
            None if objective_ms is None else objective_ms / 1e3,
            self._trace,
        )

    def leave(self, link_id: LinkId) -> None:
        """A target is gone. Idempotent."""
        self._links.pop(link_id, None)
        if self._admission is not None:
            self._admission.leave(link_id)

    def ask_admission(self, link_id: LinkId, budget: DraftBudget, now: float) -> bool:
        """Whether the target is admitted. One that is not asks again with every tag that is to get draft tokens.

        Effects: the target may be admitted.
        """
        if self._admission is None or self._admission.is_admitted(link_id):
            return True
        return bool(budget.num_draft_tokens) and self._admission.ask(link_id, self._load(now), now)

    def tag_to_drop(self, link_id: LinkId, num_tokens: int | None = None) -> TagKey | None:
        """Whose place a target gets for another tag if all places are taken, as `policy/fairness.py` says.

        Args:
            num_tokens: of that tag, if it is memory for tokens that is taken.
        Returns: None if it gets none.
        """
        if num_tokens is None:
            largest = target_to_take_from({each: link.num_tags for each, link in self._links.items()}, link_id)
        else:
            held = {each: link.num_held_tokens for each, link in self._links.items()}
            largest = target_to_take_from(held, link_id, num_tokens)
        if largest is None:
            return None
        theirs = [(key, each) for key, each in self._sequences.items() if key.link_id == largest]
        return tag_to_drop(HeldTag(key, each.round.request is not None, each.last_used_s) for key, each in theirs)

    def holds_too_much(self, num_tokens: int) -> bool:
        """Whether the hub would hold too many tokens with so many more."""
        return sum(link.num_held_tokens for link in self._links.values()) + num_tokens > self._max_held_tokens

    def is_served_freely(self, link_id: LinkId) -> bool:
        """Whether the target gets every proposal that it asks for: it is admitted and has no rate limit."""
        is_admitted = self._admission is None or self._admission.is_admitted(link_id)
        return is_admitted and not self._links[link_id].has_rate_limit

    def review(self, now: float) -> None:
        """Withdraw admission from targets, if a review is due and others need the hub more."""
        if self._admission is not None and self._admission.is_review_due(now):
            for link_id, num_tags in Counter(key.link_id for key in self._sequences).items():
                self._links[link_id].note_sequences(num_tags)
            self._admission.review(self._load(now), now)

    def report(self, stats: HubStats, now: float) -> None:
        """Compute how many targets the hub can serve. Effects: `stats`."""
        load = self._load(now)
        demands = [demand for link_id, demand in load.demands.items() if link_id in load.busy]
        stats.num_full = 0
        if demands and load.cost is not None:
            one = typical(demands)
            service_s = one.num_steps * load.cost.alone_s
            stats.num_full = num_full(service_s, one.return_s) if service_s else 0
        if now - self._counted_s >= REVIEW_S:
            self._num_max, self._counted_s = count_max(demands, load), now
        stats.num_max = self._num_max
        if self._admission is not None:
            stats.num_admitted = self._admission.num_admitted

    def target_stats(self) -> dict[TargetId, HubTargetStats]:
        """Copies of each target's statistics, by name; the newest link counts if several have the same name."""
        num_tags = Counter(key.link_id for key in self._sequences)
        return {
            link.target_id: replace(deepcopy(link.stats), num_tags=num_tags[link_id])
            for link_id, link in self._links.items()
        }

    def check_integrity(self) -> None:
        """Raises: OurBug unless each target's counts are those of its sequences, and each of these has a target."""
        num_tags, num_tokens = Counter[LinkId](), Counter[LinkId]()
        for key, sequence in self._sequences.items():
            num_tags[key.link_id] += 1
            num_tokens[key.link_id] += len(sequence.token_ids)
        for link_id, link in self._links.items():
            counted, held = (link.num_tags, link.num_held_tokens), (num_tags[link_id], num_tokens[link_id])
            if counted != held:
                raise OurBug(f"link {link_id} has (tags, tokens) {held}, and {counted} are counted")
        if not num_tags.keys() <= self._links.keys():
            raise OurBug(f"of the sequences of {list(num_tags)}, some belong to no target")

    def _load(self, now: float) -> Load:
        demands = {link_id: link.demand() for link_id, link in self._links.items()}
        return Load(
            {link_id: demand for link_id, demand in demands.items() if demand is not None},
            {link_id: link.plain_tokens_per_s for link_id, link in self._links.items()},
            frozenset(key.link_id for key, each in self._sequences.items() if each.round.is_asking(now - PAUSE_S)),
            self._buffer.scheduler.step_cost,
            self._buffer.scheduler.max_sequences,
            frozenset(key.link_id for key in self._sequences),
            self._buffer.num_rows,
        )
