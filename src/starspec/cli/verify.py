"""`starspec verify`: the comparison of decoding with and without drafts, for a user's own pair."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Final

from starspec.cli import given
from starspec.cli.binder import bound, take
from starspec.cli.files import JsonFile, PromptFile, prompts_option, spread_prompts
from starspec.cli.measuring import measuring, publish
from starspec.cli.options import BatchingOptions
from starspec.cli.serve import TARGET_MODEL
from starspec.cli.speculation import DRAFT_OPTIONS, DraftOptions, check_draft_is_named
from starspec.config import ModelConfig, Option
from starspec.config.option import MEASURE
from starspec.errors import ConfigError
from starspec.models.loading.checks import check_models, check_room

NUM_PROMPTS: Final = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """How much is compared."""

    batch: Annotated[int, Option("Sequences decoded at once.", MEASURE, least=1, most=64)] = 4
    batching: Annotated[
        str,
        Option("How they share forwards: any of ragged, eqspec, exspec and rollback, separated by commas.", MEASURE),
    ] = "ragged"
    num_prompts: Annotated[int | None, prompts_option(NUM_PROMPTS)] = None
    max_tokens: Annotated[int, Option("Tokens of an answer.", MEASURE, least=1)] = 32


@bound
def verify(
    model: Annotated[ModelConfig, take(*TARGET_MODEL)],
    drafting: Annotated[DraftOptions, take(*DRAFT_OPTIONS)],
    options: VerifyOptions,
    exspec: Annotated[BatchingOptions, take("window", "max_passed_over", "min_group")],
    prompts: PromptFile = None,
    json_file: JsonFile = None,
) -> None:
    """Check that drafts change no token: decode with and without them, greedily and sampled, and compare.

    Draft lengths are fixed unless --speculative-config names another policy, so that each round drafts.
    Exits 1 if an answer differs although these settings promise that none does, or without a near-tie.
    """
    speculative = drafting.to_config(policy="fixed")  # so that each round drafts, whether or not it pays
    if speculative is None:
        raise ConfigError("there is nothing to compare with: give --draft, or --spec-method ngram")
    check_draft_is_named(speculative)
    batchings = given.batching_configs(options.batching, exspec.window, exspec.max_passed_over, exspec.min_group)
    model = replace(model, num_rows=max(each.num_rows(options.batch) for each in batchings))
    chosen = spread_prompts(prompts, options.num_prompts, NUM_PROMPTS)
    check_models(model, speculative.draft_model(model))
    check_room(model, options.max_tokens)
    with measuring("verify") as bar:
        from starspec.bench.verify import blocks, num_turns_of, verify_pair  # noqa: PLC0415 (torch)

        bar.begin("decoding", num_turns_of(len(chosen), options.batch, batchings))
        report = verify_pair(
            model, speculative, chosen, options.max_tokens, options.batch, bar.turn, batchings=batchings
        )
    publish(report, blocks(report), json_file, mistakes=report.mistakes)
