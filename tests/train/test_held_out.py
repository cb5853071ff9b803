"""What a head is measured on is nothing that it, or the head it was started from, has learnt."""

from __future__ import annotations

import random

import pytest

from starspec.errors import ConfigError
from starspec.harness.datasets import Prompt
from starspec.train.evaluate import split

EVERY = 5
PROMPTS = [Prompt(f"p{number}", "", f"What is {number} times {number}?") for number in range(200)]


class Said:
    """What `split` looks at of a text."""

    def __init__(self, index, is_greedy=True):
        self.index = index
        self.is_greedy = is_greedy


def names_held_out(prompts):
    measured, _ = split([Said(index) for index in range(len(prompts))], prompts, EVERY)
    return {prompts[text.index].name for text in measured}


def test_a_prompt_is_held_out_wherever_it_stands_and_whatever_else_there_is():
    others = [Prompt(f"q{number}", "", f"Name {number} rivers.") for number in range(90)]
    mixed = random.Random(1).sample(PROMPTS + others, k=290)
    assert names_held_out(PROMPTS) == {name for name in names_held_out(mixed) if name.startswith("p")}


def test_about_as_many_are_held_out_as_were_asked_for():
    assert 0.5 * len(PROMPTS) / EVERY < len(names_held_out(PROMPTS)) < 2 * len(PROMPTS) / EVERY


def test_each_answer_is_measured_on_or_learnt_from_and_sampled_ones_of_held_out_prompts_are_neither():
    texts = [Said(index, is_greedy) for index in range(len(PROMPTS)) for is_greedy in (True, False)]
    measured, learnt = split(texts, PROMPTS, EVERY)
    chosen = {text.index for text in measured}
    assert {PROMPTS[index].name for index in chosen} == names_held_out(PROMPTS)
    assert all(text.is_greedy for text in measured)
    assert {text.index for text in learnt} == {*range(len(PROMPTS))} - chosen
    assert len(learnt) + 2 * len(measured) == len(texts)


def test_where_none_of_few_answers_would_be_held_out_one_greedy_one_is():
    """Whatever other prompts there are that were not answered."""
    numbers = [index for index in range(200) if PROMPTS[index].name not in names_held_out(PROMPTS)][:4]
    few = [Said(numbers[0], is_greedy=False), *map(Said, numbers[1:])]
    measured, learnt = split(few, PROMPTS, EVERY)
    assert [text.is_greedy for text in measured] == [True]
    assert len(learnt) == 3
    assert [text.index for text in split(few[::-1], PROMPTS, EVERY)[0]] == [text.index for text in measured]


def test_one_prompt_leaves_nothing_to_learn():
    with pytest.raises(ConfigError, match="too few answers"):
        split([Said(0)], PROMPTS[:1], EVERY)
