"""How a head is trained: the settings of `starspec train`, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final, Literal

from starspec.config import Dtype, ModelConfig
from starspec.config.checks import check_name, options_of
from starspec.config.model import check_device
from starspec.config.option import Option
from starspec.errors import ConfigError

DATA, TRAINING = "Data", "Training"
MAX_SEED: Final = 2**63 - 1  # largest seed that both torch and JSON can hold
MAX_WORKERS: Final = 8  # that answer prompts on a CPU
DEFAULT_MINUTES: Final = 30.0
DEFAULT_TTT_STEPS: Final = 2
DEFAULT_DRAFT_VOCAB: Final = 8192
MAX_TTT_STEPS: Final = 32
MIN_RATE: Final = 1e-9  # of learning; below it nothing is learnt

MODEL_OPTIONS = options_of(ModelConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerPlan:
    """How many answers the target gives, and how."""

    target: Annotated[str, MODEL_OPTIONS["model"]]
    dtype: Annotated[Dtype, MODEL_OPTIONS["dtype"]] = "bfloat16"
    device: Annotated[str, MODEL_OPTIONS["device"]] = "cpu"
    num_tokens: Annotated[
        int, Option("Tokens that all answers have together; afterwards no prompt starts.", DATA, least=1)
    ] = 400_000
    sampled_every: int = 4  # every fourth answer is sampled, the others are greedy; 0 = all are greedy
    max_new_tokens: Annotated[int, Option("Tokens that an answer has at most.", DATA, least=2)] = 160
    max_model_len: Annotated[
        int, Option("Tokens of prompt and answer; longer prompts are left out.", DATA, least=4)
    ] = 512
    batch: Annotated[int, Option("Answers to generate at once.", DATA, least=1)] = 64  # of each worker
    num_workers: int = 1  # processes, each with its share of the threads
    num_threads: int = 1  # of one worker

    @property
    def room(self) -> int:
        """Tokens of a prompt, at most."""
        return self.max_model_len - self.max_new_tokens

    @property
    def model(self) -> ModelConfig:
        """The target as one worker runs it."""
        return ModelConfig(
            model=self.target,
            dtype=self.dtype,
            device=self.device,
            numerics="fast",
            max_model_len=self.max_model_len,
            num_rows=self.batch,
            num_threads=self.num_threads,
        )

    def __post_init__(self) -> None:
        check_device(self.device)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainPlan:
    """How the head learns. Without steps and minutes it has no end, and `Trainer` refuses it."""

    steps: Annotated[
        int | None, Option("Number of optimizer steps that end the training.", TRAINING, least=1, shown="no limit")
    ] = None
    # the limit that is reached first ends the training
    minutes: Annotated[
        float | None,
        Option(
            "Minutes of optimizer steps that end the training.",
            TRAINING,
            least=0.01,
            shown=f"{DEFAULT_MINUTES:g}, if no steps are given",
        ),
    ] = None
    learning_rate: Annotated[
        float, Option("Highest learning rate that the schedule reaches.", TRAINING, least=MIN_RATE)
    ] = 1e-3
    warmup: int = 60  # steps
    # padding included
    batch_tokens: Annotated[
        int, Option("Tokens of prompts and answers that one step trains on.", TRAINING, least=2)
    ] = 2048
    ttt_steps: Annotated[
        int | None,
        Option(
            "Training-time-test steps, in which the head's own output is its input.",
            TRAINING,
            least=0,
            most=MAX_TTT_STEPS,
            shown=f"{DEFAULT_TTT_STEPS}; 0 for eagle",
        ),
    ] = None
    step_decay: float = 0.8
    save_every: Annotated[int, Option("Steps between two checkpoints with measurements.", TRAINING, least=1)] = 100
    seed: Annotated[
        int, Option("Seed that decides the order of texts and the first weights.", TRAINING, least=0, most=MAX_SEED)
    ] = 1
    bf16: bool = True  # autocast

    def __post_init__(self) -> None:
        if not 0 <= self.seed <= MAX_SEED:
            raise ConfigError(f"the seed of a training should be 0 to {MAX_SEED}, but is {self.seed}")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadPlan:
    """How one head is trained."""

    answers: AnswerPlan  # names the target
    prompts: Annotated[Path, Option('Prompts, as JSON lines with "turns"; the target answers the first of each.', DATA)]
    out: Path
    method: Annotated[
        Literal["eagle", "eagle3"], Option("Kind of head to train; eagle is the head of EAGLE-1 and EAGLE-2.", TRAINING)
    ] = "eagle3"
    data_licence: Annotated[
        str, Option("Licence of the prompts, which the model card states.", DATA, ("--licence",))
    ] = "not stated"
    learn_prompts: Annotated[
        bool,
        Option(
            "Train on the target's predictions within the prompts, too: more training data from the same answers.",
            DATA,
            ("--learn-prompts/--no-learn-prompts",),
        ),
    ] = False
    start_from: Annotated[
        Path | None,
        Option("A head of the same shape that was trained before.", TRAINING, shown="the target's last layer"),
    ] = None
    draft_vocab_size: Annotated[
        int, Option("Size of the draft vocabulary: the most frequent tokens; eagle3 only.", TRAINING, least=2)
    ] = DEFAULT_DRAFT_VOCAB
    feature_layers: Annotated[
        tuple[int, ...] | None,
        Option(
            "Indices into hidden_states, as 2,15,27.",
            TRAINING,
            least=0,
            shown="2, L/2, L-3; the last for eagle",
            form="numbers",
        ),
    ] = None
    training: TrainPlan
    target_name: Annotated[str | None, Option("Name of the target in the checkpoint.", TRAINING, shown="as given")] = (
        None
    )
    held_out_every: int = 33  # one of so many prompts is held out for measuring
    num_threads: Annotated[int | None, MODEL_OPTIONS["num_threads"]] = None

    def __post_init__(self) -> None:
        if self.target_name is not None:
            check_name(self.target_name, "--target-name")
        if self.method == "eagle" and self.draft_vocab_size != DEFAULT_DRAFT_VOCAB:
            raise ConfigError("--draft-vocab-size is for eagle3: a head of eagle has its target's vocabulary")

    def resolved(self, usual_threads: int) -> HeadPlan:
        """The plan with what follows from its other settings, and from the threads that this process has by default."""
        threads = self.num_threads or usual_threads
        # one process for each core gives 1.3 times the tokens of one process with all cores, but needs more memory;
        # on a GPU, processes would only wait for each other
        num_workers = min(threads, MAX_WORKERS) if self.answers.device == "cpu" else 1
        is_endless = self.training.steps is None and self.training.minutes is None
        ttt_steps = self.training.ttt_steps
        if ttt_steps is None:
            ttt_steps = DEFAULT_TTT_STEPS if self.method == "eagle3" else 0
        return replace(
            self,
            num_threads=threads,
            answers=replace(self.answers, num_workers=num_workers, num_threads=max(1, threads // num_workers)),
            training=replace(
                self.training,
                minutes=DEFAULT_MINUTES if is_endless else self.training.minutes,
                ttt_steps=ttt_steps,
                bf16=self.answers.dtype == "bfloat16",
            ),
        )
