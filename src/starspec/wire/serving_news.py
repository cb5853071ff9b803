"""What a gateway hears from a target, or about it."""

from __future__ import annotations

from dataclasses import dataclass

from starspec.ids import RequestId
from starspec.wire.messages import HubStatus, TargetToGateway


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Something about this request came that is not a message, so its answer would have a gap."""

    request_id: RequestId
    why: str


FromTarget = TargetToGateway | HubStatus | Unreadable
"""A hub's status is the answer of a hub: the address is not a target's."""
