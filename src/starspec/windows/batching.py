"""The parts of each batching method: a layout of keys and values, a scheduler, a rule for verification results.

             layout                    rounds over                        commits
    ragged   rows, slot = position     all running sequences              each what it accepted
    eqspec   one padded rectangle      all running sequences, realigned   each what it accepted
    exspec   padded rectangles         sequences of one length, or realigned    each what it accepted
    rollback one padded rectangle      all running sequences              all as many as the one that accepted fewest

All methods share drafts, verification, ends of answers and statistics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from starspec.config import BatchingConfig, BatchingMethod, TargetConfig
from starspec.errors import ConfigError
from starspec.models.packed import PackedRunner
from starspec.models.padded import PaddedRunner
from starspec.models.runner import BatchRunner
from starspec.policy.same_length import SameLengthPool
from starspec.policy.target_batch import Continuous, FixedBatches, PromptsFirst, Scheduler
from starspec.speculation.verify import VerifyResult
from starspec.stats import BatchStats


@dataclass(frozen=True, slots=True)
class Parts:
    """One line of the table above."""

    is_padded: bool  # padded rectangles, not one row for each sequence
    is_grouped: bool = False  # rounds over sequences of equal length
    commits_evenly: bool = False  # all sequences of a round commit as many tokens as the one that accepted fewest


PARTS: Final[Mapping[BatchingMethod, Parts]] = {
    "ragged": Parts(is_padded=False),
    "eqspec": Parts(is_padded=True),
    "exspec": Parts(is_padded=True, is_grouped=True),
    "rollback": Parts(is_padded=True, commits_evenly=True),
}


def lay_out(runner: BatchRunner, batching: BatchingConfig, stats: BatchStats) -> BatchRunner:
    """The runner for a batching method: the given one, or its layers over padded rectangles.

    Raises: ConfigError if the method pads and the runner is not a PackedRunner.
    """
    if not PARTS[batching.method].is_padded:
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
    if PARTS[batching.method].is_grouped:
        scheduler = SameLengthPool(config.max_num_seqs, batching.max_passed_over, batching.min_group)
    return PromptsFirst(scheduler) if batching.prompts == "first" else scheduler


def roll_back(results: Sequence[VerifyResult]) -> list[VerifyResult]:
    """Cut every result to the length of the shortest, so that a batch stays aligned.

    The tokens that are cut were right, and they are drafted and verified again. Section 2 of "Batch Speculative
    Decoding Done Right" describes this waste of the rollback approach.
    """
    num_tokens = min(len(each.token_ids) for each in results)
    return [each.cut(num_tokens) for each in results]
