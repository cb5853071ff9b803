"""How many tokens a request is worth asking for, after what it accepted."""

from __future__ import annotations

from starspec.integrations.vllm.draft_length import DraftLength


def test_a_draft_accepted_whole_might_have_been_longer() -> None:
    whole, cut = DraftLength(8), DraftLength(8)
    for _ in range(30):
        whole.note(num_drafted=2, num_accepted=2)
        cut.note(num_drafted=3, num_accepted=2)
    assert whole.choose() > cut.choose()


def test_who_accepts_nothing_gets_shorter_drafts_then_none() -> None:
    length = DraftLength(8)
    lengths: list[int] = []
    while num_tokens := length.choose():
        lengths.append(num_tokens)
        length.note(num_tokens, 0)
    assert lengths == sorted(lengths, reverse=True)
    assert len(set(lengths)) > 3
    assert (lengths[0], lengths[-1]) == (8, 2)
