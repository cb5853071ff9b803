"""`starspec doctor`: is this draft any good for this target?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from starspec.cli import given
from starspec.cli.binder import bound, take
from starspec.cli.files import JsonFile, PromptFile, prompts_option, spread_prompts
from starspec.cli.measuring import measuring, publish, show
from starspec.config import ModelConfig, Option, SpeculativeConfig
from starspec.config.option import MEASURE, NONE_GIVEN
from starspec.errors import ConfigError
from starspec.harness.model_pair import ModelPair
from starspec.models.loading.checks import check_cut, check_room, check_settings, find_models

if TYPE_CHECKING:
    from starspec.harness.vllm_client import VllmStatus


NUM_PROMPTS: Final = 8
NO_TARGET: Final = ModelConfig(model="")
NO_DRAFT: Final = ModelPair(target="", draft="", quantization="none")


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorOptions:
    """How much is measured, and for what the forecast is made."""

    num_prompts: Annotated[int | None, prompts_option(NUM_PROMPTS)] = None
    max_tokens: Annotated[int, Option("Tokens of an answer.", MEASURE, least=2)] = 48
    max_draft_tokens: Annotated[
        int, Option("Largest number of draft tokens to consider.", MEASURE, least=1, most=15)
    ] = 8
    round_trip_ms: Annotated[
        float,
        Option("Milliseconds of a round trip to the hub, which are added to each round.", MEASURE, least=0.0),
    ] = 0.0
    tree_report: Annotated[
        Path | None,
        Option(
            "Report of `bench tree --json` for this pair: its best trees are recommended too.",
            MEASURE,
            shown=NONE_GIVEN,
        ),
    ] = None

    num_stages: Annotated[
        int | None,
        Option(
            "Stages to cut the target into, to see what --hidden-dtype int8 between them changes. This loads the "
            "target once more: a stage reads its own layers, and the whole target stays for the other measurements.",
            MEASURE,
            ("--stages",),
            least=2,
            shown=NONE_GIVEN,
        ),
    ] = None

    def __post_init__(self) -> None:
        if self.tree_report is not None:
            given.check_readable(self.tree_report, "--tree-report")


@bound
def doctor(
    model: Annotated[ModelConfig, take("model", "dtype", "device", "numerics", "num_threads", model="")],
    draft: Annotated[ModelPair, take("draft", "quantization", "method", target="", draft="", quantization="none")],
    options: DoctorOptions,
    prompts: PromptFile = None,
    vllm: Annotated[
        str | None,
        typer.Option(
            help="A running vLLM server, http://host:port, instead of --target. With --draft: forecast its speed-up. "
            "Without: show the server's own counters. Its api key comes from OPENAI_API_KEY.",
            show_default=NONE_GIVEN,
        ),
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Check a target and a draft: do they fit, how often is the draft right, which speed-up can be expected?

    The target is a model or a running vLLM server. Exits 1 if they cannot be used together.
    """
    if vllm is not None:
        if model.model or options.tree_report is not None or options.num_stages is not None:
            raise ConfigError(
                "--vllm takes the place of --target, no --tree-report is of a vLLM server, and it has no --stages"
            )
        if not draft.draft:
            if (model, draft, options, prompts, json_file) != (NO_TARGET, NO_DRAFT, DoctorOptions(), None, None):
                raise ConfigError(
                    "--vllm without --draft shows the server's counters and measures nothing: give --draft too, or "
                    "leave all other options out"
                )
            _read_counters(vllm)
            return
    are_given = {"--target": bool(model.model) or vllm is not None, "--draft": bool(draft.draft)}
    if missing := [flag for flag, is_given in are_given.items() if not is_given]:
        raise ConfigError(
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing: the doctor examines a target, "
            "--target MODEL or --vllm URL, and its draft, --draft MODEL"
        )
    speculative = SpeculativeConfig(method=draft.method, model=draft.draft, quantization=draft.quantization)
    model = replace(model, model=model.model or draft.draft)
    chosen = spread_prompts(prompts, options.num_prompts, NUM_PROMPTS)
    find_models(model.model, draft.draft)
    check_settings(model, speculative.draft_model(model))
    check_room(model, options.max_tokens)
    check_cut(model.model, options.num_stages or 1)
    if vllm is not None:
        _status_of(vllm)  # that it answers
    with measuring("doctor") as bar:
        from starspec.doctor.examine import examine  # noqa: PLC0415 (these import torch)
        from starspec.doctor.text import blocks  # noqa: PLC0415
        from starspec.doctor.vllm import examine_vllm  # noqa: PLC0415

        bar.begin("examining", None)
        ours = partial(examine, tree_report=options.tree_report, num_stages=options.num_stages)
        look = partial(examine_vllm, vllm) if vllm is not None else ours
        found = look(
            model,
            speculative,
            chosen,
            max_tokens=options.max_tokens,
            max_draft_tokens=options.max_draft_tokens,
            link_s=options.round_trip_ms / 1e3,
        )
    setting = "--spec-tokens" if vllm is None else "num_speculative_tokens"
    publish(found, blocks(found, setting), json_file, fails=not found.is_usable)


def _status_of(url: str) -> VllmStatus:
    from starspec.harness.vllm_client import vllm_status  # noqa: PLC0415 (imports httpx)

    return vllm_status(url)


def _read_counters(url: str) -> None:
    status = _status_of(url)
    from starspec.doctor.text import check_lines  # noqa: PLC0415 (these import torch)
    from starspec.doctor.vllm import check_vllm  # noqa: PLC0415

    checks = check_vllm(status)
    show(check_lines(checks))
    if any(check.severity == "fatal" for check in checks):
        raise typer.Exit(1)
