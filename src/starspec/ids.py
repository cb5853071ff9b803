"""Names for the ids that cross module borders, so that a type checker keeps them apart."""

from typing import Final, NamedTuple, NewType

Tag = NewType("Tag", int)
"""One decoding session at the hub. Unique per target link, never reused while the link lives."""

Epoch = NewType("Epoch", int)
"""Number of times that the target has told the hub where a tag stands. Stamped on every message; never goes back."""

TargetId = NewType("TargetId", str)
"""A target (spoke) as its operator named it: shown in metrics, tables and traces."""

LinkId = NewType("LinkId", str)
"""One handshake of a target with a hub: a reconnecting target gets a fresh one."""

RequestId = NewType("RequestId", str)
"""One generation request. Whoever submits it chooses the id; gateway, target and their messages all use that id."""

PeerId = NewType("PeerId", bytes)
"""One connection of a gateway to a target: its ZeroMQ routing id. A gateway that reconnects is a new peer."""

LOCAL: Final = PeerId(b"")
"""The peer of requests that are submitted within the target's own process."""


class RequestKey(NamedTuple):
    """A request as the engine holds it. Two peers may choose the same request id."""

    peer: PeerId
    request_id: RequestId
