"""What `starspec bench batch` measures: how much of it, which models, and which prompts a batch is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, cycle, islice
from statistics import median_low

from starspec.bench.batch.methods import EXSPEC, PLAIN, BatchMethod
from starspec.config import (
    BatchAdmission,
    BatchingConfig,
)
from starspec.errors import ConfigError
from starspec.harness.decode import Job

MAX_PROMPT_TOKENS = 448
QUICK_SIZES = (1, 4)
QUICK_PROMPTS = 4
QUICK_PROMPT_TOKENS = 192


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """How much to measure."""

    methods: tuple[str, ...] = ("ragged", "eqspec", "exspec", "rollback", PLAIN)
    batch_sizes: tuple[int, ...] = (1, 2, 4, 8, 16)
    exspec: BatchingConfig = EXSPEC  # with its window and bound
    admission: BatchAdmission = "continuous"  # of all but exspec, which refills its window
    num_prompts: int = 32
    max_prompt_tokens: int = MAX_PROMPT_TOKENS  # longer prompts are left out, unless a context is given
    context: int | None = None  # tokens that prompts are grown to; None = as they are
    is_one_length: bool = False  # cut to the median's length: what homogeneity does to grouping
    max_tokens: int = 64
    temperature: float = 0.0
    num_draft_tokens: int = 5  # the paper's K
    draft_p_min: float = 0.0  # as in a speculative config, and the next
    disable_by_batch_size: int | None = None
    num_repeats: int = 3
    load: float = 0.0  # arrivals a second, as a share of what the slowest drafting method answers; 0 = no arrivals

    def __post_init__(self) -> None:
        for number in (*self.batch_sizes, self.num_prompts, self.max_tokens, self.num_draft_tokens, self.num_repeats):
            if number < 1:
                raise ConfigError(f"sizes and numbers of a measurement must be at least 1, got {number}")
        if not self.methods or not self.batch_sizes:
            raise ConfigError("a measurement needs at least one method and one batch size")
        are_plain = all(name.startswith(PLAIN) for name in self.methods)
        given = {
            "disable_by_batch_size": self.disable_by_batch_size is not None,
            "draft_p_min": self.draft_p_min != 0.0,
        }
        for name, is_given in given.items():
            if are_plain and is_given:
                raise ConfigError(f"{name} is of methods that draft, and there are none")
        if set(self.methods) == {"exspec"}:
            replace(self.exspec, admission=self.admission)  # refuses fixed batches
        if not 0.0 <= self.load < 1.0:
            raise ConfigError(f"load must be at least 0 and below 1, got {self.load}: at 1 the line grows for ever")

    @property
    def max_model_len(self) -> int:
        return (self.context or self.max_prompt_tokens) + self.max_tokens

    def in_small(self) -> BatchPlan:
        """The same work in a few minutes: small batches, few and short prompts and answers, once."""
        return replace(
            self,
            batch_sizes=tuple(size for size in self.batch_sizes if size in QUICK_SIZES) or (min(self.batch_sizes),),
            num_prompts=min(self.num_prompts, QUICK_PROMPTS),
            max_prompt_tokens=min(self.max_prompt_tokens, QUICK_PROMPT_TOKENS),
            context=None if self.context is None else min(self.context, QUICK_PROMPT_TOKENS),
            max_tokens=min(self.max_tokens, 12),
            num_repeats=1,
        )

    def of_all_sizes(self) -> list[BatchMethod]:
        return [self.named(name, size) for size in self.batch_sizes for name in self.methods]

    def named(self, name: str, batch_size: int) -> BatchMethod:
        return BatchMethod.named(name, batch_size, self.exspec, self.admission)


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
