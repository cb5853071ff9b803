"""The categories of prompts that lengths are compared in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle, islice

from starspec.config import nearest
from starspec.errors import ConfigError
from starspec.harness.datasets import Prompt, prompt_token_ids, spread
from starspec.harness.decode import Job
from starspec.harness.workbench import Sampling, Workbench


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


def jobs_of(
    bench: Workbench, name: str, prompts: Sequence[Prompt], num: int, temperature: float, max_lengths: tuple[int, int]
) -> list[Job]:
    """`num` requests of a category, evenly spread over its prompts. Prompts repeat, with other seeds, if it has fewer.

    Args:
        max_lengths: tokens of a prompt, at most (longer prompts are left out), and of an answer.
    Raises: ConfigError if no prompt is short enough.
    """
    max_prompt_tokens, max_tokens = max_lengths
    fitting = [each for each in prompts if len(prompt_token_ids(bench.tokenizer, each)) <= max_prompt_tokens]
    if not fitting:
        raise ConfigError(
            f"category '{name}': no prompt has at most {max_prompt_tokens} tokens (--max-prompt-tokens), and longer "
            "ones are left out; raise that, or name other --categories"
        )
    chosen = list(islice(cycle(spread(fitting, num)), num))
    return bench.jobs(chosen, Sampling(temperature=temperature), max_tokens)
