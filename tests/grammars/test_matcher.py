"""Where an answer is in its grammar: whatever was looked at before, it says what a fresh matcher says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from starspec.errors import RequestError
from starspec.grammars.compile import Grammars
from starspec.grammars.matcher import GrammarMatcher
from starspec.models.synthetic.tokenizer import synthetic_tokenizer
from starspec.sampling.grammar import GrammarSpec
from starspec.speculation.tree import ROOT, DraftTree

EOS, VOCAB_SIZE = 256, 260  # the model has more logits than the tokenizer has tokens


@pytest.fixture(scope="module")
def tokenizer(byte_model: Path):
    return AutoTokenizer.from_pretrained(byte_model)


@pytest.fixture(scope="module")
def grammars(tokenizer) -> Grammars:
    return Grammars(tokenizer, VOCAB_SIZE, (EOS,))


def behind(grammars: Grammars, regex: str, token_ids: list[int]) -> GrammarMatcher:
    matcher = grammars.compile(GrammarSpec("regex", regex))
    for token_id in token_ids:
        matcher.commit(token_id)
    return matcher


def allowed(matcher: GrammarMatcher, path: list[int]) -> list[int]:
    mask = matcher.allowed(path)
    assert (mask.shape, mask.dtype) == ((VOCAB_SIZE,), torch.bool)
    return mask.nonzero().flatten().tolist()


def test_the_end_is_allowed_where_the_grammar_may_end_and_alone_where_it_must(tokenizer, grammars) -> None:
    a, b = tokenizer.encode("ab")
    matcher = behind(grammars, "ab?", [])
    assert allowed(matcher, []) == [a]
    assert allowed(matcher, [a]) == [b, EOS]
    assert allowed(matcher, [a, b]) == allowed(matcher, [a, EOS]) == allowed(matcher, [a, b, EOS]) == [EOS]
    assert not matcher.has_ended
    matcher.commit(a)
    assert not matcher.has_ended
    matcher.commit(b)
    assert matcher.has_ended
    assert not matcher.failure


def test_the_end_token_ends_what_might_go_on(tokenizer, grammars) -> None:
    matcher = behind(grammars, "a+", tokenizer.encode("aa"))
    assert not matcher.has_ended
    matcher.commit(EOS)
    assert matcher.has_ended


@given(data=st.data())
def test_what_was_looked_at_before_changes_nothing(data, tokenizer, grammars) -> None:
    regex = "(a[bc]{0,3}|b(ca)+|é)*c"
    letters = tokenizer.encode("abcé")
    looked = behind(grammars, regex, [])
    committed: list[int] = []
    for _ in range(data.draw(st.integers(0, 4))):
        for path in data.draw(st.lists(st.lists(st.sampled_from([*letters, EOS]), max_size=4), max_size=4)):
            fresh = behind(grammars, regex, committed)
            walked = []
            for token_id in path:  # as the walk through a tree: along allowed tokens
                if token_id not in allowed(fresh, walked):
                    break
                walked.append(token_id)
            assert allowed(looked, walked) == allowed(behind(grammars, regex, [*committed, *walked]), [])
        token_id = data.draw(st.sampled_from(allowed(looked, [])))
        looked.commit(token_id)
        committed.append(token_id)
        assert looked.has_ended == behind(grammars, regex, committed).has_ended
        if looked.has_ended:
            return


def test_a_draft_loses_what_the_grammar_refuses_and_all_below_it(tokenizer, grammars) -> None:
    a, b, c = tokenizer.encode("abc")
    tree = DraftTree((a, b, b, c, a, EOS), (ROOT, ROOT, 0, 0, 1, 2), logprobs=(-1.0, -2.0, -3.0, -4.0, -5.0, -6.0))
    #  committed ── 0:"a" ─┬─ 2:"b" ── 5:end
    #            │         └─ 3:"c"
    #            └─ 1:"b" ── 4:"a"
    matcher = behind(grammars, "ab+", [])
    pruned = matcher.prune(tree)
    assert pruned == DraftTree((a, b, EOS), (ROOT, 0, 1))
    assert pruned.logprobs == (-1.0, -3.0, -6.0)
    assert allowed(matcher, []) == [a]
    assert behind(grammars, "[ab]+c", []).prune(DraftTree.chain([a, b, c, a])) == DraftTree.chain([a, b, c])


def test_a_draft_within_the_grammar_is_left_as_it_is(tokenizer, grammars) -> None:
    tree = DraftTree.chain(tokenizer.encode("abc"))
    assert behind(grammars, "[a-c]+", []).prune(tree) is tree


def test_a_token_that_was_not_allowed_is_a_failure(tokenizer, grammars) -> None:
    assert "gives no probability" in behind(grammars, "a", tokenizer.encode("b")).failure


def test_a_grammar_that_outgrows_its_limits_fails_and_says_so(tokenizer, grammars) -> None:
    matcher, letters = behind(grammars, "((a{0,100}){0,100}){0,100}b", []), tokenizer.encode("a")
    for _ in range(40):
        allowed(matcher, letters)
        if matcher.failure:
            break
        matcher.commit(*letters)
    assert "too many" in matcher.failure
    assert allowed(matcher, []) == [EOS]


@pytest.mark.parametrize(
    ("kind", "text", "answer"),
    [
        ("choice", '["</s>"]', "</s>"),
        ("regex", "a?</s>b", "</s>b"),
        ("json", '{"const": "</s></s>"}', '"</s></s>"'),
        ("grammar", 'start: "<" "/s>"', "</s>"),
    ],
)
def test_the_name_of_a_special_token_is_spelled_where_a_grammar_says_it(
    tokenizer, grammars, kind: str, text: str, answer: str
) -> None:
    matcher = grammars.compile(GrammarSpec(kind, text))
    for token_id in _spelled(tokenizer, answer):
        assert token_id in allowed(matcher, [])
        assert EOS not in allowed(matcher, [])
        matcher.commit(token_id)
    assert (matcher.has_ended, matcher.failure) == (True, "")


def test_lark_may_name_a_special_token(grammars) -> None:
    assert allowed(grammars.compile(GrammarSpec("grammar", 'start: </s> "a"')), []) == [EOS]


def _spelled(tokenizer, text: str) -> list[int]:
    return [token_id for letter in text for token_id in tokenizer.encode(letter)]


def test_words_are_no_bytes_so_their_tokenizer_is_refused() -> None:
    grammars = Grammars(synthetic_tokenizer("synthetic:vocab=256"), 256, (0,))
    with pytest.raises(RequestError, match="does not say what bytes its tokens are"):
        grammars.compile(GrammarSpec("regex", "a"))


def test_whitespace_between_the_parts_of_json_is_bounded(tokenizer, grammars) -> None:
    for num, is_allowed in ((20, True), (21, False)):
        text = tokenizer.encode('{"a":' + " " * num + '1, "b": 2}')
        matcher = grammars.compile(GrammarSpec("json", '{"type": "object"}'))
        assert (matcher.prune(DraftTree.chain(text)).num_draft_tokens == len(text)) == is_allowed
