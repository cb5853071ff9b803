"""`starspec doctor`: is this draft any good for this target?"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from starspec.cli import options as opt
from starspec.cli.files import JsonFile, PromptFile, spread_prompts
from starspec.cli.measuring import measuring, publish, show
from starspec.cli.options import MEASURE
from starspec.config import ModelConfig, SpeculativeConfig
from starspec.errors import ConfigError


def doctor(
    target: opt.MaybeTarget = None,
    draft: opt.MaybeDraft = None,
    draft_quantization: opt.GivenQuantization = "none",
    spec_method: opt.GivenMethod = "draft_model",
    prompts: PromptFile = None,
    num_prompts: Annotated[
        int, typer.Option(min=1, help="Prompts used, evenly over the file.", rich_help_panel=MEASURE)
    ] = 8,
    max_tokens: Annotated[int, typer.Option(min=2, help="Tokens of an answer.", rich_help_panel=MEASURE)] = 48,
    max_draft_tokens: Annotated[
        int, typer.Option(min=1, max=15, help="Largest number of draft tokens to consider.", rich_help_panel=MEASURE)
    ] = 8,
    round_trip_ms: Annotated[
        float,
        typer.Option(min=0.0, help="Between target and hub, added to each round.", rich_help_panel=MEASURE),
    ] = 0.0,
    tree_report: Annotated[
        Path | None,
        typer.Option(
            help="Report of `bench tree --json` for this pair: its best trees are recommended too.",
            show_default=opt.NONE_GIVEN,
            rich_help_panel=MEASURE,
        ),
    ] = None,
    vllm: Annotated[
        str | None,
        typer.Option(
            help="A running vLLM server, http://host:port, instead of --target. With --draft: forecast its speed-up. "
            "Without: show the server's own counters. Its api key comes from OPENAI_API_KEY.",
            show_default=opt.NONE_GIVEN,
        ),
    ] = None,
    json_file: JsonFile = None,
    dtype: opt.Dtype = opt.MODEL.dtype,
    device: opt.Device = opt.MODEL.device,
    numerics: opt.Numerics = opt.MODEL.numerics,
    num_threads: opt.NumThreads = None,
) -> None:
    """Check a target and a draft: do they fit, how often is the draft right, which speed-up can be expected?

    The target is a model or a running vLLM server. Exits 1 if they cannot be used together.
    """
    if vllm is not None:
        if target is not None or tree_report is not None:
            raise ConfigError("--vllm takes the place of --target, and no --tree-report is of a vLLM server")
        if draft is None:
            if json_file is not None:
                raise ConfigError("--vllm without --draft measures nothing that --json could keep")
            _read_counters(vllm)
            return
    if draft is None or (target is None and vllm is None):
        raise ConfigError("give --target and --draft, or --vllm")
    speculative = SpeculativeConfig(method=spec_method, model=draft, quantization=draft_quantization)
    model = ModelConfig(model=target or draft, dtype=dtype, device=device, numerics=numerics, num_threads=num_threads)
    with measuring("doctor") as bar:
        from starspec.doctor.examine import examine  # noqa: PLC0415 (these import torch)
        from starspec.doctor.text import blocks  # noqa: PLC0415
        from starspec.doctor.vllm import examine_vllm  # noqa: PLC0415

        chosen = spread_prompts(prompts, num_prompts)
        bar.begin("examining", None)
        look = partial(examine_vllm, vllm) if vllm is not None else partial(examine, tree_report=tree_report)
        found = look(
            model,
            speculative,
            chosen,
            max_tokens=max_tokens,
            max_draft_tokens=max_draft_tokens,
            link_s=round_trip_ms / 1e3,
        )
    setting = "--spec-tokens" if vllm is None else "num_speculative_tokens"
    publish(found, blocks(found, setting), json_file, fails=not found.is_usable)


def _read_counters(url: str) -> None:
    from starspec.doctor.text import check_lines  # noqa: PLC0415 (these import torch)
    from starspec.doctor.vllm import check_vllm  # noqa: PLC0415
    from starspec.harness.vllm_client import vllm_status  # noqa: PLC0415

    checks = check_vllm(vllm_status(url))
    show(check_lines(checks))
    if any(check.severity == "fatal" for check in checks):
        raise typer.Exit(1)
