"""The third stage: train the head with AdamW. It stops after a number of steps or minutes, and can resume."""

from __future__ import annotations

import contextlib
import json
import math
import random
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from starspec.errors import ConfigError, OutputError
from starspec.train.features import Text, batches_of, collate
from starspec.train.head import TrainedHead
from starspec.train.loss import soft_cross_entropy, step_weights, target_distribution
from starspec.train.plan import DEFAULT_TTT_STEPS, TrainPlan
from starspec.train.unroll import Batch, unroll
from starspec.train.work_folder import uninterrupted, writing

BETAS, WEIGHT_DECAY, MAX_GRADIENT = (0.9, 0.95), 0.01, 1.0
LAST_RATE = 0.02  # learning rate at the end of the cosine, as a share of the highest
POOL = 512  # texts that are sorted by length together
CE_BESIDE_FEATURES = 0.1  # EAGLE-1's weight of the cross-entropy


@dataclass(frozen=True, slots=True)
class TrainingStage:
    """The data and the learning rate from one step on. A resumed training may get other data or another rate."""

    first_step: int
    answers_sha256: str
    num_answer_tokens: int
    learning_rate: float


@dataclass(slots=True)
class TrainingProgress:
    """The progress of a training."""

    step: int = 0
    seconds: float = 0.0
    num_positions: int = 0  # training tokens, repetitions included
    losses: list[tuple[int, float, float]] = field(default_factory=list)
    """step, loss, share of first tokens that are the target's choice among those that the head can say"""
    acceptance: list[tuple[int, float]] = field(default_factory=list)  # step, tokens a round on held-out answers
    lessons: list[TrainingStage] = field(default_factory=list)  # the key of checkpoints and reports

    def note_stage(self, stage: TrainingStage) -> None:
        """Use this data from the next step on."""
        stage = replace(stage, first_step=self.step)
        if not self.lessons or replace(self.lessons[-1], first_step=self.step) != stage:
            self.lessons.append(stage)

    def note_acceptance(self, length: float) -> None:
        """Record the acceptance of this step, again if a finished training starts again."""
        self.acceptance = [each for each in self.acceptance if each[0] != self.step] + [(self.step, length)]


