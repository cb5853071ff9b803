"""What `starspec bench grammar` measures, and how much of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Final

from starspec.config import MAX_DRAFT_TOKENS
from starspec.config.checks import check_ranges
from starspec.config.option import MEASURE, Option

NUM_SCHEMAS: Final = 60
QUICK_SCHEMAS: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarPlan:
    """How much to measure. Raises: ConfigError for a number that is out of range."""

    num_schemas: Annotated[
        int, Option("Schemas to answer, evenly spread over the sixty.", MEASURE, least=1, most=NUM_SCHEMAS)
    ] = NUM_SCHEMAS
    temperatures: Annotated[
        tuple[float, ...], Option("Temperatures to try: 0 is greedy.", MEASURE, least=0.0, form="reals")
    ] = (0.0, 1.0)
    max_tokens: Annotated[int, Option("Tokens of an answer to a schema.", MEASURE, least=1)] = 400
    free_tokens: Annotated[int, Option("Tokens of an answer without a schema.", MEASURE, least=1)] = 32
    batch_size: Annotated[int, Option("Answers at once.", MEASURE, least=1)] = 8
    num_draft_tokens: Annotated[int, Option("Draft tokens of a round.", MEASURE, least=1, most=MAX_DRAFT_TOKENS)] = 4

    def __post_init__(self) -> None:
        check_ranges(self)

    def in_small(self) -> GrammarPlan:
        """The same with few schemas."""
        return replace(self, num_schemas=min(self.num_schemas, QUICK_SCHEMAS))
