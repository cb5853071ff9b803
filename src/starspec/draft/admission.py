"""Whom the hub takes in: a pure function."""

from __future__ import annotations

from dataclasses import dataclass

from starspec.ids import SessionId
from starspec.wire.messages import PROTOCOL_VERSION, Hello, Refused, Welcome


@dataclass(frozen=True, slots=True, kw_only=True)
class HubTerms:
    """What a hub offers, and to whom."""

    draft_name: str
    vocab_fingerprint: str | None  # None: any vocabulary will do
    max_targets: int
    max_draft_tokens: int
    lease_s: float


def admit(terms: HubTerms, hello: Hello, num_targets: int) -> Welcome | Refused:
    """Answer a handshake.

    Args:
        num_targets: targets served now, the asking one not among them.
    Returns: a Welcome whose `session_id` and `port` the transport fills in, or a refusal that says what to change.
    """
    return (
        _refuse_version(hello)
        or _refuse_vocabulary(terms, hello)
        or _refuse_full(terms, num_targets)
        or Welcome(PROTOCOL_VERSION, SessionId(""), 0, terms.draft_name, terms.max_draft_tokens, terms.lease_s)
    )


def _refuse_version(hello: Hello) -> Refused | None:
    if hello.protocol_version == PROTOCOL_VERSION:
        return None
    return Refused.for_version(hello.protocol_version)


def _refuse_vocabulary(terms: HubTerms, hello: Hello) -> Refused | None:
    # The sizes may differ: embeddings are padded, and the fingerprint tells whether the tokens are the same.
    if terms.vocab_fingerprint in (None, hello.vocab_fingerprint):
        return None
    return Refused("vocabulary", f"the draft {terms.draft_name} does not share the target's tokenizer")


def _refuse_full(terms: HubTerms, num_targets: int) -> Refused | None:
    if num_targets < terms.max_targets:
        return None
    return Refused("full", f"all {terms.max_targets} places for targets are taken", retry_after_s=terms.lease_s)
