"""Why an answer differs: the target's own logits at the first token that does, computed anew."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from starspec.harness.compare import Divergence, divergence, first_difference
from starspec.harness.decode import PREFILL_CHUNK, Answer, Job
from starspec.models.runner import BatchRunner, Segment


def divergences(
    runner: BatchRunner, jobs: Sequence[Job], expected: Sequence[Answer], found: Sequence[Answer]
) -> list[Divergence]:
    """One for each answer that is not its reference.

    Args:
        runner: of the target. One that reads chunks once looks at a place anew in a forward of one token.
    Effects: a forward of prompt and answer for each; leases and frees a row.
    """
    differing = []
    for job, reference, answer in zip(jobs, expected, found, strict=True):
        at = first_difference(reference.token_ids, answer.token_ids)
        if at is not None:
            logits = None
            if at < len(reference.token_ids):
                logits = next_logits(runner, [*job.prompt_token_ids, *reference.token_ids[:at]])
            differing.append(divergence(job, reference, answer, at, logits))
    return differing


def next_logits(runner: BatchRunner, token_ids: Sequence[int]) -> Tensor:
    """The target's logits [V] after some tokens, read alone. Effects: leases and frees a row."""
    row = runner.cache.lease()
    try:
        for start in range(0, len(token_ids) - 1, PREFILL_CHUNK):
            chunk = token_ids[start : min(start + PREFILL_CHUNK, len(token_ids) - 1)]
            runner.forward([Segment(row, chunk, 0)])
            runner.cache.append(row, len(chunk))
        return runner.forward([Segment(row, token_ids[-1:], 1)]).logits[0]
    finally:
        runner.cache.free(row)
