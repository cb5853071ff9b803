"""Every message between processes, one file for each link.

`draft_link.py`: between a target and its hub. `serving_link.py`: between a gateway and a target. `status.py`: what a
hub or a target reports when it is asked.

A decoder ignores unknown fields, so a minor version may add fields. A change of meaning needs another
`PROTOCOL_VERSION`. `Hello`, `Ask` and `Refused`, which detect other versions, mean the same in all versions.
"""

from starspec.wire.messages.base import PROTOCOL_VERSION, Message
from starspec.wire.messages.draft_link import (
    Close,
    Drawn,
    Fault,
    Features,
    Goodbye,
    Hello,
    LongOpen,
    Open,
    Ping,
    Pong,
    Proposal,
    Refused,
    Reopen,
    Top,
    TreeShape,
    Verdict,
    Welcome,
)
from starspec.wire.messages.serving_link import Abort, EngineOutput, Rejected, RequestSpec, Submit, TokenLogprob
from starspec.wire.messages.status import Ask, HubStatus, TargetStatus

HandshakeMessage = Hello | Ask
TargetToHub = Open | Features | Verdict | Close | Ping | Goodbye | Fault
HubToTarget = Proposal | Reopen | Pong | Goodbye | Fault
HubPublicReply = Welcome | Refused | HubStatus | Fault
GatewayToTarget = Submit | Abort | Ask
TargetToGateway = EngineOutput | Rejected | TargetStatus | Refused

__all__ = [
    "PROTOCOL_VERSION",
    "Abort",
    "Ask",
    "Close",
    "Drawn",
    "EngineOutput",
    "Fault",
    "Features",
    "GatewayToTarget",
    "Goodbye",
    "HandshakeMessage",
    "Hello",
    "HubPublicReply",
    "HubStatus",
    "HubToTarget",
    "LongOpen",
    "Message",
    "Open",
    "Ping",
    "Pong",
    "Proposal",
    "Refused",
    "Rejected",
    "Reopen",
    "RequestSpec",
    "Submit",
    "TargetStatus",
    "TargetToGateway",
    "TargetToHub",
    "TokenLogprob",
    "Top",
    "TreeShape",
    "Verdict",
    "Welcome",
]
