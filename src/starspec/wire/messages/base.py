"""What all messages share: the protocol version, the bounds that a decoder checks, the base class."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from starspec.config import MAX_DRAFT_TOKENS, MAX_FEATURE_LAYERS, MAX_STOP_LEN, MIN_LEASE_S
from starspec.ids import Epoch, LinkId, RequestId, Tag, TargetId

PROTOCOL_VERSION = 2

# Bounds that a decoder checks.
TokenId = Annotated[int, Meta(ge=0, lt=2**31)]
TokenIdList = list[TokenId]
Count = Annotated[int, Meta(ge=0, lt=2**31)]
Seconds = Annotated[float, Meta(ge=0.0, le=1e9)]
TagNumber = Annotated[Tag, Meta(ge=0, lt=2**53)]
EpochNumber = Annotated[Epoch, Meta(ge=1, lt=2**53)]
Name = Annotated[str, Meta(min_length=1, max_length=200)]
TargetName = Annotated[TargetId, Meta(pattern="^[^\x00-\x1f\x7f-\x9f\u2028\u2029]{1,200}\\Z")]  # it ends in logs
LinkName = Annotated[LinkId, Meta(pattern="^[!-~]{1,200}$")]  # also a ZeroMQ routing id, of 255 bytes at most
LeaseSeconds = Annotated[float, Meta(ge=MIN_LEASE_S, le=1e9)]
RequestName = Annotated[RequestId, Meta(max_length=200)]
StopStrings = Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=MAX_STOP_LEN)], ...], Meta(max_length=64)]
FeatureLayers = Annotated[tuple[Count, ...], Meta(max_length=MAX_FEATURE_LAYERS)]
DraftCount = Annotated[int, Meta(ge=0, le=MAX_DRAFT_TOKENS)]


class Message(msgspec.Struct, frozen=True, tag_field="type", tag=str.lower, omit_defaults=True):
    """Base of all messages: a MessagePack map whose `type` names the class."""
