"""One request at a target: how much the target may answer, and the error by which the request ends."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from starspec.errors import CapacityError, OurBug, PeerLost, RequestError, StarspecError
from starspec.gateway.background import STEPS
from starspec.policy.retry_after import LEAST_S
from starspec.wire.codec import size_of
from starspec.wire.messages import GRAMMAR_FAILED, EngineOutput, Rejected, RequestSpec

MAX_TEXT: Final = 2**24  # characters of one answer
MAX_BYTES: Final = 2**27  # of the messages of one answer
TOKEN_BYTES: Final = 512  # of one token that comes alone, with its text and all that a message has beside
LOGPROB_BYTES: Final = 64  # of a token that is told with its log-probability
MAX_TOKENS: Final = 2**20  # of an answer that has no limit of its own
MORE_TOKENS: Final = 2**16  # than the limit that an answer has: nothing here depends on a target's keeping it exactly
FAILED: Final = "the target failed on this request; its log says more"

Sink = Callable[[EngineOutput | StarspecError], None]
"""Receives the outputs of one request. Nothing follows an error or an output with a finish reason."""


def num_positions(spec: RequestSpec) -> int:
    """Positions of the context that a request can need. Without `max_tokens` it needs room for one token."""
    return len(spec.prompt_token_ids) + (spec.max_tokens or 1) - 1


@dataclass(slots=True)
class OpenRequest:
    """One request at a target."""

    spec: RequestSpec
    sink: Sink
    has_begun: bool = False  # an output has come
    num_tokens: int = 0  # that came
    num_scored: int = 0  # tokens of its prompt whose log-probabilities came
    num_chars: int = 0
    num_bytes: int = 0  # of all that came

    def take(self, output: EngineOutput) -> bool:
        """Count an output. Returns: whether a target may answer so much; the gateway keeps it until all has come."""
        spec, self.has_begun = self.spec, True
        self.num_tokens += len(output.token_ids)
        self.num_scored += len(output.prompt_logprobs or ())
        self.num_chars += len(output.text)
        self.num_bytes += size_of(output)
        most = MORE_TOKENS + (MAX_TOKENS if spec.max_tokens is None else spec.max_tokens)
        most_scored = 0 if spec.prompt_logprobs is None else len(spec.prompt_token_ids)
        most_logprobs = 0 if spec.logprobs is None else len(output.token_ids)
        says_something = output.token_ids or output.prompt_logprobs or output.finish_reason is not None
        return (
            bool(says_something)  # else there could be any number of them
            and self.num_tokens <= most
            and self.num_scored <= most_scored
            and len(output.logprobs or ()) <= most_logprobs
            and self.num_chars <= MAX_TEXT
            and (output.verified is None or spec.draft is not None)
            and self.num_bytes
            <= min(MAX_BYTES, most * _value_bytes(spec.logprobs) + most_scored * _value_bytes(spec.prompt_logprobs))
        )


def _value_bytes(num_top: int | None) -> int:
    """Bytes that one token takes at most in messages, in the mean: itself, its text, and the likeliest at its place."""
    return TOKEN_BYTES + (0 if num_top is None else (1 + num_top) * LOGPROB_BYTES)


def fail_all(requests: Iterable[OpenRequest], why: str) -> None:
    """Tell these requests that their target is lost: a few now, and a few in each further turn of the event loop.

    To send a request to another target takes up to a millisecond.
    """
    left = iter(requests)
    for request in itertools.islice(left, STEPS):
        request.sink(PeerLost(why))
    if rest := list(left):
        asyncio.get_running_loop().call_soon(fail_all, rest, why)


def refusal_of(rejected: Rejected) -> StarspecError:
    """The error for a request that its target refused."""
    if rejected.status == 500:
        return OurBug(FAILED)
    is_capacity = rejected.status == 429 or rejected.status >= 500
    if is_capacity:
        return CapacityError(rejected.message, rejected.retry_after_s or LEAST_S)
    return RequestError(rejected.message, rejected.param, rejected.status)


def error_of(output: EngineOutput) -> StarspecError | None:
    """The error for a last output that ended neither by stop nor by length."""
    if output.finish_reason == "abort":
        why = output.stop_reason if isinstance(output.stop_reason, str) else "it may be shutting down"
        return CapacityError(f"the target aborted this request: {why}")
    if output.finish_reason == "error" and str(output.stop_reason).startswith(GRAMMAR_FAILED):
        return RequestError(str(output.stop_reason), "structured_outputs")
    if output.finish_reason == "error":
        return OurBug(FAILED)
    return None
