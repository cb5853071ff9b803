"""What a training was, as data, as a model card and as a picture."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from starspec.harness.figures import COLOURS
from starspec.harness.provenance import Provenance
from starspec.train.evaluate import ChainAcceptance
from starspec.train.trainer import TrainingProgress, TrainingStage


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainReport:
    """The plan and the results of a training."""

    provenance: Provenance
    method: str
    target: str
    feature_layers: tuple[int, ...]
    started_from: str  # where the first weights came from
    learns_prompts: bool
    draft_vocab_size: int
    share_of_answers_covered: float  # share of the training answers' tokens in the draft vocabulary
    prompts_sha256: str
    data_licence: str
    num_prompts: int  # distinct ones
    num_repeated_prompts: int  # left out, so that no training text is also held out
    num_answers: int
    num_answer_tokens: int
    answers_sha256: str  # of the current answers
    num_held_out: int
    plan: Mapping[str, object]
    steps: int = 0
    num_positions: int = 0
    training_minutes: float = 0.0
    minutes_of_last_start: float = 0.0  # all stages of the last start only
    held_out_chain: ChainAcceptance | None = None  # None = no held-out prompt has a greedy answer
    curve: Sequence[tuple[int, float]] = field(default_factory=list)  # step, tokens a round on held-out answers
    lessons: Sequence[TrainingStage] = field(default_factory=list)  # training data of each start


def summary(report: TrainReport) -> list[str]:
    """What people read at the end of a training."""
    lines = [f"{report.steps} steps over {report.num_positions:,} positions, {report.training_minutes:.1f} minutes"]
    if report.num_repeated_prompts:
        lines.append(f"{report.num_repeated_prompts:,} prompts repeat the text of an earlier one and were left out")
    if report.held_out_chain is not None:
        length = report.held_out_chain.length
        lines.append(f"chain of 4, greedy, {report.num_held_out} held-out prompts: {length:.2f} tokens a round")
    return lines


def card_text(report: TrainReport) -> str:
    """Markdown."""
    found = report.held_out_chain
    measured = "nothing was held out"
    if found is not None:
        steps = ", ".join(f"{share:.2f}" for share in found.right_by_step)
        measured = (
            f"{found.length:.2f} tokens a round on {report.num_held_out} held-out prompts of the same kind; "
            f"right where all before were: {steps}"
        )
    lessons = "".join(
        f"| from step {each.first_step:,} | {each.num_answer_tokens:,} tokens of answers, learning rate "
        f"{each.learning_rate:g} |\n"
        for each in report.lessons
        if len(report.lessons) > 1
    )
    learnt = ", learnt from together with their prompts" if report.learns_prompts else ""
    where = report.provenance
    command, *arguments = where.argv
    command = "starspec" if command == "__main__.py" else command  # python -m starspec
    return f"""# {"EAGLE-3" if report.method == "eagle3" else "EAGLE"} head for {report.target}

One decoder layer that drafts for {report.target}; useless for any other model. Written in the layout of `speculators`;
its embedding and LM head are the target's and not stored.

    starspec generate "Hello" --target TARGET --draft THIS_FOLDER

| | |
|---|---|
| input | hidden states {", ".join(map(str, report.feature_layers))} (indices into `hidden_states`, 0 = embeddings) |
| speaks | {report.draft_vocab_size:,} tokens, {report.share_of_answers_covered:.1%} of the answers learnt from |
| data | {report.num_answers:,} answers of the target itself, {report.num_answer_tokens:,} tokens{learnt} |
| prompts | {report.num_prompts:,}, sha256 `{report.prompts_sha256[:16]}...`; licence: {report.data_licence} |
| started from | {report.started_from} |
| training | {report.steps:,} steps over {report.num_positions:,} positions in {report.training_minutes:.3g} minutes |
{lessons}| on | {where.cpu}, {where.num_threads} threads{", " + ", ".join(where.devices) if where.devices else ""} |
| chain of 4, greedy | {measured} |

The command, folders shortened: `{shlex.join([command, *arguments])}`

`provenance.json` has the versions, the plan and the hashes of target, prompts and answers.
"""


BLUE, RED = COLOURS[0], COLOURS[4]
SMOOTHED = 20  # steps that one point of the loss is the mean of


def draw_curves(progress: TrainingProgress, path: Path) -> None:
    """Save both panels. Nothing is drawn without matplotlib.

    Raises: OSError if the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 (an extra)
    except ImportError:
        return
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    steps, losses, shares = (
        (list(each) for each in zip(*progress.losses, strict=True)) if progress.losses else ([],) * 3
    )
    left.plot(_means(steps), _means(losses), color=BLUE)
    left.set_xlabel("training step")
    left.set_ylabel("loss (nats a token)", color=BLUE)
    beside = left.twinx()
    beside.plot(_means(steps), _means(shares), color=RED, linestyle="--")
    beside.set_ylabel("first token right (share)", color=RED)
    right.plot(*(list(each) for each in zip(*progress.acceptance, strict=True)), color=BLUE, marker="o")
    right.set_xlabel("training step")
    right.set_ylabel("held-out, chain of 4 (tokens a round)")
    right.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


def _means(values: Sequence[float]) -> list[float]:
    """The mean of every `SMOOTHED` values."""
    pieces = [values[at : at + SMOOTHED] for at in range(0, len(values), SMOOTHED)]
    return [sum(piece) / len(piece) for piece in pieces]
