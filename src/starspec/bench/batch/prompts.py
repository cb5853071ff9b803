"""Which prompts a batch is made of: as they come, of one context size, or all of one length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, cycle, islice
from statistics import median_low

from starspec.harness.decode import Job

SPREAD = 8  # contexts of n tokens are n - n / SPREAD .. n tokens long


def of_context(jobs: Sequence[Job], others: Sequence[Job], num_tokens: int) -> list[Job]:
    """The jobs with other prompts before their own, so that each reads about `num_tokens` tokens.

    Lengths differ by up to an eighth, as a real batch's do; the last tokens are those of the job's own prompt. Where
    the others have too few tokens, they come again.

    Args:
        others: whose prompts are put there, each job's from another one on, never its own prompt.
    """
    grown = []
    for index, job in enumerate(jobs):
        length = num_tokens - index * 7919 % max(1, num_tokens // SPREAD)
        first = index * len(others) // len(jobs)
        turns = [*others[first:], *others[:first]]
        strangers = [each.prompt_token_ids for each in turns if each.prompt_token_ids != job.prompt_token_ids]
        before = islice(cycle(chain.from_iterable(strangers)), length)  # nothing if there are none
        grown.append(replace(job, prompt_token_ids=(*before, *job.prompt_token_ids)[-length:]))
    return grown


def of_one_length(jobs: Sequence[Job]) -> list[Job]:
    """The jobs whose prompts have at least the median's tokens, cut to as many: the paper's All-Mean study.

    The paper takes descriptions that have the mean length. In a set of mixed tasks too few have any one length, so
    here the last tokens of longer ones are kept, with which the chat template ends.
    """
    length = median_low(len(job.prompt_token_ids) for job in jobs)
    return [
        replace(job, prompt_token_ids=job.prompt_token_ids[-length:])
        for job in jobs
        if len(job.prompt_token_ids) >= length
    ]
