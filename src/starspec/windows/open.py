"""From a model's config to what verifies its windows: the one way for servers, the offline API and measurements."""

from __future__ import annotations

from typing import NamedTuple

from starspec.config import BatchingConfig, ModelConfig
from starspec.models.loading.load import load_runner
from starspec.models.runner import LoadedRunner
from starspec.stats import BatchStats
from starspec.windows.batching import lay_out
from starspec.windows.local import LocalVerifier
from starspec.windows.verifier import Verifier


class Opened(NamedTuple):
    """A target that is ready to verify."""

    verifier: Verifier
    runner: LoadedRunner  # the model as it was loaded: one cache row for each sequence
    numerics_report: str  # whether a token's bits depend on what it is batched with


def open_runner(config: ModelConfig, batching: BatchingConfig, stats: BatchStats) -> Opened:
    """Load a target, with the cache layout of its batching method.

    Raises: as load_runner and lay_out.
    """
    loaded = load_runner(config)
    runner = lay_out(loaded, batching, stats)
    report = loaded.numerics_report if runner is loaded else "padded batches keep no bits"
    return Opened(LocalVerifier(runner, batching.method), loaded, report)
