"""What a head is measured on is nothing that it, or the head it was started from, has learnt."""

from __future__ import annotations

import random

import pytest

from starspec.bench.datasets import Prompt
from starspec.errors import ConfigError
from starspec.train.held_out import held_out, split

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
    chosen = held_out(PROMPTS, EVERY)
    assert [(text.index, text.is_greedy) for text in measured] == [(index, True) for index in sorted(chosen)]
    assert {text.index for text in learnt} == {*range(len(PROMPTS))} - chosen
    assert len(learnt) + 2 * len(measured) == len(texts)


def test_of_few_prompts_one_is_held_out_all_the_same():
    few = [PROMPTS[index] for index in range(len(PROMPTS)) if index not in held_out(PROMPTS, EVERY)][:3]
    assert len(held_out(few, EVERY)) == 1
    assert names_held_out(few) == names_held_out(few[::-1])


def test_prompts_that_are_all_held_out_leave_nothing_to_learn():
    chosen = [PROMPTS[index] for index in held_out(PROMPTS, EVERY)]
    with pytest.raises(ConfigError, match="too few answers"):
        split([Said(index) for index in range(len(chosen))], chosen, EVERY)
