"""Which prompts a head is measured on, and never learns from."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from starspec.bench.datasets import Prompt
from starspec.errors import ConfigError
from starspec.train.features import Text


def split(texts: Sequence[Text], prompts: Sequence[Prompt], every: int) -> tuple[list[Text], list[Text]]:
    """Divide texts into those for measuring and those for learning.

    Args:
        prompts: by the index that a text names.
        every: one prompt of about so many is held out. Of its answers the greedy ones are for measuring.
    Returns: held out, learnt from.
    Raises: ConfigError if there is nothing to learn from.
    """
    indices = held_out(prompts, every)
    learnt = [text for text in texts if text.index not in indices]
    if not learnt:
        raise ConfigError("there are too few answers to learn from: more prompts are needed")
    return [text for text in texts if text.index in indices and text.is_greedy], learnt


def held_out(prompts: Sequence[Prompt], every: int) -> set[int]:
    """Indices of prompts. Each is chosen by its text alone, for a head that is started from another may be given the
    other's prompts in another order, or among more, and is not to be measured on what the other learnt.

    Of few prompts none may be chosen so; then it is one of them.
    """
    numbers = [int.from_bytes(hashlib.sha256(prompt.text.encode()).digest()[:8]) for prompt in prompts]
    return {index for index, number in enumerate(numbers) if number % every == 0} or {numbers.index(min(numbers))}
