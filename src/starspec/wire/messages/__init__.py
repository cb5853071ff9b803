"""Every message between processes, one file for each link.

`draft_link.py`: between a target and its hub. `serving_link.py`: between a gateway and a target. `stage_link.py`:
between the stages of a target. `status.py`: what a hub or a target reports when it is asked.

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
from starspec.wire.messages.serving_link import (
    GRAMMAR_FAILED,
    Abort,
    DraftToVerify,
    EngineOutput,
    PromptLogprob,
    Rejected,
    RequestSpec,
    Submit,
    TokenLogprob,
    Verified,
)
from starspec.wire.messages.stage_link import (
    Alive,
    Attach,
    Attached,
    Beat,
    Detach,
    Gap,
    Identify,
    Identity,
    JudgeOf,
    Judges,
    Landing,
    Outdated,
    Retract,
    RowChange,
    RowLaw,
    StageWork,
    Traversal,
    VerdictOf,
    WindowHead,
)
from starspec.wire.messages.status import Ask, HubStatus, TargetStatus

HandshakeMessage = Hello | Ask
TargetToHub = Open | Features | Verdict | Close | Ping | Goodbye | Fault
HubToTarget = Proposal | Reopen | Pong | Goodbye | Fault
HubPublicReply = Welcome | Refused | HubStatus | Fault
GatewayToTarget = Submit | Abort | Ask
CoordinatorToStage = Attach | Beat | Retract | Detach | Identify
StageToCoordinator = Attached | Outdated | Refused | Alive | Gap | Landing | Identity
StageToStage = Traversal | Judges | Identify
StageToStageBefore = Identity
TargetToGateway = EngineOutput | Rejected | TargetStatus | Refused

__all__ = [
    "GRAMMAR_FAILED",
    "PROTOCOL_VERSION",
    "Abort",
    "Alive",
    "Ask",
    "Attach",
    "Attached",
    "Beat",
    "Close",
    "CoordinatorToStage",
    "Detach",
    "DraftToVerify",
    "Drawn",
    "EngineOutput",
    "Fault",
    "Features",
    "Gap",
    "GatewayToTarget",
    "Goodbye",
    "HandshakeMessage",
    "Hello",
    "HubPublicReply",
    "HubStatus",
    "HubToTarget",
    "Identify",
    "Identity",
    "JudgeOf",
    "Judges",
    "Landing",
    "LongOpen",
    "Message",
    "Open",
    "Outdated",
    "Ping",
    "Pong",
    "PromptLogprob",
    "Proposal",
    "Refused",
    "Rejected",
    "Reopen",
    "RequestSpec",
    "Retract",
    "RowChange",
    "RowLaw",
    "StageToCoordinator",
    "StageToStage",
    "StageToStageBefore",
    "StageWork",
    "Submit",
    "TargetStatus",
    "TargetToGateway",
    "TargetToHub",
    "TokenLogprob",
    "Top",
    "Traversal",
    "TreeShape",
    "Verdict",
    "VerdictOf",
    "Verified",
    "Welcome",
    "WindowHead",
]
