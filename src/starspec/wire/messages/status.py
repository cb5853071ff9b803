"""What hubs and targets report about themselves, for tables, routing and `/metrics`."""

from __future__ import annotations

from starspec.ids import TargetId
from starspec.stats import HubState, HubStats, HubTargetStats, TargetStats
from starspec.wire.messages.base import Count, Message, Seconds


class Ask(Message, frozen=True):
    """anyone -> hub's public port, or gateway -> target: send your status.

    A gateway sends it first on a new connection and repeats it, which renews the lease. A peer of another protocol
    version gets `Refused`, and so does one that takes a stage for a target or a hub.
    """

    protocol_version: int


class HubStatus(Message, frozen=True):
    """hub -> whoever sent `Ask`: the hub's statistics."""

    draft_name: str
    stats: HubStats
    targets: dict[TargetId, HubTargetStats] = {}  # noqa: RUF012 (msgspec copies it); by the target's name


class TargetStatus(Message, frozen=True):
    """target -> gateway: what a router needs, and the statistics."""

    target_id: TargetId
    model: str
    max_model_len: Count
    num_running: Count
    num_waiting: Count
    num_rows: Count  # cache rows in all
    num_free_rows: Count
    is_draft_connected: bool
    stats: TargetStats
    is_stopping: bool = False  # it drains: running requests end, new ones are rejected
    max_num_requests: Count | None = None  # requests that it holds at most, running and waiting; None: not reported
    hub_state: HubState | None = None  # None: it has no hub, or does not report it
    hub_state_s: Seconds = 0.0  # since when, in seconds before now
    has_grammars: bool = False  # it can hold answers to grammars
    has_bad_words: bool = False  # it keeps bad words out of answers
    lacks_stages: bool = False  # stages of its model are gone, and it takes no request until they are back
