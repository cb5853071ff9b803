"""Whom the hub takes in, and what it says to the others."""

from __future__ import annotations

import pytest

from starspec.hub.handshake import HubTerms, admit
from starspec.ids import TargetId
from starspec.wire.messages import PROTOCOL_VERSION, Hello, Refused, Welcome

TERMS = HubTerms(draft_name="small", vocab_fingerprint="abc", max_targets=2, max_draft_tokens=8, lease_s=10.0)


def hello(version: int = PROTOCOL_VERSION, vocab_size: int = 100, fingerprint: str = "abc") -> Hello:
    return Hello(version, TargetId("t"), vocab_size, fingerprint)


def test_a_target_that_fits_is_told_the_terms() -> None:
    answer = admit(TERMS, hello(), 1)
    assert isinstance(answer, Welcome)
    assert (answer.draft_name, answer.max_draft_tokens, answer.lease_s) == ("small", 8, 10.0)


@pytest.mark.parametrize("vocab_size", [99, 101, 2**17])
def test_a_padded_vocabulary_is_no_reason_to_refuse(vocab_size: int) -> None:
    assert isinstance(admit(TERMS, hello(vocab_size=vocab_size), 0), Welcome)


def test_another_protocol_version_is_refused_for_good_and_names_both_versions() -> None:
    answer = admit(TERMS, hello(version=99), 0)
    assert isinstance(answer, Refused)
    assert (answer.code, answer.retry_after_s) == ("version", None)
    assert "99" in answer.reason
    assert str(PROTOCOL_VERSION) in answer.reason


def test_another_vocabulary_is_refused_for_good() -> None:
    answer = admit(TERMS, hello(fingerprint="xyz"), 0)
    assert isinstance(answer, Refused)
    assert (answer.code, answer.retry_after_s) == ("vocabulary", None)


def test_a_drafter_without_a_vocabulary_takes_any() -> None:
    terms = HubTerms(draft_name="ngram", vocab_fingerprint=None, max_targets=2, max_draft_tokens=8, lease_s=10.0)
    assert isinstance(admit(terms, hello(fingerprint="xyz"), 0), Welcome)


def test_a_full_hub_says_when_to_ask_again() -> None:
    answer = admit(TERMS, hello(), 2)
    assert isinstance(answer, Refused)
    assert (answer.code, answer.retry_after_s) == ("full", 10.0)
