"""`starspec verify`: the comparison of decoding with and without drafts, for a user's own pair."""

from __future__ import annotations

from typing import Annotated

import typer

from starspec.cli import given
from starspec.cli import options as opt
from starspec.cli.files import JsonFile, PromptFile, spread_prompts
from starspec.cli.measuring import measuring, publish
from starspec.cli.options import MEASURE
from starspec.cli.speculation import DraftOptions
from starspec.config import ModelConfig
from starspec.errors import ConfigError


def verify(
    target: opt.TargetModel,
    draft: opt.DraftModel = None,
    draft_quantization: opt.DraftQuantization = None,
    spec_method: opt.SpecMethod = None,
    spec_tokens: opt.SpecTokens = None,
    draft_p_min: opt.DraftPMin = None,
    speculative_config: opt.SpeculativeJson = None,
    batch: Annotated[int, typer.Option(min=1, max=64, help="Sequences decoded at once.", rich_help_panel=MEASURE)] = 4,
    batching: Annotated[
        str,
        typer.Option(
            help="How they share forwards: any of ragged, eqspec, exspec and rollback, separated by commas.",
            rich_help_panel=MEASURE,
        ),
    ] = "ragged",
    window: opt.Window = None,
    max_passed_over: opt.MaxPassedOver = None,
    min_group: opt.MinGroup = None,
    prompts: PromptFile = None,
    num_prompts: Annotated[
        int, typer.Option(min=1, help="Prompts used, evenly over the file.", rich_help_panel=MEASURE)
    ] = 24,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens of an answer.", rich_help_panel=MEASURE)] = 32,
    json_file: JsonFile = None,
    dtype: opt.Dtype = opt.MODEL.dtype,
    device: opt.Device = opt.MODEL.device,
    numerics: opt.Numerics = opt.MODEL.numerics,
    max_model_len: opt.MaxModelLen = None,
    num_threads: opt.NumThreads = None,
) -> None:
    """Check that drafts change no token: decode with and without them, greedily and sampled, and compare.

    Exits 1 if an answer differs although these settings promise that none does, or without a near-tie.
    """
    drafting = DraftOptions(
        json_text=speculative_config,
        method=spec_method,
        model=draft,
        quantization=draft_quantization,
        num_speculative_tokens=spec_tokens,
        draft_p_min=draft_p_min,
    ).to_config()
    if drafting is None:
        raise ConfigError("there is nothing to compare with: give --draft, or --spec-method ngram")
    batchings = given.batching_configs(batching, window, max_passed_over, min_group)
    model = ModelConfig(
        model=target,
        dtype=dtype,
        device=device,
        numerics=numerics,
        max_model_len=max_model_len,
        num_rows=max(each.num_rows(batch) for each in batchings),
        num_threads=num_threads,
    )
    with measuring("verify") as bar:
        from starspec.bench.verify import blocks, num_turns_of, verify_pair  # noqa: PLC0415 (torch)

        chosen = spread_prompts(prompts, num_prompts)
        bar.begin("decoding", num_turns_of(len(chosen), batch, batchings))
        report = verify_pair(model, drafting, chosen, max_tokens, batch, bar.turn, batchings=batchings)
    publish(report, blocks(report), json_file, mistakes=report.mistakes)
