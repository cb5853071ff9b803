"""`starspec train`: an EAGLE head for a target, from prompts alone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from starspec.cli import given
from starspec.cli import options as opt
from starspec.cli.files import JsonFile, check_folder
from starspec.cli.measuring import measuring, publish

DATA, TRAINING = "Data", "Training"
MAX_WORKERS = 8  # that answer prompts on a CPU


def train(
    target: opt.TargetModel,
    prompts: Annotated[
        Path,
        typer.Option(
            help='JSON lines with "turns"; the target answers the first of each.',
            rich_help_panel=DATA,
        ),
    ],
    folder: Annotated[
        Path, typer.Option("--out", callback=check_folder, help="Folder of the head; its work/ is for resuming.")
    ],
    method: Annotated[
        Literal["eagle", "eagle3"], typer.Option(help="eagle: EAGLE-1 and EAGLE-2.", rich_help_panel=TRAINING)
    ] = "eagle3",
    num_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens of all answers together.", rich_help_panel=DATA)
    ] = 400_000,
    max_new_tokens: Annotated[int, typer.Option(min=2, help="Of one answer.", rich_help_panel=DATA)] = 160,
    batch: Annotated[int, typer.Option(min=1, help="Answers at once.", rich_help_panel=DATA)] = 64,
    licence: Annotated[str, typer.Option(help="Of the prompts, for the model card.", rich_help_panel=DATA)] = (
        "not stated"
    ),
    learn_prompts: Annotated[
        bool,
        typer.Option(
            help="Train on the target's predictions within the prompts, too: more training data from the same answers.",
            rich_help_panel=DATA,
        ),
    ] = False,
    start_from: Annotated[
        Path | None,
        typer.Option(
            help="A head of the same shape that was trained before.",
            show_default="the target's last layer",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    draft_vocab_size: Annotated[
        int,
        typer.Option(
            min=2, help="Size of the draft vocabulary: the most frequent tokens; eagle3 only.", rich_help_panel=TRAINING
        ),
    ] = 8192,
    feature_layers: Annotated[
        str | None,
        typer.Option(
            help="Indices into hidden_states, as 2,15,27.",
            show_default="2, L/2, L-3; the last for eagle",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    ttt_steps: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Training-time-test steps, in which the head's own output is its input.",
            show_default="2; 0 for eagle",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Of the optimizer.", show_default="no limit", rich_help_panel=TRAINING)
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            min=0.01,
            help="Of the optimizer's time.",
            show_default="30, if no steps are given",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    learning_rate: Annotated[float, typer.Option(min=0.0, help="The highest.", rich_help_panel=TRAINING)] = 1e-3,
    batch_tokens: Annotated[
        int, typer.Option(min=2, help="Of prompts and answers, in one step.", rich_help_panel=TRAINING)
    ] = 2048,
    save_every: Annotated[
        int,
        typer.Option(min=1, help="Steps between two checkpoints with measurements.", rich_help_panel=TRAINING),
    ] = 100,
    seed: Annotated[
        int,
        typer.Option(min=0, max=2**63 - 1, help="Of the order and of the first weights.", rich_help_panel=TRAINING),
    ] = 1,
    target_name: Annotated[
        str | None,
        typer.Option(help="Name of the target in the checkpoint.", show_default="as given", rich_help_panel=TRAINING),
    ] = None,
    json_file: JsonFile = None,
    dtype: opt.Dtype = opt.MODEL.dtype,
    device: opt.Device = opt.MODEL.device,
    max_model_len: Annotated[
        int,
        typer.Option(min=4, help="Tokens of prompt and answer; longer prompts are left out.", rich_help_panel=DATA),
    ] = 512,
    num_threads: opt.NumThreads = None,
) -> None:
    """Train an EAGLE head: the target answers prompts, and the head learns to predict its tokens.

    The same command resumes an interrupted training.
    """
    with measuring("train") as bar:
        from starspec.train.answers import AnswerPlan  # noqa: PLC0415
        from starspec.train.pipeline import train_head  # noqa: PLC0415
        from starspec.train.plan import HeadPlan  # noqa: PLC0415
        from starspec.train.report import summary  # noqa: PLC0415
        from starspec.train.trainer import TrainPlan  # noqa: PLC0415

        threads = num_threads or _num_cores()
        # one process for each core gives 1.3 times the tokens of one process with all cores, but needs more memory;
        # on a GPU, processes would only wait for each other
        num_workers = min(threads, MAX_WORKERS) if device == "cpu" else 1
        answers = AnswerPlan(
            target=target,
            dtype=dtype,
            device=device,
            num_tokens=num_tokens,
            max_new_tokens=max_new_tokens,
            max_model_len=max_model_len,
            batch=batch,
            num_workers=num_workers,
            num_threads=max(1, threads // num_workers),
        )
        training = TrainPlan(
            steps=steps,
            minutes=30.0 if minutes is None and steps is None else minutes,
            learning_rate=learning_rate,
            batch_tokens=batch_tokens,
            ttt_steps=ttt_steps if ttt_steps is not None else (2 if method == "eagle3" else 0),
            save_every=save_every,
            seed=seed,
            bf16=dtype == "bfloat16",
        )
        plan = HeadPlan(
            method=method,
            prompts=prompts,
            out=folder,
            answers=answers,
            training=training,
            learn_prompts=learn_prompts,
            start_from=start_from,
            draft_vocab_size=draft_vocab_size,
            feature_layers=given.numbers(feature_layers, "--feature-layers", least=0),
            target_name=target_name,
            data_licence=licence,
            num_threads=threads,
        )
        report = train_head(plan, bar.show)
    publish(report, [*summary(report), f"the head is in {folder}"], json_file)


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
