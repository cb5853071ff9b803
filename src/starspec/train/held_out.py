"""Which prompts a head is measured on, and never learns from."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from starspec.errors import ConfigError
from starspec.harness.datasets import Prompt
from starspec.train.features import Text


def split(texts: Sequence[Text], prompts: Sequence[Prompt], every: int) -> tuple[list[Text], list[Text]]:
    """Divide texts into those for measuring and those for learning.

    Prompts are chosen by their text alone, for a head that is started from another may be given the other's prompts in
    another order, or among more, and is not to be measured on what the other learnt. Of few texts none may be chosen
    so; then it is one of them.

    Args:
        prompts: by the index that a text names.
        every: one prompt of about so many is held out. Of its answers the greedy ones are for measuring.
    Returns: held out, learnt from.
    Raises: ConfigError if there is nothing to learn from.
    """
    numbers = {text.index: _number_of(prompts[text.index]) for text in texts}
    chosen = {index for index, number in numbers.items() if number % every == 0}
    greedy = {text.index for text in texts if text.is_greedy}
    if greedy and not chosen & greedy:
        chosen.add(min(greedy, key=numbers.__getitem__))
    learnt = [text for text in texts if text.index not in chosen]
    if not learnt:
        raise ConfigError("there are too few answers to learn from: more prompts are needed")
    return [text for text in texts if text.index in chosen and text.is_greedy], learnt


def _number_of(prompt: Prompt) -> int:
    return int.from_bytes(hashlib.sha256(prompt.text.encode()).digest()[:8])
