"""How much `starspec bench length` measures with real models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Final

from starspec.bench.length.rivals import PLAIN, POLICIES, Rival, all_rivals, default_rival
from starspec.config import Policy, nearest
from starspec.config.option import MEASURE, Option
from starspec.errors import ConfigError

WARM_SHARE: Final = 2  # a warm-up's answers have a half of the tokens
QUICK_SIZES: Final = (1, 4)
QUICK_TOKENS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class RealPlan:
    """How much to measure.

    Raises: ConfigError naming an option without values, with repeated ones, or with an unknown policy.
    """

    categories: Annotated[
        tuple[str, ...],
        Option("Categories of the prompts to measure, as qa,rag.", MEASURE, shown="all", form="names"),
    ] = ()
    policies: Annotated[
        tuple[Policy, ...],
        Option(f"Length policies to measure, any of {', '.join(POLICIES)}.", MEASURE, form="names"),
    ] = POLICIES
    temperatures: Annotated[
        tuple[float, ...],
        Option("Temperatures to try: 0 = greedy, 1 = the model's own distribution.", MEASURE, form="reals"),
    ] = (0.0, 1.0)
    batch_sizes: Annotated[
        tuple[int, ...], Option("Numbers of sequences that share a round.", MEASURE, form="numbers", least=1)
    ] = (1, 4, 8)
    large_batch_sizes: Annotated[
        tuple[int, ...],
        Option("Further numbers, with plain decoding and the default policy only.", MEASURE, form="numbers", least=1),
    ] = (16,)
    num_prompts: Annotated[
        int, Option("Prompts of each category, or as many as a batch holds, if that is more.", MEASURE, least=1)
    ] = 4
    max_tokens: Annotated[int, Option("Tokens of an answer.", MEASURE, least=2)] = 64
    max_prompt_tokens: Annotated[int, Option("Leave out longer prompts.", MEASURE, least=1)] = 448
    num_repeats: Annotated[int, Option("Runs of each method.", MEASURE, flags=("--repeats",), least=1)] = 3

    def __post_init__(self) -> None:
        if not self.temperatures or not self.batch_sizes:
            raise ConfigError("--temperatures and --batch-sizes: give at least one of each")
        for name in self.policies:
            if name not in POLICIES:
                raise ConfigError(f"--policies: there is no '{name}'{nearest(name, list(POLICIES))}")
        sizes = (*self.batch_sizes, *self.large_batch_sizes)
        if len(set(sizes)) < len(sizes):
            raise ConfigError(f"--batch-sizes and --large-batch-sizes: each number once, got {list(sizes)}")
        if not all(0.0 <= each < float("inf") for each in self.temperatures):
            raise ConfigError(f"--temperatures: numbers from 0 on, got {list(self.temperatures)}")

    @property
    def all_batch_sizes(self) -> tuple[int, ...]:
        return self.batch_sizes + self.large_batch_sizes

    def rivals_at(self, batch_size: int) -> list[Rival]:
        """Those of a batch size: in large ones, plain decoding and the default."""
        if batch_size in self.large_batch_sizes:
            return [Rival(PLAIN), default_rival()]
        return all_rivals(self.policies)

    def num_jobs(self, batch_size: int) -> int:
        return max(self.num_prompts, batch_size)

    @property
    def most_jobs(self) -> int:
        return max(self.num_jobs(size) for size in self.all_batch_sizes)

    def num_turns(self, num_kinds: int) -> int:
        """How often `measure_real_pair` advances. Args: num_kinds: categories times drafters."""
        num_runs = sum(len(self.rivals_at(size)) * (1 + self.num_repeats) for size in self.all_batch_sizes)
        return num_kinds * len(self.temperatures) * (num_runs + 1)

    def estimate_s(self, round_s: Mapping[int, float], num_kinds: int) -> float:
        """Seconds of all runs, if each rival emits as many tokens a second as plain decoding.

        Args:
            round_s: batch size -> seconds of a plain round.
        """
        num_answers = self.num_repeats + 1 / WARM_SHARE
        rounds_s = sum(
            round_s[size] * len(self.rivals_at(size)) * -(-self.num_jobs(size) // size) * self.max_tokens * num_answers
            for size in self.all_batch_sizes
        )
        return num_kinds * len(self.temperatures) * rounds_s

    def in_small(self) -> RealPlan:
        """The same work in a few minutes: greedy, in small batches, few and short answers, once."""
        return replace(
            self,
            temperatures=self.temperatures[:1],
            batch_sizes=tuple(size for size in self.batch_sizes if size in QUICK_SIZES) or (min(self.batch_sizes),),
            large_batch_sizes=(),
            num_prompts=1,
            max_tokens=min(self.max_tokens, QUICK_TOKENS),
            num_repeats=1,
        )
