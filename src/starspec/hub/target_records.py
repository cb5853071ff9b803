"""All targets of a hub: what they ask of it together, and which of them it drafts for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace

from starspec.config import HubConfig
from starspec.errors import OurBug
from starspec.hub.buffer import RequestBuffer
from starspec.hub.sequence import DraftLimits, DraftSession
from starspec.hub.target_record import Spoke
from starspec.ids import SessionId, TargetId
from starspec.policy.admission import PAUSE_S, Load, Places
from starspec.policy.capacity import num_full, typical
from starspec.policy.draft_batch import TagKey
from starspec.policy.rate_limit import TokenBucket
from starspec.policy.run_ahead import AheadChoice
from starspec.speculation.budget import DraftBudget
from starspec.stats import HubStats, SpokeStats


class Spokes:
    """The targets, by session.

    Args:
        config: how many of them are drafted for at once, and what single ones are promised.
        sessions: of all targets; changed by others.
        buffer: knows what layers cost; changed by others.
    """

    def __init__(
        self,
        config: HubConfig,
        sessions: Mapping[TagKey, DraftSession],
        buffer: RequestBuffer,
    ) -> None:
        self._config = config
        # of a name, and not of a session: who connects anew has not got more
        self._buckets = {TargetId(name): TokenBucket(rate) for name, rate in config.rate_limits.items()}
        self._spokes: dict[SessionId, Spoke] = {}
        self._places = None if config.admission == "off" else Places(config.admission)
        self._sessions = sessions
        self._buffer = buffer

    def __len__(self) -> int:
        return len(self._spokes)

    def __contains__(self, session_id: SessionId) -> bool:
        return session_id in self._spokes

    def __getitem__(self, session_id: SessionId) -> Spoke:
        return self._spokes[session_id]

    def join(self, session_id: SessionId, target_id: TargetId, limits: DraftLimits) -> None:
        """A target comes. Raises: OurBug if it is there."""
        if session_id in self._spokes:
            raise OurBug(f"session {session_id} of target {target_id} joins twice")
        objective_ms = self._config.slo_round_ms.get(target_id)
        self._spokes[session_id] = Spoke(
            target_id,
            limits,
            AheadChoice(self._config.run_ahead),
            self._buckets.get(target_id),
            None if objective_ms is None else objective_ms / 1e3,
        )

    def leave(self, session_id: SessionId) -> None:
        """A target is gone. Idempotent."""
        self._spokes.pop(session_id, None)
        if self._places is not None:
            self._places.leave(session_id)

    def ask_place(self, session_id: SessionId, budget: DraftBudget, now: float) -> bool:
        """A target that has no place asks for one with every tag that is to get draft tokens.

        Returns: whether it is drafted for. Effects: it may get a place.
        """
        if self._places is None or self._places.is_held(session_id):
            return True
        return bool(budget.num_draft_tokens) and self._places.ask(session_id, self._load(now), now)

    def is_served_freely(self, session_id: SessionId) -> bool:
        """Whether the target is drafted for now, whatever it asks for: it holds a place and has no rate limit."""
        has_place = self._places is None or self._places.is_held(session_id)
        return has_place and not self._spokes[session_id].is_limited

    def review(self, now: float) -> None:
        """Take back places that others need more, if it is time to look."""
        if self._places is not None and self._places.is_review_due(now):
            for session_id, num_tags in Counter(key.session_id for key in self._sessions).items():
                self._spokes[session_id].note_sessions(num_tags)
            self._places.review(self._load(now), now)

    def count(self, stats: HubStats, now: float) -> None:
        """Say what is known of how many targets there may be. Effects: the statistics."""
        load = self._load(now)
        demands = [demand for name, demand in load.demands.items() if name in load.busy]
        stats.num_full = 0
        if demands and load.cost is not None:
            one = typical(demands)
            service_s = one.num_layers * load.cost.alone_s
            stats.num_full = num_full(service_s, one.return_s) if service_s else 0
        if self._places is not None:
            stats.num_places, stats.num_max = self._places.num_held, self._places.num_max

    def statuses(self) -> dict[TargetId, SpokeStats]:
        """What is known of each target, by name; of targets with the same name, of the one that came last."""
        num_tags = Counter(key.session_id for key in self._sessions)
        return {
            spoke.target_id: replace(deepcopy(spoke.stats), num_tags=num_tags[name])
            for name, spoke in self._spokes.items()
        }

    def _load(self, now: float) -> Load:
        demands = {name: spoke.demand() for name, spoke in self._spokes.items()}
        return Load(
            {name: demand for name, demand in demands.items() if demand is not None},
            {name: spoke.plain_tokens_per_s for name, spoke in self._spokes.items()},
            frozenset(key.session_id for key, session in self._sessions.items() if session.is_asking(now - PAUSE_S)),
            self._buffer.layer_cost,
            self._buffer.max_sessions,
            frozenset(key.session_id for key in self._sessions),
            self._buffer.num_rows,
        )
