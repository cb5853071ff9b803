"""The exceptions that starspec raises on purpose.

StarspecError
├─ ConfigError              the operator's fault: the CLI prints one line and exits 2
│  ├─ ModelError            a model folder that is missing, corrupt or not supported
│  └─ VocabularyMismatch    target and draft do not share a tokenizer
├─ RequestError             the client's fault: HTTP 400 (or `status`), naming `param`
│  └─ ContextTooLong        the prompt leaves no room for the answer
├─ RequestTimedOut          the answer took longer than a request may: HTTP 504
├─ CapacityError            no capacity now: HTTP 429/503 with Retry-After
│  ├─ NoFreeRow             every cache row is leased
│  └─ QueueFull             the queue is at its limit
├─ LinkError                the network between two processes
│  ├─ PeerProtocolError     the peer sent something that the protocol forbids: HTTP 502 if it is a target
│  ├─ LocalProtocolError    we tried to send something that the protocol forbids
│  └─ PeerLost              the peer is gone or silent
├─ OutputError              a file or standard output cannot be written, as on a full disk: the CLI exits 1
├─ CacheRangeError          a cache row was asked for slots that it does not have
├─ ForwardAborted           a forward was cancelled, because its result is not needed any more
└─ OurBug                   an invariant is broken: log it, fail the request, keep serving
"""

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

RETRY_AFTER_S = 1.0  # where there is no capacity and nothing better is known; `policy/retry_after.py` has other times

# of the system, of the dynamic linker, of torch and of Rust
NO_MEMORY = ("Cannot allocate memory", "failed to map segment", "can't allocate memory", "memory allocation of")


class StarspecError(Exception):
    """Base of every error that is raised on purpose. Its text is one sentence for the person who must act."""


class ConfigError(StarspecError):
    """The operator's fault. The CLI prints the sentence and exits with 2."""


class ModelError(ConfigError):
    """A model is missing, corrupt or not supported."""


def out_of_memory(error: Exception) -> str | None:
    """The sentence about an error that says that the system gave no memory; None if it is another one.

    torch, its libraries and the readers of weights raise it as RuntimeErrors, ImportErrors and OSErrors.
    """
    if not isinstance(error, MemoryError) and not any(sign in str(error) for sign in NO_MEMORY):
        return None
    return (
        "there is not enough memory, or `ulimit -v` or a container allows too little: take a smaller model or a "
        "smaller --max-model-len, or free some"
    )


def outcome(compute: Callable[[], T]) -> T | BaseException:
    """What is computed for one request, or what that raised: the caller ends this request, and no other one.

    A panic of a library in Rust is no Exception, and yet no reason to end the process.

    Raises: KeyboardInterrupt and SystemExit, by which somebody ends the process.
    """
    try:
        return compute()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        return error


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
    """The prompt leaves no room for a single new token, or for as many as are asked for."""


class RequestTimedOut(StarspecError):
    """The answer was not finished within the time that a request has."""


class CapacityError(StarspecError):
    """No capacity now; try again after `retry_after_s` seconds."""

    def __init__(self, message: str, retry_after_s: float = RETRY_AFTER_S) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class NoFreeRow(CapacityError):
    """Every cache row is leased."""


class QueueFull(CapacityError):
    """The queue of waiting requests is at its limit."""


class LinkError(StarspecError):
    """A failure between two starspec processes."""


class PeerProtocolError(LinkError):
    """The peer sent something that the protocol forbids."""


class LocalProtocolError(LinkError):
    """We tried to send something that the protocol forbids: a bug on this side."""


class PeerLost(LinkError):
    """The peer is gone or has been silent for too long."""


class OutputError(StarspecError):
    """A result cannot be written. What was there before is still there."""


class CacheRangeError(StarspecError):
    """A cache row was asked for slots that it does not have."""


class ForwardAborted(StarspecError):
    """A forward was cancelled because its result is not needed. Only unused slots of the caches have changed."""


class OurBug(StarspecError):
    """An invariant is broken: a bug of starspec, never the user's fault."""
