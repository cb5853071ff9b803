"""How much `starspec bench shard` measures with real models."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Final

from starspec.config import PipeConfig
from starspec.config.checks import options_of
from starspec.config.lab import MAX_DELAY_MS
from starspec.config.option import MEASURE, MODELS, Option
from starspec.config.stages import HiddenDtype
from starspec.errors import ConfigError

NUM_PROMPTS: Final = 8
MIN_PLAIN_PROMPTS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlan:
    """How much to measure. Raises: ConfigError if there are no delays or no streams."""

    num_stages: Annotated[
        int, Option("Stages to cut the target into; each has a core.", MODELS, ("--stages",), least=2)
    ] = 2
    delays_ms: Annotated[
        tuple[float, ...],
        Option(
            "Milliseconds of each link, one way: to each stage, and back from the last.",
            MEASURE,
            ("--delays",),
            least=0.0,
            most=MAX_DELAY_MS,
            form="reals",
        ),
    ] = (0.0, 20.0, 80.0)
    streams: Annotated[
        tuple[int, ...], Option("Numbers of prompts that are answered at once.", MEASURE, least=1, form="numbers")
    ] = (1,)
    num_prompts: Annotated[
        int | None, Option("Prompts to answer.", MEASURE, least=1, shown=f"{NUM_PROMPTS}, or all if there are fewer")
    ] = None
    max_tokens: Annotated[int, Option("Tokens of an answer.", MEASURE, least=4)] = 64
    num_repeats: Annotated[int, Option("Runs of each way to decode.", MEASURE, ("--repeats",), least=1)] = 1
    hidden_dtype: Annotated[HiddenDtype, options_of(PipeConfig)["hidden_dtype"]] = "model"
    num_draft_tokens: Annotated[int, Option("Draft tokens of a window, at most.", MEASURE, least=1, most=32)] = 8

    def __post_init__(self) -> None:
        if not self.delays_ms or not self.streams:
            raise ConfigError("--delays and --streams: give at least one of each")

    @property
    def num_asked(self) -> int:
        """Prompts to answer."""
        return NUM_PROMPTS if self.num_prompts is None else self.num_prompts

    def in_small(self) -> ModelPlan:
        """The same in a few minutes."""
        return replace(self, num_prompts=min(self.num_asked, 2), max_tokens=min(self.max_tokens, 16))

    def num_plain_prompts(self, num_streams: int) -> int:
        """Prompts that plain decoding in stages answers: each token takes as long as the others."""
        return min(self.num_asked, max(MIN_PLAIN_PROMPTS, self.num_asked // 4, num_streams))
