"""Where an answer is in its grammar: whatever was looked at before, it says what a fresh matcher says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from starspec.config import MAX_DRAFT_TOKENS
from starspec.errors import RequestError
from starspec.grammars.compile import Grammars
from starspec.grammars.matcher import FittedDraft, GrammarMatcher
from starspec.models.synthetic.tokenizer import synthetic_tokenizer
from starspec.sampling.grammar import GrammarSpec
from starspec.speculation.tree import EMPTY_TREE, ROOT, DraftTree, Drawing, DrawnCandidates

EOS, VOCAB_SIZE = 256, 260  # the model has more logits than the tokenizer has tokens
OUTGROWING = "((a{0,100}){0,100}){0,100}b"  # its limits, after some thirty tokens


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
    fitted = matcher.fit(tree, 9)
    assert fitted == FittedDraft(DraftTree((a, b, EOS), (ROOT, 0, 1)), 3)
    assert fitted.tree.logprobs == (-1.0, -3.0, -6.0)
    assert allowed(matcher, []) == [a]
    assert behind(grammars, "[ab]+c", []).fit(DraftTree.chain([a, b, c, a]), 9).tree == DraftTree.chain([a, b, c])


def test_a_draft_within_the_grammar_is_left_as_it_is(tokenizer, grammars) -> None:
    tree = DraftTree.chain(tokenizer.encode("abc"))
    fitted = behind(grammars, "[a-c]+", []).fit(tree, 9)
    assert fitted.tree is tree
    assert fitted.num_kept == 3


@pytest.mark.parametrize(
    ("draft", "depth", "text", "num_kept"),
    [
        ("", 9, "abcd", 0),  # forced behind the root
        ("ab", 9, "abcd", 2),  # behind the draft's last token
        ("axyz", 9, "abcd", 1),  # in place of what the grammar refuses
        ("abcdaz", 9, "abcdaz!", 6),  # behind a choice
        ("abcdb", 9, "abcdb?", 5),
        ("", 3, "abc", 0),
        ("a", 3, "abc", 1),
        ("axyz", 0, "a", 1),  # none is to be forced
    ],
)
def test_what_a_grammar_forces_is_drafted_behind_what_it_leaves(
    tokenizer, grammars, draft: str, depth: int, text: str, num_kept: int
) -> None:
    matcher = behind(grammars, "abcd(a[yz]!|b\\?)+", [])
    fitted = matcher.fit(DraftTree.chain(tokenizer.encode(draft)), depth)
    assert (tokenizer.decode(fitted.tree.token_ids), fitted.num_kept) == (text, num_kept)
    assert allowed(matcher, []) == tokenizer.encode("a")


@pytest.mark.parametrize(
    ("draft", "depth", "text", "num_kept"),
    [
        ("", 9, "abcd", 0),
        ("a", 9, "abcda", 1),
        ("az", 9, "abcdaz!", 2),
        ("az", 6, "abcdaz", 2),
        ("b", 9, "abcdb?", 1),
        ("cz", 9, "abcd", 0),  # the grammar refuses it
    ],
)
def test_a_draft_may_go_on_behind_what_a_grammar_forces(
    tokenizer, grammars, draft: str, depth: int, text: str, num_kept: int
) -> None:
    matcher = behind(grammars, "abcd(a[yz]!|b\\?)+", [])
    assert matcher.forced(2) == tokenizer.encode("ab")
    assert matcher.forced(0) == []
    before = matcher.forced(9)
    fitted = matcher.fit(DraftTree.chain(tokenizer.encode(draft)), depth, before)
    assert (tokenizer.decode(fitted.tree.token_ids), fitted.num_kept, fitted.num_before) == (text, num_kept, 4)
    assert allowed(matcher, []) == tokenizer.encode("a")


def test_a_draft_behind_much_that_is_forced_is_cut(tokenizer, grammars) -> None:
    matcher, draft = behind(grammars, "a{60}[ab]+", []), DraftTree.chain(tokenizer.encode("b" * 9))
    fitted = matcher.fit(draft, 99, matcher.forced(60))
    assert (fitted.tree.num_draft_tokens, fitted.num_kept, fitted.num_before) == (MAX_DRAFT_TOKENS, 4, 60)


def test_each_leaf_of_a_tree_is_followed_by_what_it_forces(tokenizer, grammars) -> None:
    a, b, c, d, e = tokenizer.encode("abcde")
    drawn = {
        ROOT: DrawnCandidates((a, b), (a, b), (0.5, 0.5), Drawing.WITHOUT_REPLACEMENT),
        1: DrawnCandidates((e,), (e,), (1.0,), Drawing.WITHOUT_REPLACEMENT),
    }
    tree = DraftTree((a, b, e), (ROOT, ROOT, 1), drawn, (-0.7, -0.7, -0.1))
    fitted = behind(grammars, "acd+|bd", []).fit(tree, 9)
    assert fitted == FittedDraft(DraftTree((a, b, c, d, d), (ROOT, ROOT, 0, 2, 1), {ROOT: drawn[ROOT]}), 2)
    assert fitted.tree.logprobs == (-0.7, -0.7, 0.0, 0.0, 0.0)


def test_a_draft_has_no_more_tokens_than_a_window_may_have(tokenizer, grammars) -> None:
    fitted = behind(grammars, "a{300}", []).fit(DraftTree.chain(tokenizer.encode("aa")), 300)
    assert (fitted.tree.num_draft_tokens, fitted.num_kept) == (MAX_DRAFT_TOKENS, 2)


def test_what_is_forced_is_all_that_is_allowed(smollm2: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    grammars = Grammars(tokenizer, len(tokenizer), (tokenizer.eos_token_id,))
    num_forced = 0
    for text in ('{"größe": 12, "a long name": "red and green"}', '{"größe": 3, "a long name": "<|im_end|>"}'):
        matcher = grammars.compile(GrammarSpec("json", RECORD))
        for token_id in tokenizer.encode(text, split_special_tokens=True):
            forced = matcher.fit(EMPTY_TREE, 64).tree
            path: list[int] = []
            for sure in forced.token_ids:
                assert matcher.allowed(path).nonzero().flatten().tolist() == [sure]
                path.append(sure)
            num_forced += len(path)
            matcher.commit(token_id)
        assert (matcher.has_ended, matcher.failure) == (True, "")
    assert num_forced > 20


RECORD = """{"type": "object", "additionalProperties": false, "required": ["größe", "a long name"], "properties": {
    "größe": {"type": "integer"}, "a long name": {"enum": ["red and green", "red or green", "<|im_end|>"]}}}"""


def test_where_drafts_lead_to_is_no_failure_of_the_answer(tokenizer, grammars) -> None:
    matcher, a = behind(grammars, OUTGROWING, []), tokenizer.encode("a")
    for _ in range(3):
        fitted = matcher.fit(DraftTree.chain(a * 60), 0)
        assert fitted.tree.num_draft_tokens < 60
        assert not matcher.failure
        matcher.commit(*a)
    matcher.commit(*tokenizer.encode("b"))
    assert (matcher.has_ended, matcher.failure) == (True, "")


def test_a_token_that_was_not_allowed_is_a_failure(tokenizer, grammars) -> None:
    assert "gives no probability" in behind(grammars, "a", tokenizer.encode("b")).failure


def test_a_grammar_that_outgrows_its_limits_fails_and_says_so(tokenizer, grammars) -> None:
    matcher, letters = behind(grammars, OUTGROWING, []), tokenizer.encode("a")
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
    assert "</s>" in grammars.special_tokens
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
        assert (matcher.fit(DraftTree.chain(text), 0).num_kept == len(text)) == is_allowed
