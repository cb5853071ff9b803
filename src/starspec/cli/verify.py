"""`starspec verify`: the comparison of decoding with and without drafts, for a user's own pair."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from starspec.cli import given
from starspec.cli import options as opt
from starspec.cli.options import MEASURE
from starspec.cli.process import log_to_stderr
from starspec.cli.progress import ProgressBar
from starspec.cli.saved_files import JsonFile
from starspec.cli.speculation import DraftOptions
from starspec.cli.tables import divergence_lines, lossless_table, out
from starspec.config import ModelConfig
from starspec.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starspec.bench.lossless import LosslessRow
    from starspec.bench.verify import VerifyReport

PromptFile = Annotated[
    Path | None,
    typer.Option(
        "--prompts",
        help='JSON lines with "turns"; the first turn of each is used.',
        show_default="32 prompts of our own",
        rich_help_panel=MEASURE,
    ),
]


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
            help="How they share forwards, any of ragged, eqspec, exspec and rollback, with commas between.",
            rich_help_panel=MEASURE,
        ),
    ] = "ragged",
    window: opt.Window = None,
    max_passed_over: opt.MaxPassedOver = None,
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

    Exits 1 if an answer differs although these settings promise that none does, or where no two tokens are nearly tied.
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
    batchings = given.batching_configs(batching, window, max_passed_over)
    model = ModelConfig(
        model=target,
        dtype=dtype,
        device=device,
        numerics=numerics,
        max_model_len=max_model_len,
        num_rows=max(each.num_rows(batch) for each in batchings),
        num_threads=num_threads,
    )
    log_to_stderr("warning")
    with ProgressBar("verify") as bar:
        bar.begin("loading", None)
        from starspec.bench.verify import num_turns_of, verify_pair  # noqa: PLC0415
        from starspec.harness.datasets import own_prompts, read_prompts, spread  # noqa: PLC0415 (these import torch)
        from starspec.harness.report import write_report  # noqa: PLC0415

        chosen = spread(own_prompts() if prompts is None else read_prompts(prompts), num_prompts)
        bar.begin("decoding", num_turns_of(len(chosen), batch, batchings))
        report = verify_pair(model, drafting, chosen, max_tokens, batch, bar.turn, batchings=batchings)
    _show(report)
    if json_file is not None:
        write_report(report, json_file)
    if report.mistakes:
        raise typer.Exit(1)


def _show(report: VerifyReport) -> None:
    console = out()
    console.print(lossless_table(report.rows, "decoding with drafts and in batches, against plain decoding alone"))
    for line in divergence_lines(report.rows):
        console.print(line)
    if report.num_left_out:
        console.print(f"prompts left out, too long for the model's context: {report.num_left_out}")
    console.print(f"numerics: {report.numerics}")
    console.print(f"identical: {_share_identical(report.rows)} answers ({_promise(report)})")
    for sentence in report.mistakes:
        console.print(sentence)


def _promise(report: VerifyReport) -> str:
    if not report.promised:
        return "not promised with these settings"
    if len(report.promised) == len(report.rows):
        return "promised"
    return f"promised of ragged batches alone, there {_share_identical(report.promised)}"


def _share_identical(rows: Sequence[LosslessRow]) -> str:
    return f"{sum(row.num_identical for row in rows)}/{sum(row.num_prompts for row in rows)}"
