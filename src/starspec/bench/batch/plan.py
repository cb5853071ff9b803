"""What `starspec bench batch` measures: methods, batch sizes and how much work."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Final

from starspec.config import (
    BATCHINGS,
    MAX_DRAFT_TOKENS,
    BatchAdmission,
    BatchingConfig,
    BatchingMethod,
    nearest,
)
from starspec.config.option import DRAFT_P_MIN, MEASURE, Option
from starspec.errors import ConfigError

PLAIN: Final = "plain"  # no drafts, ragged
EXSPEC: Final = BatchingConfig(method="exspec")
UNBOUNDED: Final = "exspec-unbounded"  # as in the paper, where a sequence of a length of its own may wait for ever
FAST: Final = "-fast"  # suffix of a ragged method: numerics that do not keep the bits
METHODS: Final = (*BATCHINGS, UNBOUNDED, PLAIN, "ragged" + FAST, PLAIN + FAST)
MAX_PROMPT_TOKENS = 448
NUM_PROMPTS = 32  # or as many as ExSpec's largest window holds
QUICK_SIZES = (1, 4)
QUICK_PROMPTS = 4
QUICK_PROMPT_TOKENS = 192


def batching_of(name: str) -> BatchingMethod:
    """How a method of this bench lays out its batches."""
    base = "exspec" if name == UNBOUNDED else name.removesuffix(FAST)
    return next((method for method in BATCHINGS if method == base), "ragged")


@dataclass(frozen=True, slots=True)
class BatchMethod:
    """One way of decoding a batch.

    Raises: ConfigError if there is no such method, or its window is smaller than the batch.
    """

    name: str
    batch_size: int
    batching: BatchingConfig

    def __post_init__(self) -> None:
        if self.name not in METHODS:
            hint = nearest(self.name, [*METHODS])
            near = hint if hint.startswith("; did you mean") else ""  # else it lists them all, as the sentence does
            raise ConfigError(f"method '{self.name}' is not one of {', '.join(METHODS)}{near}")
        self.batching.num_rows(self.batch_size)

    @classmethod
    def named(
        cls, name: str, batch_size: int, exspec: BatchingConfig = EXSPEC, admission: BatchAdmission = "continuous"
    ) -> BatchMethod:
        """Args: exspec: the batching of that method; admission: of all other methods."""
        kind = batching_of(name)
        if kind == "exspec":
            return cls(name, batch_size, replace(exspec, max_passed_over=None) if name == UNBOUNDED else exspec)
        return cls(name, batch_size, BatchingConfig(method=kind, admission=admission))

    @property
    def is_plain(self) -> bool:
        return self.name.removesuffix(FAST) == PLAIN

    @property
    def num_rows(self) -> int:
        return self.batching.num_rows(self.batch_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """How much to measure."""

    methods: Annotated[
        tuple[str, ...],
        Option(
            "Methods to compare, any of ragged, eqspec, exspec, exspec-unbounded (in which, as in the paper, a "
            "sequence may wait for ever), rollback, plain, ragged-fast and plain-fast.",
            MEASURE,
            form="names",
        ),
    ] = ("ragged", "eqspec", "exspec", "rollback", PLAIN)
    batch_sizes: Annotated[
        tuple[int, ...], Option("Numbers of sequences that share a round.", MEASURE, form="numbers", least=1)
    ] = (
        1,
        2,
        4,
        8,
        16,
    )
    exspec: BatchingConfig = EXSPEC  # with its window and bound
    admission: BatchAdmission = "continuous"  # of all methods but exspec, which refills its window
    num_prompts: Annotated[
        int | None,
        Option(
            "Number of prompts to answer.",
            MEASURE,
            least=1,
            shown=f"{NUM_PROMPTS}, or as many as fill ExSpec's largest window",
        ),
    ] = None
    max_prompt_tokens: int = MAX_PROMPT_TOKENS  # longer prompts are left out, without a context
    context: Annotated[
        int | None, Option("Grow prompts to about so many tokens.", MEASURE, least=8, shown="as they are")
    ] = None
    is_one_length: Annotated[
        bool, Option("Cut prompts to the median length; no shorter ones.", MEASURE, flags=("--same-length",))
    ] = False
    is_multi_turn: Annotated[
        bool,
        Option(
            "Ask all turns of the prompts, each with the turns and plain answers before it, shuffled.",
            MEASURE,
            flags=("--multi-turn",),
        ),
    ] = False
    max_tokens: Annotated[int, Option("Tokens of an answer.", MEASURE, least=1)] = 64
    temperature: Annotated[float, Option("Sampling temperature; 0 is greedy.", MEASURE, least=0.0)] = 0.0
    # the paper's K
    num_draft_tokens: Annotated[int, Option("Draft tokens of a round.", MEASURE, least=1, most=MAX_DRAFT_TOKENS)] = 5
    draft_p_min: Annotated[float, replace(DRAFT_P_MIN, panel=MEASURE)] = 0.0
    disable_by_batch_size: Annotated[
        int | None, Option("Rounds of more sequences draft nothing.", MEASURE, least=1, shown="all draft")
    ] = None
    num_repeats: Annotated[int, Option("Runs of each method.", MEASURE, flags=("--repeats",), least=1)] = 3
    load: Annotated[
        float,
        Option(
            "Also let requests arrive at random, at this share of the rate that the slowest drafting method answers; "
            "0 = do not.",
            MEASURE,
            least=0.0,
            most=0.99,
        ),
    ] = 0.0

    def __post_init__(self) -> None:
        for number in (
            *self.batch_sizes,
            self.num_prompts or 1,
            self.max_tokens,
            self.num_draft_tokens,
            self.num_repeats,
        ):
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
        if self.methods and all(batching_of(name) == "exspec" for name in self.methods):
            replace(self.exspec, admission=self.admission)  # refuses fixed batches
        if self.is_multi_turn and (self.context is not None or self.is_one_length):
            raise ConfigError("--multi-turn asks conversations as they are: give no --context or --same-length with it")
        if not 0.0 <= self.load < 1.0:
            raise ConfigError(f"load must be at least 0 and below 1, got {self.load}: at 1 the queue grows for ever")

    @property
    def num_asked(self) -> int:
        """Prompts to use: as asked for, or so many that every window of ExSpec can be full."""
        if self.num_prompts is not None:
            return self.num_prompts
        windows = [self.exspec.num_rows(size) for size in self.batch_sizes if self._has_exspec]
        return max([NUM_PROMPTS, *windows])

    @property
    def _has_exspec(self) -> bool:
        return any(batching_of(name) == "exspec" for name in self.methods)

    @property
    def max_model_len(self) -> int:
        return (self.context or self.max_prompt_tokens) + self.max_tokens

    def in_small(self) -> BatchPlan:
        """The same work in a few minutes: small batches, few and short prompts and answers, once."""
        return replace(
            self,
            batch_sizes=tuple(size for size in self.batch_sizes if size in QUICK_SIZES) or (min(self.batch_sizes),),
            num_prompts=min(self.num_asked, QUICK_PROMPTS),
            max_prompt_tokens=min(self.max_prompt_tokens, QUICK_PROMPT_TOKENS),
            context=None if self.context is None else min(self.context, QUICK_PROMPT_TOKENS),
            max_tokens=min(self.max_tokens, 12),
            num_repeats=1,
        )

    def of_all_sizes(self) -> list[BatchMethod]:
        return [self.named(name, size) for size in self.batch_sizes for name in self.methods]

    def named(self, name: str, batch_size: int) -> BatchMethod:
        return BatchMethod.named(name, batch_size, self.exspec, self.admission)
