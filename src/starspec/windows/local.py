"""A target in this process: a launch computes, so it has landed when it returns."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from starspec.config import BatchingMethod
from starspec.models.runner import BatchRunner
from starspec.sampling.logprobs import scores
from starspec.windows.batching import PARTS
from starspec.windows.judging import Judging, judge
from starspec.windows.verifier import Landed, Ticket
from starspec.windows.window import Window


class LocalVerifier:
    """Implements Verifier over a runner of this process.

    Args:
        runner: with the cache layout of the batching method.
        judge: what turns logits into verdicts; a measurement may look at both.
    """

    max_tokens: int | None = None
    depth = 1
    refusal: str | None = None
    pipe = None

    def __init__(self, runner: BatchRunner, method: BatchingMethod = "ragged", judge: Judging = judge) -> None:
        self.runner = runner
        self.info = runner.info
        self.cache = runner.cache
        self._commits_evenly = PARTS[method].commits_evenly
        self._judge = judge
        self._tickets = itertools.count()
        self._landed: list[Landed] = []

    def num_windows(self, num_running: int, num_wanted: int) -> int:  # noqa: ARG002 (of the interface)
        return 1

    def launch(self, windows: Sequence[Window], feature_layers: Sequence[int] = ()) -> Ticket:
        output = self.runner.forward([each.segment for each in windows], feature_layers)
        ticket = Ticket(next(self._tickets))
        if windows[0].judge is None:
            scoring = windows[0].scoring
            found = scores(output.logits, *scoring) if scoring is not None else ()
            landed = Landed(ticket, [], output.features, found)
        else:
            landed = Landed(ticket, self._judge(windows, output, self._commits_evenly), None)
        self._landed.append(landed)
        return ticket

    def poll(self, timeout_s: float) -> list[Landed]:  # noqa: ARG002 (of the interface)
        landed, self._landed = self._landed, []
        return landed

    def close(self) -> None:
        pass
