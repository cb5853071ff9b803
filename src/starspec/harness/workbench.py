"""One loaded target, for decoding with many kinds of drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from starspec.config import BatchingConfig, ModelConfig, SpeculativeConfig
from starspec.engine.drafts import Drafts, NoDrafts
from starspec.errors import ConfigError
from starspec.harness.cut_target import CutTarget
from starspec.harness.datasets import Prompt, prompt_token_ids
from starspec.harness.decode import Job, JobResult, decode, make_engine, make_engine_over
from starspec.harness.known_prompts import KnownPrompts
from starspec.harness.recorder import DecisionRecorder
from starspec.ids import RequestId
from starspec.local_star import check_drafts, local_drafts
from starspec.models.loading.tokenizer import load_tokenizer
from starspec.sampling.spec import SamplingSpec
from starspec.stats import AcceptanceStats, BatchStats, TargetStats
from starspec.windows.batching import lay_out
from starspec.windows.open import open_runner


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """The sampling parameters of a set of requests."""

    temperature: float  # 0 = greedy
    top_p: float = 1.0

    @property
    def name(self) -> str:
        if self.temperature == 0.0:
            return "greedy"
        return f"T={self.temperature:g}" + (f", top-p {self.top_p:g}" if self.top_p < 1.0 else "")


GREEDY = Sampling(temperature=0.0)
SAMPLED = tuple(Sampling(temperature=t, top_p=p) for t in (0.7, 1.0) for p in (1.0, 0.9))


@dataclass(slots=True)
class Recorded:
    """Answers, and the logits that decided each token."""

    answers: list[JobResult]
    logits: list[list[Tensor]] | None  # None = not recorded
    rounds: BatchStats

    @property
    def acceptance(self) -> AcceptanceStats:
        total = AcceptanceStats()
        for answer in self.answers:
            total.add(answer.stats.acceptance)
        return total


class Workbench:
    """One target model and its tokenizer.

    Args:
        config: the target.
        speculative: drafts that it will be used with: they are checked before the target is loaded.
    Raises: as open_runner and check_drafts.
    """

    def __init__(self, config: ModelConfig, speculative: SpeculativeConfig | None = None) -> None:
        self.config = config
        self.tokenizer = load_tokenizer(config.model)
        check_drafts(config, speculative, self.tokenizer)
        self.runner = open_runner(config, BatchingConfig(), BatchStats()).runner

    @property
    def numerics_report(self) -> str:
        """What the probe at load found about the kernels of this machine."""
        return self.runner.numerics_report

    @property
    def promises_equality(self) -> bool:
        """Whether these settings promise the same tokens with and without drafts, in every batch."""
        return self.runner.is_invariant

    def drafts(self, speculative: SpeculativeConfig | None) -> Drafts:
        """Drafts for this target from a hub in this process. Raises: as local_drafts. Effects: loads a draft model."""
        return local_drafts(self.config, self.runner.info, speculative, TargetStats(), self.tokenizer)

    def jobs(self, prompts: Sequence[Prompt], sampling: Sampling, max_tokens: int, first_seed: int = 0) -> list[Job]:
        """One request for each prompt, each with its own seed."""
        return [
            Job(
                prompt.name,
                tuple(prompt_token_ids(self.tokenizer, prompt)),
                self.sampling_spec(sampling, seed),
                max_tokens,
            )
            for seed, prompt in enumerate(prompts, start=first_seed)
        ]

    def sampling_spec(self, sampling: Sampling, seed: int) -> SamplingSpec:
        return SamplingSpec(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            seed=seed,
            end_token_ids=self.runner.info.eos_token_ids,
        )

    def record(
        self,
        jobs: Sequence[Job],
        drafts: Drafts | None = None,
        batch_size: int = 1,
        batching: BatchingConfig | None = None,
        known: KnownPrompts | None = None,
    ) -> Recorded:
        """Decode, and keep the logits that decided each token. Without drafts: plain decoding.

        Args:
            batch_size: sequences of a round. At most one more joins in a step.
            batching: None = ragged.
            known: prompts that are already prefilled; those of this run are added. None = prefill all.
        Raises: ConfigError if the model does not support the batching method, or has too few rows.
        """
        batching, stats = batching or BatchingConfig(), TargetStats()
        num_rows = batching.num_rows(batch_size)
        if num_rows > self.runner.cache.num_rows:
            raise ConfigError(
                f"batching '{batching.method}' in batches of {batch_size} needs {num_rows} cache rows, and the target "
                f"was loaded with {self.runner.cache.num_rows}: give it num_rows={num_rows}"
            )
        runner = lay_out(self.runner, batching, stats.batch)
        recorder = DecisionRecorder(drafts or NoDrafts())
        engine = make_engine(
            known.prefilling_once(runner) if known else runner,
            self.tokenizer,
            recorder.drafts,
            stats,
            batching=batching,
            max_num_seqs=batch_size,
            judge=recorder.judge,
        )
        answers = decode(engine, jobs, batch_size=num_rows)
        logits = [recorder.take(RequestId(f"job-{index}")) for index in range(len(jobs))]
        return Recorded(answers, logits, stats.batch)

    def record_in_stages(self, target: CutTarget, jobs: Sequence[Job], drafts: Drafts, batch_size: int) -> Recorded:
        """As `record`, with this target cut into stages, which have the logits."""
        stats = TargetStats()
        with target.coordinator() as verifier:
            engine = make_engine_over(verifier, self.tokenizer, drafts, stats, max_num_seqs=batch_size)
            return Recorded(decode(engine, jobs, batch_size=batch_size), None, stats.batch)
