"""From the name of a batching method to its parts: a layout of keys and values, a scheduler, a rule for verdicts.

             layout                    rounds over                        commits
    ragged   rows, slot = position     all running sequences              each what it accepted
    eqspec   one padded rectangle      all running sequences, realigned   each what it accepted
    exspec   padded rectangles         sequences of one length, or realigned    each what it accepted
    rollback one padded rectangle      all running sequences              all as many as the one that accepted fewest

Everything else is shared: drafts, verification, ends of answers, statistics.
"""

from __future__ import annotations

from collections.abc import Sequence

from starspec.config import BatchingConfig, TargetConfig
from starspec.errors import ConfigError
from starspec.models.packed import PackedRunner
from starspec.models.padded import PaddedRunner
from starspec.models.runner import BatchRunner
from starspec.speculation.stats import BatchStats
from starspec.speculation.verify import TreeVerdict
from starspec.target.pool import SameLengthPool
from starspec.target.scheduler import Continuous, FixedBatches, PromptsFirst, Scheduler


def lay_out(runner: BatchRunner, batching: BatchingConfig, stats: BatchStats) -> BatchRunner:
    """The runner as a batching method needs it: itself, or its layers over padded rectangles.

    Raises: ConfigError if the method is not ragged, and the runner none of our own layers' in this process.
    """
    if batching.method == "ragged":
        return runner
    if not isinstance(runner, PackedRunner):
        raise ConfigError(
            f"batching '{batching.method}' needs a model with weights in this process, not {runner.info.name}"
        )
    return PaddedRunner(runner, stats)


def make_scheduler(config: TargetConfig) -> Scheduler:
    """The scheduler of a target's batching method."""
    batching = config.batching
    scheduler: Scheduler = FixedBatches() if batching.admission == "fixed" else Continuous()
    if batching.method == "exspec":
        scheduler = SameLengthPool(config.max_num_seqs, batching.max_passed_over)
    return PromptsFirst(scheduler) if batching.prompts == "first" else scheduler


def commits_evenly(batching: BatchingConfig) -> bool:
    """Whether all of a round commit as many tokens as the one that accepted fewest."""
    return batching.method == "rollback"


def roll_back(verdicts: Sequence[TreeVerdict]) -> list[TreeVerdict]:
    """Cut every verdict to the tokens of the shortest, so that a batch stays aligned.

    What is cut was right, and is drafted and verified again: the waste of section 2's rollback approach.
    """
    num_tokens = min(len(each.token_ids) for each in verdicts)
    return [TreeVerdict(each.accepted_nodes[: num_tokens - 1], each.token_ids[:num_tokens]) for each in verdicts]
