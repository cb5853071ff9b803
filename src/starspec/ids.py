"""The kinds of ids that modules exchange, as distinct types."""

from typing import Final, NamedTuple, NewType

Tag = NewType("Tag", int)
"""One sequence at the hub. Unique for its link, and never reused while the link lives."""

Epoch = NewType("Epoch", int)
"""The number of messages that the target has sent about a tag. Every message of the tag carries it; it only grows."""

PipeEpoch = NewType("PipeEpoch", int)
"""One life of a pipe of stages, from the moment they are attached. It only grows, and every frame carries it."""

RowLease = NewType("RowLease", int)
"""One occupant of a cache row of a pipe. Never used again in the same pipe epoch."""

RowEpoch = NewType("RowEpoch", int)
"""How often tokens of a row's occupant were taken back after windows had been launched that stand on them."""

StageId = NewType("StageId", str)
"""One process that is a stage, whatever its endpoint is called. One that starts again gets another one."""

TargetId = NewType("TargetId", str)
"""The name of a target, chosen by its operator and shown in metrics, tables and traces."""

LinkId = NewType("LinkId", str)
"""One link of a target with a hub. A target that reconnects gets another one."""

RequestId = NewType("RequestId", str)
"""One generation request. Whoever submits it chooses the id; gateway, target and their messages all use that id."""

PeerId = NewType("PeerId", bytes)
"""One connection of a gateway to a target: its ZeroMQ routing id. A gateway that reconnects is a new peer."""

LOCAL: Final = PeerId(b"")
"""The peer of requests that are submitted within the target's own process."""


BadWords = tuple[tuple[int, ...], ...]
"""The sequences of token ids that an answer does not contain."""


class RequestKey(NamedTuple):
    """A request as the engine holds it. Two peers may choose the same request id."""

    peer: PeerId
    request_id: RequestId
