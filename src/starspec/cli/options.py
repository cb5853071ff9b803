"""Options that several commands share and that are not fields of one config."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, TypeVar

from starspec.cli import given
from starspec.config import MAX_PASSED_OVER, MIN_GROUP, WINDOW_BATCHES, BatchingConfig, BatchingMethod
from starspec.config.option import LIMITS, Option

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingOptions:
    """How the sequences of a target share forwards, as the command line says it; None = not said."""

    batching: Annotated[
        BatchingMethod,
        Option(
            "How sequences share forwards. The others are for comparison; in bfloat16 their near-ties may turn.",
            LIMITS,
        ),
    ] = "ragged"
    window: Annotated[
        int | None,
        Option(
            "Sequences with cache rows among which exspec looks for equal lengths.",
            LIMITS,
            least=1,
            shown=f"{WINDOW_BATCHES} batches",
        ),
    ] = None
    max_passed_over: Annotated[
        int | None,
        Option(
            "Rounds that exspec may leave a sequence out before it goes first.",
            LIMITS,
            least=1,
            shown=str(MAX_PASSED_OVER),
        ),
    ] = None
    min_group: Annotated[
        int | None,
        Option(
            "Least number of sequences of one length that exspec runs without others.",
            LIMITS,
            least=2,
            shown=str(MIN_GROUP),
        ),
    ] = None

    def to_config(self) -> BatchingConfig:
        """Raises: ConfigError for an option of exspec beside another method."""
        return given.batching_config(self.batching, self.window, self.max_passed_over, self.min_group)


def over(plan: T, options: Any) -> T:
    """A plan with the values of options that were given; None = not given. Their fields have the plan's names."""
    given_ones = {each.name: getattr(options, each.name) for each in fields(options)}
    return replace(plan, **{name: value for name, value in given_ones.items() if value is not None})  # type: ignore[type-var]
