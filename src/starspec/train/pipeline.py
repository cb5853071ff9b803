"""The whole training: the target answers prompts, its features are saved, a head learns them and is measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import takewhile
from pathlib import Path

import torch
from torch import Tensor

from starspec.harness.datasets import Prompt, hash_prompts, read_prompts
from starspec.harness.provenance import collect_provenance, hash_model, hash_token_ids
from starspec.models.heads.write import write_head
from starspec.train.answer_files import TrainingAnswer
from starspec.train.answers import answer_prompts, check_answers, check_prompts
from starspec.train.evaluate import chain_acceptance, split
from starspec.train.features import Target, Text, collect_features, load_target
from starspec.train.head import TrainedHead
from starspec.train.plan import HeadPlan
from starspec.train.report import TrainReport, card_text, draw_curves
from starspec.train.start import begin_like_head, begin_like_target, check_plan, frequent_tokens, hash_head, head_spec
from starspec.train.trainer import Trainer, TrainingProgress, TrainingStage
from starspec.train.work_folder import stage_folder, writing

CHAIN = 4  # tokens of the chains whose acceptance is measured
MAX_HELD_OUT = 64  # texts

Advance = Callable[[str, int, int], None]  # stage, turns done, turns in all


def train_head(plan: HeadPlan, advance: Advance) -> TrainReport:
    """Train one head. Resumes an earlier start with the same plan.

    Effects: in `plan.out` the checkpoint, its model card and its curves, renewed during the training; in
        `plan.out/work` what a resumed start needs.
    Raises: ConfigError if there are no prompts or none fits, if what is to be gone on with is damaged or was made for
        something else; OutputError if a file cannot be written; ModelError if the target cannot be read.
    """
    begun = time.monotonic()
    if plan.num_threads is not None:
        torch.set_num_threads(plan.num_threads)
    given = read_prompts(plan.prompts)
    prompts = _distinct(given)
    data_hash = hash_prompts(prompts)
    layers = check_plan(plan)
    check_prompts(prompts, plan.answers)
    advance("hashing the target", 0, 1)  # some seconds a gigabyte
    target_hash = hash_model(plan.answers.target)
    folders = _folders(plan, data_hash, target_hash, layers)
    wanted = plan.answers.num_tokens
    answers = answer_prompts(prompts, plan.answers, folders.answers, lambda num: advance("answering", num, wanted))
    advance("loading the target", 0, 1)
    target = load_target(plan.answers.target, _dtype(plan.answers.dtype), plan.answers.device)
    check_answers(answers, len(target.embedding), folders.answers)
    texts = collect_features(
        target, answers, layers, folders.features, lambda num: advance("collecting features", num, len(answers))
    )
    held_out, learnt = _divide(plan, texts, prompts, answers)
    learnt_from = answers.to_prompts({text.index for text in learnt})
    draft_token_ids = _draft_token_ids(plan, learnt_from, target)
    torch.manual_seed(plan.training.seed)
    head = _new_head(plan, target, layers, draft_token_ids)
    rows = target.lm_head if draft_token_ids is None else target.lm_head[draft_token_ids.to(target.lm_head.device)]
    num_answer_tokens = sum(len(answer.answer_ids) for answer in answers)
    answers_sha256 = hash_token_ids(answer.token_ids for answer in answers)
    stage = TrainingStage(0, answers_sha256, num_answer_tokens, plan.training.learning_rate)
    trainer = Trainer(head, learnt, target.embedding, rows.contiguous(), plan.training, folders.state, stage)
    untrained = TrainReport(
        provenance=replace(collect_provenance(), models={"target": target_hash}),
        method=plan.method,
        target=head.spec.target_name or "",
        feature_layers=layers,
        started_from=str(plan.start_from or "the target's last layer"),
        learns_prompts=plan.learn_prompts,
        draft_vocab_size=head.spec.draft_vocab_size,
        share_of_answers_covered=round(_share_covered(learnt_from, draft_token_ids), 5),
        prompts_sha256=data_hash,
        data_licence=plan.data_licence,
        num_prompts=len(prompts),
        num_repeated_prompts=len(given) - len(prompts),
        num_answers=len(answers),
        num_answer_tokens=stage.num_answer_tokens,
        answers_sha256=stage.answers_sha256,
        num_held_out=len(held_out),
        plan={**asdict(plan.training), "answers": _json_of(plan.answers)},
    )
    saving = _Saving(begun, plan.out, head, target, held_out, draft_token_ids, untrained)
    trainer.run(saving.save, lambda: advance("training", round(1000 * trainer.share_done), 1000))
    return saving.report


def _divide(
    plan: HeadPlan, texts: Sequence[Text], prompts: Sequence[Prompt], answers: Sequence[TrainingAnswer]
) -> tuple[list[Text], list[Text]]:
    """The texts on which the head is measured, and those from which it learns."""
    held_out, learnt = split(texts, prompts, plan.held_out_every)
    if plan.learn_prompts:
        opening = _len_shared(answer.prompt_ids for answer in answers)
        learnt = [text.learnt_from(opening) for text in learnt]
    return held_out[:MAX_HELD_OUT], learnt


@dataclass(slots=True)
class _Saving:
    """What is saved again and again during a training: the checkpoint and its report."""

    begun_s: float  # time.monotonic at the start of the command
    out: Path
    head: TrainedHead
    target: Target
    held_out: Sequence[Text]
    draft_token_ids: Tensor | None
    report: TrainReport  # the last one

    def save(self, progress: TrainingProgress) -> None:
        """Effects: measures the head on held-out answers, and renews the files in `out`."""
        found = None
        if self.held_out:
            target = self.target
            found = chain_acceptance(
                self.head, self.held_out, target.embedding, target.lm_head, self.draft_token_ids, CHAIN
            )
            progress.note_acceptance(round(found.length, 4))
        self.report = replace(
            self.report,
            steps=progress.step,
            num_positions=progress.num_positions,
            training_minutes=round(progress.seconds / 60, 2),
            minutes_of_last_start=round((time.monotonic() - self.begun_s) / 60, 2),
            held_out_chain=found,
            curve=progress.acceptance,
            lessons=progress.lessons,
        )
        _export(self.out, self.head, self.draft_token_ids, self.report, progress)


def _distinct(prompts: Sequence[Prompt]) -> list[Prompt]:
    """The first prompt of each text, in their order."""
    first = dict[str, Prompt]()
    for prompt in prompts:
        first.setdefault(prompt.text, prompt)
    return list(first.values())


@dataclass(frozen=True, slots=True)
class _Folders:
    answers: Path
    features: Path
    state: Path


def _folders(plan: HeadPlan, data_hash: str, target_hash: str, layers: Sequence[int]) -> _Folders:
    """The folder of each stage. Each depends on the stage before. Models count by content, since a path may get a new
    one.
    """
    said = {
        "target": plan.answers.target,
        "content_of_the_target": target_hash,
        "dtype": plan.answers.dtype,
        "prompts": data_hash,
        "sampled_every": plan.answers.sampled_every,
        "max_new_tokens": plan.answers.max_new_tokens,
    }
    read = said | {"feature_layers": layers}
    learnt = read | {
        "method": plan.method,
        "draft_vocab_size": plan.draft_vocab_size,
        "learn_prompts": plan.learn_prompts,
        "start_from": plan.start_from and str(plan.start_from),
        "content_of_the_head_started_from": plan.start_from and hash_head(plan.start_from),
        "seed": plan.training.seed,
        "ttt_steps": plan.training.ttt_steps,
        "batch_tokens": plan.training.batch_tokens,  # a training goes on behind the batches that it has had
        "held_out": f"by text, one of {plan.held_out_every}",
    }
    work = plan.out / "work"
    return _Folders(
        stage_folder(work / "answers", said),
        stage_folder(work / "features", read),
        stage_folder(work / "state", learnt),
    )


def _len_shared(prompts: Iterable[list[int]]) -> int:
    """Number of tokens that all prompts share at the beginning (the chat template); at least 1."""
    shared: list[int] | None = None
    for prompt in prompts:
        pairs = zip(prompt if shared is None else shared, prompt, strict=False)
        shared = [mine for mine, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]
    return max(1, len(shared or ()))


def _draft_token_ids(plan: HeadPlan, answers: Sequence[TrainingAnswer], target: Target) -> Tensor | None:
    vocab_size = target.config.vocab_size
    size = plan.draft_vocab_size
    if plan.method == "eagle" or size >= vocab_size:
        return None
    return frequent_tokens(answers, size, vocab_size)


def _new_head(plan: HeadPlan, target: Target, layers: tuple[int, ...], draft_token_ids: Tensor | None) -> TrainedHead:
    num_drafted = target.config.vocab_size if draft_token_ids is None else len(draft_token_ids)
    name = plan.target_name or plan.answers.target
    head = TrainedHead(head_spec(plan.method, target.config, name, num_drafted, layers)).to(target.embedding.device)
    if plan.start_from is None:
        begin_like_target(head, target.model)
    else:
        begin_like_head(head, plan.start_from, target.config.num_hidden_layers, target.embedding)
    return head


def _share_covered(answers: Sequence[TrainingAnswer], draft_token_ids: Tensor | None) -> float:
    if draft_token_ids is None:
        return 1.0
    known, num_known, num_all = set(draft_token_ids.tolist()), 0, 0
    for answer in answers:
        num_known += sum(token_id in known for token_id in answer.answer_ids)
        num_all += len(answer.answer_ids)
    return num_known / num_all


def _export(
    out: Path, head: TrainedHead, draft_token_ids: Tensor | None, report: TrainReport, progress: TrainingProgress
) -> None:
    """Effects: writes checkpoint, card and curves, each atomically.

    Raises: OutputError if one cannot be written.
    """
    with writing(out):
        write_head(out, head.weights(draft_token_ids), _json_of(report))
    for name, write in (
        ("README.md", lambda path: path.write_text(card_text(report))),
        ("training.png", lambda path: draw_curves(progress, path)),
    ):
        unfinished = out / f".unfinished-{name}"
        with writing(out / name):
            write(unfinished)
            if unfinished.exists():  # without matplotlib there are no curves
                unfinished.replace(out / name)


def _json_of(thing: object) -> dict[str, object]:
    import msgspec  # noqa: PLC0415

    found: dict[str, object] = msgspec.to_builtins(thing, enc_hook=str)
    return found


def _dtype(name: str) -> torch.dtype:
    found: torch.dtype = getattr(torch, name)
    return found
