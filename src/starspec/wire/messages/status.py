"""What hubs and targets report of themselves, for tables, routing and `/metrics`."""

from __future__ import annotations

from starspec.ids import TargetId
from starspec.stats import HubStats, HubTargetStats, TargetStats
from starspec.wire.messages.base import (
    Message,
)


class Ask(Message, frozen=True):
    """anyone -> hub's public port or target: report yourself.

    On the serving link it is the first message of a connection, and the answer to one of another version is `Refused`;
    it also renews the lease.
    """

    protocol_version: int


class HubStatus(Message, frozen=True):
    """hub -> asker."""

    draft_name: str
    stats: HubStats
    targets: dict[TargetId, HubTargetStats] = {}  # noqa: RUF012 (msgspec copies it); by the target's name


class TargetStatus(Message, frozen=True):
    """target -> asker: what a router needs, and the statistics."""

    target_id: TargetId
    model: str
    max_model_len: int
    num_running: int
    num_waiting: int
    num_rows: int  # cache rows in all
    num_free_rows: int
    is_draft_connected: bool
    stats: TargetStats
    is_stopping: bool = False  # it drains: what runs ends, what is new is rejected
    max_num_requests: int | None = None  # that it holds at once, running and waiting; None: it does not say
