"""`starspec calibrate`: the thresholds of relaxed verification, for a target and its draft."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from starspec.cli.binder import bound, take
from starspec.cli.files import JsonFile, PromptFile, prompts_option, spread_prompts
from starspec.cli.measuring import measuring, publish
from starspec.config import ModelConfig, Option, SpeculativeConfig
from starspec.config.option import MEASURE
from starspec.errors import ConfigError
from starspec.harness.model_pair import ModelPair
from starspec.models.loading.checks import check_models, check_room

NUM_PROMPTS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationOptions:
    """How much is compared, and how strict the result is."""

    num_prompts: Annotated[int | None, prompts_option(NUM_PROMPTS)] = None
    max_tokens: Annotated[int, Option("Tokens of an answer.", MEASURE, least=1)] = 64
    key_share: Annotated[
        float, Option("Share of drafted tokens that may be key, above 0 and below 1.", MEASURE, least=0.0, most=1.0)
    ] = 0.3

    def __post_init__(self) -> None:
        if not 0.0 < self.key_share < 1.0:
            raise ConfigError(f"--key-share must be above 0 and below 1, got {self.key_share:g}")


@bound
def calibrate(
    model: Annotated[ModelConfig, take("model", "dtype", "device", "numerics", "num_threads")],
    draft: Annotated[ModelPair, take("draft", "quantization", "method", target="", quantization="none")],
    options: CalibrationOptions,
    prompts: PromptFile = None,
    json_file: JsonFile = None,
) -> None:
    """Choose which tokens relaxed requests verify strictly, for this target and draft.

    The file of --json is for --relaxed-thresholds of `target` and `up`. Relaxed verification is lossy.
    """
    speculative = SpeculativeConfig(method=draft.method, model=draft.draft, quantization=draft.quantization)
    chosen = spread_prompts(prompts, options.num_prompts, NUM_PROMPTS)
    check_models(model, speculative.draft_model(model))
    check_room(model, options.max_tokens)
    with measuring("calibrate") as bar:
        from starspec.doctor.calibrate import blocks  # noqa: PLC0415 (these import torch)
        from starspec.doctor.calibrate import calibrate as choose  # noqa: PLC0415

        bar.begin("comparing", None)
        found = choose(model, speculative, chosen, max_tokens=options.max_tokens, key_share=options.key_share)
    publish(found, blocks(found), json_file)
