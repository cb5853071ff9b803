"""Options that several commands share and that are not fields of one config, and names for those that are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from starspec import config
from starspec.cli import given
from starspec.cli.binder import option_of
from starspec.cli.speculation import DraftOptions
from starspec.config import MAX_PASSED_OVER, MIN_GROUP, BatchingConfig, BatchingMethod, ModelConfig
from starspec.config.option import A_MODEL, LIMITS, MEASURE, MODELS, NONE_GIVEN, SAMPLING, Option
from starspec.draft_methods import DraftMethod
from starspec.harness.model_pair import ModelMethod, ModelPair

__all__ = ["A_MODEL", "LIMITS", "MEASURE", "MODELS", "NONE_GIVEN", "SAMPLING"]

MODEL = ModelConfig(model="")  # its defaults are the options' defaults

# ---------------------------------------------------------------- batching


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
            "Of exspec: sequences with cache rows, among which one length is sought.",
            LIMITS,
            least=1,
            shown="4 batches",
        ),
    ] = None
    max_passed_over: Annotated[
        int | None,
        Option(
            "Of exspec: rounds without a sequence before it goes first.",
            LIMITS,
            least=1,
            shown=str(MAX_PASSED_OVER),
        ),
    ] = None
    min_group: Annotated[
        int | None,
        Option(
            "Of exspec: sequences of one length, at least, that run without others.",
            LIMITS,
            least=2,
            shown=str(MIN_GROUP),
        ),
    ] = None

    def to_config(self) -> BatchingConfig:
        """Raises: ConfigError for an option of exspec beside another method."""
        return given.batching_config(self.batching, self.window, self.max_passed_over, self.min_group)


# ---------------------------------------------------------------- for commands with typer's own parameters

TargetModel = Annotated[str, option_of(ModelConfig, "model")]
MaybeTarget = Annotated[str | None, option_of(ModelConfig, "model", shown=NONE_GIVEN)]
Dtype = Annotated[config.Dtype, option_of(ModelConfig, "dtype")]
Device = Annotated[str, option_of(ModelConfig, "device")]
Numerics = Annotated[config.Numerics, option_of(ModelConfig, "numerics")]
MaxModelLen = Annotated[int | None, option_of(ModelConfig, "max_model_len")]
NumThreads = Annotated[int | None, option_of(ModelConfig, "num_threads")]

DraftModel = Annotated[str | None, option_of(DraftOptions, "model")]
DraftQuantization = Annotated[config.Quantization | None, option_of(DraftOptions, "quantization")]
SpecMethod = Annotated[DraftMethod | None, option_of(DraftOptions, "method")]
SpecTokens = Annotated[int | None, option_of(DraftOptions, "num_speculative_tokens")]
DraftPMin = Annotated[float | None, option_of(DraftOptions, "draft_p_min")]
SpeculativeJson = Annotated[str | None, option_of(DraftOptions, "json_text")]

Window = Annotated[int | None, option_of(BatchingOptions, "window")]
MaxPassedOver = Annotated[int | None, option_of(BatchingOptions, "max_passed_over")]
MinGroup = Annotated[int | None, option_of(BatchingOptions, "min_group")]

# ---------------------------------------------------------------- drafts of measurements: always given, never JSON

MaybeDraft = Annotated[str | None, option_of(ModelPair, "draft", shown=NONE_GIVEN)]
GivenDraft = Annotated[str, option_of(ModelPair, "draft")]
GivenQuantization = Annotated[config.Quantization, option_of(ModelPair, "quantization")]
GivenMethod = Annotated[ModelMethod, option_of(ModelPair, "method")]
