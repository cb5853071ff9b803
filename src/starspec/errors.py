"""Everything that starspec raises on purpose.

StarspecError
├─ ConfigError              the operator's fault: the CLI prints one line and exits 2
│  ├─ ModelError            a model folder that is missing, corrupt or not supported
│  └─ VocabularyMismatch    target and draft do not share a tokenizer
├─ RequestError             the client's fault: HTTP 400 (or `status`), naming `param`
│  └─ ContextTooLong        the prompt leaves no room for a token
├─ CapacityError            nobody's fault: HTTP 429/503 with Retry-After
│  ├─ NoFreeRow             every cache row is leased
│  └─ QueueFull             the waiting line is at its bound
├─ LinkError                the network between two processes
│  ├─ PeerProtocolError     the peer sent something that the protocol forbids
│  ├─ LocalProtocolError    we tried to send something that the protocol forbids
│  └─ PeerLost              the peer is gone or silent
├─ CacheRangeError          a cache row was asked for slots that it does not have
├─ ForwardAborted           what was to come of a forward is of no use any more; caught by who said so
└─ OurBug                   an invariant broke: log it with its state, fail the request, keep serving
"""


class StarspecError(Exception):
    """Base of every error raised on purpose; its text is one sentence for the person who must act."""


class ConfigError(StarspecError):
    """The operator's fault; the CLI prints the sentence and exits 2."""


class ModelError(ConfigError):
    """A model that is missing, corrupt or of an unsupported kind."""


class VocabularyMismatch(ConfigError):
    """Target and draft do not share a tokenizer."""


class RequestError(StarspecError):
    """The client's fault.

    Args:
        message: one sentence that says what is wrong.
        param: the request's parameter at fault, or None.
        status: the HTTP status that fits.
    """

    def __init__(self, message: str, param: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.param = param
        self.status = status


class ContextTooLong(RequestError):
    """The prompt leaves no room for a single new token."""


class CapacityError(StarspecError):
    """Nobody's fault: try again after `retry_after_s` seconds."""

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class NoFreeRow(CapacityError):
    """Every cache row is leased."""


class QueueFull(CapacityError):
    """The waiting line is at its bound."""


class LinkError(StarspecError):
    """The network between two of our processes."""


class PeerProtocolError(LinkError):
    """The peer sent something that the protocol forbids."""


class LocalProtocolError(LinkError):
    """We tried to send something that the protocol forbids: a bug on this side."""


class PeerLost(LinkError):
    """The peer is gone or has been silent for too long."""


class CacheRangeError(StarspecError):
    """A cache row was asked for slots that it does not have."""


class ForwardAborted(StarspecError):
    """What was to come of a forward is of no use any more; nothing but the caches' unused slots has changed."""


class OurBug(StarspecError):
    """An invariant broke. Never the user's fault."""