class Trainer:
    """A head and its optimizer, with checkpoints from which a training can resume.

    Args:
        lm_head: the target's rows that the head speaks through, [Vd, C].
        folder: where the state is kept.
        stage: what the texts are, for whoever reads of the head later.
    Raises: ConfigError if the plan has no end.
    """

    def __init__(
        self,
        head: TrainedHead,
        texts: Sequence[Text],
        embedding: Tensor,
        lm_head: Tensor,
        plan: TrainPlan,
        folder: Path,
        stage: TrainingStage,
    ) -> None:
        if plan.steps is None and plan.minutes is None:
            raise ConfigError("a training needs an end: steps or minutes")
        self.head, self.texts, self.plan, self.folder = head, texts, plan, folder
        self._stage = stage
        self.embedding, self.lm_head = embedding, lm_head
        self.progress = TrainingProgress()
        self._measured_at = -1  # step
        decayed = [each for each in head.parameters() if each.ndim > 1]
        others = [each for each in head.parameters() if each.ndim <= 1]
        groups = [{"params": decayed, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=plan.learning_rate, betas=BETAS)

    @property
    def share_done(self) -> float:
        """From 0 to 1."""
        plan, progress = self.plan, self.progress
        by_steps = progress.step / plan.steps if plan.steps else 0.0
        by_time = progress.seconds / (60 * plan.minutes) if plan.minutes else 0.0
        return max(by_steps, by_time)

    def run(self, saving: Callable[[TrainingProgress], None], advance: Callable[[], None]) -> TrainingProgress:
        """Train until the plan ends.

        Args:
            saving: called now and then, and at the end; may add to the progress.
            advance: called after each step.
        """
        self.resume()
        self._learn(saving, advance)
        if self._measured_at != self.progress.step:
            self._measure(saving)
        return self.progress

    def _learn(self, saving: Callable[[TrainingProgress], None], advance: Callable[[], None]) -> None:
        with contextlib.closing(_one_ahead(self._batches())) as batches:
            while self.share_done < 1:
                begun = time.monotonic()
                with self._kept():
                    batch = next(batches)
                self.progress.note_stage(self._stage)
                with uninterrupted(self.save):
                    self._step(batch)
                    self.progress.seconds += time.monotonic() - begun
                with self._kept():
                    advance()
                if self.progress.step % self.plan.save_every == 0:
                    self._measure(saving)

    @contextlib.contextmanager
    def _kept(self) -> Iterator[None]:
        """Save between two steps, so that an interrupt loses no step."""
        try:
            yield
        except KeyboardInterrupt:
            self.save()
            raise

    def _measure(self, saving: Callable[[TrainingProgress], None]) -> None:
        """Effects: saves the state, with the measurement unless that fails or is interrupted."""
        try:
            saving(self.progress)
        except BaseException:
            with contextlib.suppress(OutputError):  # the error of measuring is the one to report
                self.save()
            raise
        self.save()
        self._measured_at = self.progress.step

    def _step(self, batch: Batch) -> None:
        rate = self.plan.learning_rate * min(1.0, (self.progress.step + 1) / self.plan.warmup) * self._cosine()
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad(set_to_none=True)
        loss, share_right, num = self.loss(batch)
        if not bool(loss.isfinite()):
            raise ConfigError(
                f"the loss of step {self.progress.step + 1} is not a number: give a lower --learning-rate, and delete "
                f"'{self.folder}', where the steps that led to it may be kept"
            )
        loss.backward()  # type: ignore[no-untyped-call]  # torch's own
        torch.nn.utils.clip_grad_norm_(self.head.parameters(), MAX_GRADIENT)
        self.optimizer.step()
        self.progress.step += 1
        self.progress.num_positions += num
        self.progress.losses.append((self.progress.step, round(float(loss.detach()), 4), round(share_right, 4)))

    def loss(self, batch: Batch) -> tuple[Tensor, float, int]:
        """Compute one batch. Returns: the loss, the share of right first tokens, and the number of positions."""
        plan, head = self.plan, self.head
        device = self.embedding.device
        batch = batch.to(device)
        cast = torch.autocast(device.type, torch.bfloat16) if plan.bf16 else nullcontext()
        with cast:
            ttt_steps = DEFAULT_TTT_STEPS if plan.ttt_steps is None else plan.ttt_steps
            spoken = unroll(head, batch, self.embedding, ttt_steps + 1)
        first = batch.counts(0)
        wanted = target_distribution(batch.last_hidden[first], self.lm_head)
        index = first.flatten().cumsum(0).view_as(first) - 1  # of an answer's token among `wanted`
        total = spoken[0].new_zeros(())
        share_right = 0.0
        for step, (h, weight) in enumerate(zip(spoken, step_weights(len(spoken), plan.step_decay), strict=True)):
            counts = batch.counts(step)
            if not bool(counts.any()):
                continue
            said = head.spoken(h[counts])
            found = soft_cross_entropy(said, self.lm_head, wanted[index[counts] + step] if step else wanted)
            loss = found.entropy / len(said)
            if not head.spec.is_eagle3:
                features = _shifted(batch.last_hidden, step)[counts].float()
                loss = F.smooth_l1_loss(h[counts], features) + CE_BESIDE_FEATURES * loss
            total = total + weight * loss
            if step == 0:
                share_right = float(found.is_right.float().mean())
        return total, share_right, int(first.sum())

    def _cosine(self) -> float:
        return LAST_RATE + (1 - LAST_RATE) * 0.5 * (1 + math.cos(math.pi * min(self.share_done, 1.0)))

    def _batches(self) -> Iterator[Batch]:
        """Endless batches from the current progress on. The seed determines the order."""
        lengths = [len(text) for text in self.texts]
        number, num_done = 0, self.progress.step
        for epoch in range(10**9):
            rng = random.Random(f"{self.plan.seed}/{epoch}")  # noqa: S311 (not for secrets)
            order = list(range(len(lengths)))
            rng.shuffle(order)
            pools = [
                sorted(order[at : at + POOL], key=lambda index: lengths[index]) for at in range(0, len(order), POOL)
            ]
            batches = [batch for pool in pools for batch in batches_of(lengths, pool, self.plan.batch_tokens)]
            rng.shuffle(batches)
            for batch in batches:
                number += 1
                if number > num_done:
                    yield collate([self.texts[index] for index in batch])

    # ---------------------------------------------------------------- state on disk

    def save(self) -> None:
        """Effects: writes `state.safetensors` with its JSON atomically.

        Raises: OutputError if it cannot be written.
        """
        tensors = {f"head.{name}": value.detach().cpu().contiguous() for name, value in self.head.state_dict().items()}
        for number, state in self.optimizer.state_dict()["state"].items():
            tensors |= {f"adam.{number}.{name}": value.cpu() for name, value in state.items()}
        unfinished, path = self.folder / "state.part", self.folder / "state.safetensors"
        with writing(path):
            self.folder.mkdir(parents=True, exist_ok=True)
            save_file(tensors, unfinished, {"progress": json.dumps(asdict(self.progress))})
            unfinished.replace(path)

    def resume(self) -> None:
        """Load the state, if there is one. Raises: ConfigError if it is damaged."""
        path = self.folder / "state.safetensors"
        if not path.exists():
            return
        try:
            tensors, progress = load_file(path), _metadata(path)["progress"]
        except SafetensorError as error:
            raise ConfigError(f"'{path}' is damaged; delete it to start anew") from error
        self.head.load_state_dict(
            {name.removeprefix("head."): value for name, value in tensors.items() if name.startswith("head.")}
        )
        state: dict[int, dict[str, Any]] = {}
        for name, value in tensors.items():
            if name.startswith("adam."):
                _, number, key = name.split(".")
                state.setdefault(int(number), {})[key] = value
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": state})
        self.progress = msgspec.json.decode(progress, type=TrainingProgress)


def _one_ahead(batches: Iterator[Batch]) -> Generator[Batch]:
    """The same batches. A thread loads the next one from disk while the caller works on the current one."""
    with ThreadPoolExecutor(1) as reader:
        upcoming = reader.submit(next, batches)
        while True:
            batch = upcoming.result()
            upcoming = reader.submit(next, batches)
            yield batch


def _shifted(states: Tensor, step: int) -> Tensor:  # [B, A, C]
    """Position m + step at index m. Values beyond the end do not count."""
    return F.pad(states[:, step:], (0, 0, 0, min(step, states.shape[1])))


def _metadata(path: Path) -> dict[str, str]:
    with safe_open(path, framework="pt") as file:
        found: dict[str, str] = file.metadata()
    return found
