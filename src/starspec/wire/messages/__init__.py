"""Every message that crosses a process border, one file for each link.

`draft_link.py` is between a target and its hub, `serving_link.py` between a gateway and a target, `status.py` what
either reports of itself when it is asked.

Unknown fields are ignored, so a later minor version may add some; `PROTOCOL_VERSION` changes when meanings do. What
tells versions from each other keeps its meaning in all of them: `Hello`, `Ask` and `Refused`.
"""

from starspec.wire.messages.base import PROTOCOL_VERSION, Message
from starspec.wire.messages.draft_link import (
    Close,
    Drawn,
    Fault,
    Features,
    Goodbye,
    Hello,
    Open,
    Ping,
    Pong,
    Proposal,
    Refused,
    Reopen,
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
    "TreeShape",
    "Verdict",
    "Welcome",
]
