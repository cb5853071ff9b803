"""A target server, and how its sequences share forwards."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Final, Literal, get_args

from starspec.config.checks import check_name, check_ranges, check_words, one_of
from starspec.config.network import (
    LOOPBACK,
    AuditLogFile,
    Host,
    Insecure,
    Keys,
    Port,
    PrefillChunk,
    ShutdownTimeout,
    check_host,
    lease,
)
from starspec.config.option import LIMITS, SPECULATION, Option
from starspec.config.speculative import SpeculativeConfig
from starspec.config.stages import PipeConfig, check_drafts_of_stages
from starspec.errors import ConfigError

WINDOW_BATCHES: Final = 4  # batches in ExSpec's window, unless a window is given
MAX_PASSED_OVER: Final = 32  # rounds of ExSpec, unless given. Fewer break up groups that would find each other
MIN_GROUP: Final = 2  # sequences of one length that ExSpec runs without others, unless given
MIN_SERVING_LEASE_S: Final = 2.0  # of a gateway at a target: gateways ask twice a second, whatever the lease

BatchingMethod = Literal["ragged", "eqspec", "exspec", "rollback"]
BatchAdmission = Literal["continuous", "fixed"]
BATCHINGS: tuple[BatchingMethod, ...] = get_args(BatchingMethod)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingConfig:
    """How the sequences of a target share forwards.

    `ragged` keeps the target's tokens in any dtype. The others keep them in float32, and in bfloat16 except for
    near-ties.
    """

    method: BatchingMethod = "ragged"
    admission: BatchAdmission = "continuous"  # fixed: nobody joins a batch until all of it have ended
    prompts: Literal["beside", "first"] = "beside"  # first: rounds wait for prefill, so that batches are full
    window: int | None = None  # exspec: sequences with cache rows, among which it seeks equal lengths; None = 4 batches
    max_passed_over: int | None = MAX_PASSED_OVER  # exspec: rounds without a sequence before it goes first; None = any
    min_group: int = MIN_GROUP  # exspec: so many sequences of one length run without others, and are not realigned

    def __post_init__(self) -> None:
        one_of("batching", self.method, BATCHINGS)
        check_words(self)
        if self.window is not None and self.window < 1:
            raise ConfigError(f"window must be at least 1, got {self.window}")
        if self.max_passed_over is not None and self.max_passed_over < 1:
            raise ConfigError(f"max_passed_over must be at least 1, or None for no bound, got {self.max_passed_over}")
        if self.min_group < 2:
            raise ConfigError(f"min_group must be at least 2, got {self.min_group}: one sequence is not a group")
        own = (self.window, self.max_passed_over, self.min_group)
        if self.method != "exspec" and own != (None, MAX_PASSED_OVER, MIN_GROUP):
            raise ConfigError(f"window, max_passed_over and min_group are for exspec, and batching is {self.method}")
        if self.method == "exspec" and self.admission == "fixed":
            raise ConfigError("exspec refills its window whenever a sequence ends: it has no fixed batches")

    def num_rows(self, batch_size: int) -> int:
        """Sequences that hold a cache row at once. Raises: ConfigError if a window is smaller than the batch."""
        if self.method != "exspec":
            return batch_size
        if self.window is None:
            return WINDOW_BATCHES * batch_size
        if self.window < batch_size:
            raise ConfigError(
                f"exspec chooses batches of {batch_size} from its window: {self.window} is too few, "
                f"{WINDOW_BATCHES * batch_size} is the default"
            )
        return self.window


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetConfig:
    """A target server."""

    name: str = "target"  # shown in metrics, tables and traces; unique within a star
    host: Host = LOOPBACK
    port: Port = 7800
    keys: Keys = None
    insecure: Insecure = False
    audit_log: AuditLogFile = None
    max_num_seqs: Annotated[int, Option("Sequences decoded at once by a target.", LIMITS, least=1)] = 8
    batching: BatchingConfig = field(default_factory=BatchingConfig)
    pipe: PipeConfig = field(default_factory=PipeConfig)
    max_num_queued_reqs: Annotated[
        int, Option("Requests that wait at a target; more get HTTP 503.", LIMITS, least=1)
    ] = 256
    prefill_chunk: PrefillChunk = 256
    lease_s: Annotated[float, lease(MIN_SERVING_LEASE_S)] = 10.0  # a gateway silent for longer loses its requests
    shutdown_timeout_s: ShutdownTimeout = 10.0
    allow_relaxed: Annotated[
        bool,
        Option(
            "Let requests ask for relaxed verification, which is lossy: their tokens may differ from the target's own.",
            SPECULATION,
            ("--allow-relaxed",),
        ),
    ] = False
    relaxed_thresholds: Annotated[
        str | None,
        Option(
            "File of `starspec calibrate`: which tokens relaxed requests verify strictly.",
            SPECULATION,
            shown="the defaults of docs/relaxed.md",
            form="path",
        ),
    ] = None

    def __post_init__(self) -> None:
        check_ranges(self)
        check_host(self.host, "--host")
        check_name(self.name, "--name")
        if self.relaxed_thresholds is not None and not self.allow_relaxed:
            raise ConfigError("--relaxed-thresholds has no effect without --allow-relaxed: give both, or none")
        self.batching.num_rows(self.max_num_seqs)  # refuses a window that is too small
        if self.pipe.stages and self.batching.method != "ragged":
            raise ConfigError(
                f"--stages needs --batching ragged: '{self.batching.method}' moves keys and values, which stages keep"
            )

    def check_drafts(self, speculative: SpeculativeConfig | None) -> None:
        """Raises: ConfigError if drafts need hidden states of stages, or if relaxed requests are allowed and nothing
        drafts that knows probabilities.
        """
        if self.pipe.stages:
            check_drafts_of_stages(speculative)
        if not self.allow_relaxed:
            return
        if speculative is None:
            raise ConfigError("--allow-relaxed is about draft tokens, and nothing drafts here: leave it out")
        if not speculative.traits.knows_probabilities:
            raise ConfigError(
                f"--allow-relaxed compares the probabilities of draft and target, and method '{speculative.method}' "
                "has none: draft with a model or an EAGLE head, or leave it out"
            )

    @property
    def num_rows(self) -> int:
        """Cache rows that the target uses at once."""
        return self.batching.num_rows(self.max_num_seqs)
