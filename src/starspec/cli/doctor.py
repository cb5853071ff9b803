"""`starspec doctor`: is this draft any good for this target?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from starspec.cli import options as opt
from starspec.cli.options import MEASURE
from starspec.cli.process import log_to_stderr
from starspec.cli.progress import ProgressBar
from starspec.cli.saved_files import JsonFile
from starspec.cli.tables import out
from starspec.cli.verify import PromptFile
from starspec.config import ModelConfig, SpeculativeConfig
from starspec.errors import ConfigError

if TYPE_CHECKING:
    from starspec.doctor.checks import Check
    from starspec.doctor.drafts import LayerChoice
    from starspec.doctor.examine import Examination, Prospect
    from starspec.doctor.outlook import StepTimes
    from starspec.doctor.trees import TreeAdvice

SIGNS = {"ok": "[green]ok[/]", "warning": "[yellow]note[/]", "fatal": "[red]no[/]"}


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
        typer.Option(min=0.0, help="Between target and hub, counted with each round.", rich_help_panel=MEASURE),
    ] = 0.0,
    tree_report: Annotated[
        Path | None,
        typer.Option(
            help="What `bench tree --json` saved for this pair: its best trees are recommended too.",
            show_default=opt.NONE_GIVEN,
            rich_help_panel=MEASURE,
        ),
    ] = None,
    vllm: Annotated[
        str | None,
        typer.Option(
            help="A running vLLM server, http://host:port, in the place of --target: with --draft, what that would "
            "give it; without, what its own counters say. Its api key is read from OPENAI_API_KEY.",
            show_default=opt.NONE_GIVEN,
        ),
    ] = None,
    json_file: JsonFile = None,
    dtype: opt.Dtype = opt.MODEL.dtype,
    device: opt.Device = opt.MODEL.device,
    numerics: opt.Numerics = opt.MODEL.numerics,
    num_threads: opt.NumThreads = None,
) -> None:
    """Check a target and a draft: do they fit, how often is the draft right, what speed-up is to be expected?

    The target is a model, or what a vLLM server runs. Exits 1 if they cannot be used together.
    """
    log_to_stderr("warning")
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
    with ProgressBar("doctor") as bar:
        bar.begin("loading", None)
        from starspec.doctor.examine import examine  # noqa: PLC0415
        from starspec.doctor.vllm import examine_vllm  # noqa: PLC0415
        from starspec.harness.datasets import own_prompts, read_prompts, spread  # noqa: PLC0415 (these import torch)
        from starspec.harness.report import write_report  # noqa: PLC0415

        chosen = spread(own_prompts() if prompts is None else read_prompts(prompts), num_prompts)
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
    _show(found, "--spec-tokens" if vllm is None else "num_speculative_tokens")
    if json_file is not None:
        write_report(found, json_file)
    if not found.is_usable:
        raise typer.Exit(1)


def _read_counters(url: str) -> None:
    from starspec.doctor.vllm import check_vllm  # noqa: PLC0415
    from starspec.harness.vllm_client import vllm_status  # noqa: PLC0415 (its package imports torch)

    checks = check_vllm(vllm_status(url))
    _show_checks(checks)
    if any(check.severity == "fatal" for check in checks):
        raise typer.Exit(1)


def _show_checks(checks: Sequence[Check]) -> None:
    for check in checks:
        out().print(f"{SIGNS[check.severity]} {check.what}: {check.story}")


def _show(found: Examination, setting: str) -> None:
    """Args: setting: what the best K is to be given as."""
    console = out()
    _show_checks(found.checks)
    if found.times is None:
        console.print("These two cannot be used together.")
        return
    if found.layers is not None:
        console.print(_layers_story(found.layers))
    console.print(_times_story(found.times))
    for prospect in found.prospects:
        console.print(_rates_story(prospect))
        console.print(_forecast_table(prospect))
        _show_advice(console, prospect, setting)
    for advice in found.trees:
        console.print(_tree_story(advice))


def _layers_story(choice: LayerChoice) -> str:
    """Which hidden states an EAGLE head reads, when its list of layers can be meant in two ways."""
    said = "; ".join(
        f"layers {', '.join(map(str, each.feature_layers))} ({each.reason}): right at {each.first_choice_rate:.0%}"
        for each in (choice.used, choice.other)
    )
    alone = (
        f"alone at {choice.used.num_alone_right} and {choice.other.num_alone_right} of {choice.num_positions} positions"
    )
    if not choice.is_settled:
        why = "too few to tell which fits, give more prompts or longer answers (--prompts, --num-prompts, --max-tokens)"
        return f"{SIGNS['warning']} layers: {said}; {alone}: {why}; what follows is measured with the first"
    if choice.used.is_default:
        return f"{SIGNS['ok']} layers: {said}; {alone}: keep"
    key = json.dumps({"feature_layers": choice.used.feature_layers})
    put = f"put {key[1:-1]} into --speculative-config; what follows is measured so"
    return f"{SIGNS['warning']} layers: {said}; {alone}: {put}"


def _times_story(times: StepTimes) -> str:
    last = times.max_draft_tokens
    return (
        f"t_s {times.draft_s * 1e3:.1f} ms, t_v {times.verify_s[0] * 1e3:.1f} ms for 1 token, "
        f"{times.verify_s[last] * 1e3:.1f} ms for {last + 1}, t_c {times.link_s * 1e3:.1f} ms"
    )


def _rates_story(prospect: Prospect) -> str:
    return (
        f"{prospect.sampling}: the draft's first choice is right at {prospect.first_choice_rate:.0%} of "
        f"{prospect.num_positions} positions, one of its first four at {prospect.first_four_rate:.0%}; "
        f"its vocabulary holds the token at {prospect.sayable_rate:.1%}"
    )


def _forecast_table(prospect: Prospect) -> Table:
    table = Table()
    for column in ("K", "tokens a round", "by eq. 3", "ms a round", "expected speed-up"):
        table.add_column(column, justify="right")
    for each in prospect.forecasts:
        table.add_row(
            str(each.num_draft_tokens),
            f"{each.tokens_per_round:.2f}",
            f"{each.tokens_per_round_eq3:.2f}",
            f"{each.round_ms:.1f}",
            f"{each.speed_up:.2f}x",
            style="bold" if each == prospect.best else None,
        )
    return table


def _show_advice(console: Console, prospect: Prospect, setting: str) -> None:
    best = prospect.best
    if best is None:
        console.print(f"{prospect.sampling}: do not speculate, this draft does not pay here")
    else:
        console.print(f"{prospect.sampling}: {setting} {best.num_draft_tokens}, about {best.speed_up:.2f}x plain")


def _tree_story(advice: TreeAdvice) -> str:
    what = f"bench tree at T={advice.temperature:g}"
    if not advice.speculative_config:
        return f"{what}: do not speculate, plain decoding was the fastest"
    keys = json.dumps(advice.speculative_config)
    return f"{what}: {advice.shape}, {advice.vs_plain:.2f}x plain: --speculative-config '{keys}'"
