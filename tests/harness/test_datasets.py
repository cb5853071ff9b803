"""Prompt files: what is read, what is refused, what a model is given."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starspec.config import ModelConfig
from starspec.errors import ConfigError
from starspec.harness.datasets import (
    Prompt,
    check_fit,
    hash_prompts,
    own_prompts,
    prompt_token_ids,
    read_prompts,
    spread,
)
from starspec.models.synthetic.tokenizer import synthetic_tokenizer


def test_our_own_prompts_are_enough_for_every_sample_and_differ() -> None:
    prompts = own_prompts()
    assert len(prompts) >= 24
    assert len({each.name for each in prompts}) == len({each.text for each in prompts}) == len(prompts)


def test_the_turns_of_each_line_are_read(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(
        '{"id": "a", "category": "code", "turns": ["x =", "more"], "reference": null}\n\n{"turns": ["why?"]}\n'
    )
    assert read_prompts(path) == [Prompt("a", "code", "x =", ("more",)), Prompt("line-3", "", "why?")]


def test_a_prompt_that_no_target_would_answer_is_named_before_weights_are_read() -> None:
    target = ModelConfig(model="synthetic:", max_model_len=8)
    check_fit([Prompt("seven", "plain", "bipa " * 7)], target)
    with pytest.raises(ConfigError, match="prompt 'eight' has 8 tokens, and this model's context holds 8 with"):
        check_fit([Prompt("seven", "plain", "bipa " * 7), Prompt("eight", "plain", "bipa " * 8)], target)
    with pytest.raises(ConfigError, match="prompt 'none' is empty: leave it out"):
        check_fit([Prompt("none", "plain", "")], target)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "there are none"),
        (b'{"turns": []}', "line 1"),
        (b'{"turns": ["a"]}\n{"turns": "b"}', "line 2"),
        (b"no json", "line 1"),
        (b'{"turns": ["a"], "extra": ' + b"[" * 20000 + b"]" * 20000 + b"}", "line 1: maximum recursion depth"),
        (b'{"turns": ["a"]}\n\n{"turns": ["caf\xe9"]}', "line 3: 'utf-8' codec can't decode byte 0xe9"),
        (rb'{"turns": ["a\ud800b"]}', r"line 1: .*'\\ud800' in position .*: surrogates not allowed"),
        (b'{\n  "turns": ["a"]\n}', "line 1: .*one JSON object a line, in UTF-8"),
        ('{"turns": ["a"]}'.encode("utf-16"), "line 1: .*one JSON object a line, in UTF-8"),
    ],
)
def test_a_file_that_holds_no_prompts_is_refused_with_its_line(tmp_path: Path, content: bytes, what: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"bad\.jsonl.*{what}"):
        read_prompts(path)


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"turns": ["why?"]}\n', encoding="utf-8-sig")
    assert [prompt.text for prompt in read_prompts(path)] == ["why?"]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.jsonl' cannot be read: No such file"):
        read_prompts(tmp_path / "nowhere.jsonl")


@given(st.lists(st.integers(), max_size=40), st.integers(0, 50))
def test_spread_keeps_order_and_takes_each_entry_once_at_most(entries: list[int], num: int) -> None:
    numbered = list(enumerate(entries))
    chosen = spread(numbered, num)
    assert len(chosen) == min(num, len(entries))
    assert chosen == sorted(set(chosen))


def test_spread_reaches_over_the_whole_file() -> None:
    assert spread(range(100), 4) == [0, 25, 50, 75]


def test_questions_get_the_chat_template_and_texts_to_continue_do_not() -> None:
    tokenizer = synthetic_tokenizer("synthetic:vocab=128")
    user = tokenizer.convert_tokens_to_ids("<user>")
    assert user in prompt_token_ids(tokenizer, Prompt("a", "math", "bipa"))
    assert user not in prompt_token_ids(tokenizer, Prompt("a", "plain", "bipa"))


def test_without_a_template_every_prompt_is_text() -> None:
    tokenizer = synthetic_tokenizer("synthetic:vocab=128")
    tokenizer.chat_template = None
    prompt = Prompt("a", "math", "bipa bigu")
    assert prompt_token_ids(tokenizer, prompt) == tokenizer.encode("bipa bigu")


def test_the_hash_tells_prompts_apart_and_repeats() -> None:
    one, other = Prompt("a", "x", "text"), Prompt("a", "x", "other text")
    assert hash_prompts([one]) == hash_prompts([Prompt("a", "x", "text")]) != hash_prompts([other])
    assert hash_prompts([one, other]) != hash_prompts([other, one])
    assert hash_prompts([one]) != hash_prompts([Prompt("a", "plain", "text")])  # which is read without a template
