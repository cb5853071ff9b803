"""What `starspec bench relaxed` measures, and how much of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Final

from starspec.config import MAX_DRAFT_TOKENS
from starspec.config.checks import check_ranges
from starspec.config.option import DRAFT_P_MIN, MEASURE, Option
from starspec.errors import ConfigError
from starspec.speculation.acceptance import SampleMethod

NUM_PROBLEMS: Final = 40
QUICK_TAU: Final = 0.3
QUICK_PROBLEMS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaxedPlan:
    """How much to measure. Raises: ConfigError for a tau outside 0 to 1, or a number below 1."""

    taus: Annotated[
        tuple[float, ...],
        Option(
            "Values of tau to measure, 0 to 1. The strict run, tau = 0, is always among them.", MEASURE, form="reals"
        ),
    ] = (0.0, 0.1, 0.2, 0.3, 0.5, 0.8)
    num_problems: Annotated[
        int | None,
        Option(
            "Problems of HumanEval, and of GSM8K, evenly spread over the files.",
            MEASURE,
            least=1,
            shown=f"{NUM_PROBLEMS}, or all if there are fewer",
        ),
    ] = None
    max_tokens: Annotated[
        int, Option("Tokens of an answer; a longer one is cut, and counts as it is.", MEASURE, least=1)
    ] = 400
    temperature: Annotated[float, Option("Sampling temperature; 0 is greedy.", MEASURE, least=0.0)] = 1.0
    batch_size: Annotated[
        int, Option("Problems that are answered together, and timed as one group.", MEASURE, least=1)
    ] = 4
    num_draft_tokens: Annotated[int, Option("Draft tokens of a round.", MEASURE, least=1, most=MAX_DRAFT_TOKENS)] = 4
    draft_p_min: Annotated[float, replace(DRAFT_P_MIN, panel=MEASURE)] = 0.0
    rejection_sample_method: Annotated[
        SampleMethod,
        Option(
            "How drafts are verified: by the target's own draw, or by rejection sampling, as in the paper.", MEASURE
        ),
    ] = "coupled"

    def __post_init__(self) -> None:
        check_ranges(self)
        if not all(0.0 <= tau <= 1.0 for tau in self.taus):
            raise ConfigError(f"--taus: numbers from 0 to 1, got {', '.join(f'{tau:g}' for tau in self.taus)}")

    @property
    def all_taus(self) -> tuple[float, ...]:
        """What is measured, rising from 0."""
        return tuple(sorted({0.0, *self.taus}))

    @property
    def num_asked(self) -> int:
        """Problems of each task."""
        return NUM_PROBLEMS if self.num_problems is None else self.num_problems

    def in_small(self) -> RelaxedPlan:
        """The same work in a few minutes: few problems, one at a time, short answers, the strict run and one tau."""
        return replace(
            self,
            taus=(QUICK_TAU if QUICK_TAU in self.taus else max(self.all_taus),),
            num_problems=min(self.num_asked, QUICK_PROBLEMS),
            max_tokens=min(self.max_tokens, 128),
            batch_size=1,
        )
