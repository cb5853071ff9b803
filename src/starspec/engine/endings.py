"""Requests that end otherwise than by their whole answer: aborted, failed by themselves, or lost with their stages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import structlog

from starspec.engine.drafts import Drafts
from starspec.engine.request_table import RequestTable
from starspec.engine.sequence import Finish, RoundOutput, TargetSequence
from starspec.engine.step_outputs import StepOutputs
from starspec.log_limit import LogLimit
from starspec.stats import TargetStats
from starspec.windows.verifier import Lost

INTERNAL_ERROR: Final = "internal error"  # what a client is told; the log says more

log = structlog.get_logger()


class Endings:
    """Ends requests. Each gets its last output with those of the step, except one that its client has aborted.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        requests: RequestTable,
        drafts: Drafts,
        stats: TargetStats,
        outputs: StepOutputs,
        clock: Callable[[], float],
    ) -> None:
        self._requests = requests
        self._drafts = drafts
        self._stats = stats
        self._outputs = outputs
        self._log_limit = LogLimit(clock)  # a client can cause every line here at will

    def abort(self, sequence: TargetSequence) -> None:
        """Its client is gone, or another request needs its place. It has no last output."""
        self._stats.num_aborted += 1
        self._leave(sequence)

    def lose(self, lost: Lost) -> None:
        """All rows are empty now: begin again behind the tokens of each sequence, or end all of them."""
        for sequence in self._requests.all:
            if lost.can_go_on and sequence.can_start_again:
                sequence.start_again()
                self._drafts.retract(sequence)
            else:
                self._stats.num_aborted += 1
                self._end(sequence, Finish("abort", lost.reason))

    def fail(self, failures: Mapping[TargetSequence, BaseException]) -> None:
        """End requests that have failed by themselves. The others go on."""
        for sequence, error in failures.items():
            if sequence.row is not None:
                self._log_limit.log(log.error, "a request failed and ends with an error", exc_info=error)
                self._end(sequence, Finish("error", INTERNAL_ERROR))

    def fail_step(self, at_work: Iterable[TargetSequence], reason: str) -> None:
        """After an exception in a step: end the sequences at work that hold a row; if none does, all that hold one.

        What is in flight of them lands later and changes nothing.
        """
        failed = [each for each in at_work if each.row is not None]
        for sequence in failed or self._requests.with_rows:
            self._end(sequence, Finish("error", reason))

    def _end(self, sequence: TargetSequence, finish: Finish) -> None:
        self._outputs.add(sequence.key, sequence.output(RoundOutput(finish=finish)))
        self._leave(sequence)

    def _leave(self, sequence: TargetSequence) -> None:
        self._drafts.close(sequence)
        self._requests.release(sequence)
