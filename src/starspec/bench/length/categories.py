"""The categories of prompts that lengths are compared in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle, islice
from typing import Any

from starspec.config import nearest
from starspec.errors import ConfigError
from starspec.harness.datasets import Prompt, fitting_prompts, spread


def by_category(files: Mapping[str, Sequence[Prompt]], wanted: Sequence[str] = ()) -> dict[str, list[Prompt]]:
    """The prompts of each category.

    A file whose prompts are all of one category is a category, named after the file; another file has those that its
    prompts name.

    Args:
        files: name -> prompts.
        wanted: names of categories, in order; empty = all.
    Raises: ConfigError naming a wanted category that there is not.
    """
    found: dict[str, list[Prompt]] = {}
    for name, prompts in files.items():
        is_one = len({prompt.category for prompt in prompts}) == 1
        for prompt in prompts:
            found.setdefault(name if is_one else prompt.category or name, []).append(prompt)
    for name in wanted:
        if name not in found:
            raise ConfigError(f"--categories: there is no '{name}' among the prompts{nearest(name, list(found))}")
    return {name: found[name] for name in wanted or found}


def fitting_in(
    tokenizer: Any, categories: Mapping[str, Sequence[Prompt]], max_prompt_tokens: int
) -> dict[str, list[Prompt]]:
    """The categories with the prompts that are short enough.

    Args:
        tokenizer: the target's.
    Raises: ConfigError naming a category that has none.
    """
    fitting = {name: fitting_prompts(tokenizer, prompts, max_prompt_tokens) for name, prompts in categories.items()}
    for name, prompts in fitting.items():
        if not prompts:
            raise ConfigError(
                f"category '{name}': no prompt has at most {max_prompt_tokens} tokens (--max-prompt-tokens), and "
                "longer ones are left out; raise that, or name other --categories"
            )
    return fitting


def spread_repeated(prompts: Sequence[Prompt], num: int) -> list[Prompt]:
    """`num` of the prompts, evenly over all. They repeat if there are fewer."""
    return list(islice(cycle(spread(prompts, num)), num))
