"""The model card of a head: what it is for, what it was made from, and how far it goes."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starspec.train.pipeline import TrainReport


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
| reads | hidden states {", ".join(map(str, report.feature_layers))} (indices into `hidden_states`, 0 = embeddings) |
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
