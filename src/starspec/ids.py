"""Names for the ids that cross module borders, so that a type checker keeps them apart."""

from typing import NewType

Tag = NewType("Tag", int)
"""One decoding session at the hub. Unique per target link, never reused while the link lives."""

Epoch = NewType("Epoch", int)
"""Number of times that the target has told the hub where a tag stands. Stamped on every message; never goes back."""

TargetId = NewType("TargetId", str)
"""A target (spoke) as its operator named it: shown in metrics, tables and traces."""

LinkId = NewType("LinkId", str)
"""One handshake of a target with a hub: a reconnecting target gets a fresh one."""

RequestId = NewType("RequestId", str)
"""One generation request between gateway and target."""
