"""How long a model's steps take, on one sequence."""

from __future__ import annotations

import time
from statistics import median

from starspec.models.runner import ModelRunner, Segment

NUM_REPEATS = 7  # of each timed step; the median counts
PREFIX_LEN = 128  # cached tokens of the timed row, or fewer if the model holds fewer


def step_times_s(runner: ModelRunner, max_tokens: int) -> list[float]:
    """Seconds of a forward over 1 .. max_tokens tokens of one sequence, with the choice of its next tokens.

    The different lengths take turns, so that a slow moment of the machine does not hit one of them alone.

    Effects: leases and frees a row; commits nothing.
    """
    row = runner.cache.lease()
    try:
        prefix = [1] * min(PREFIX_LEN, runner.info.max_model_len - max_tokens - 1)
        runner.forward([Segment(row, prefix, num_logits=0)])
        runner.cache.append(row, len(prefix))
        times: list[list[float]] = [[] for _ in range(max_tokens)]
        for repeat in range(NUM_REPEATS + 1):
            for index in range(max_tokens):
                elapsed_s = _time_step(runner, row, index + 1)
                if repeat > 0:  # the first round warms up
                    times[index].append(elapsed_s)
        return [median(each) for each in times]
    finally:
        runner.cache.free(row)


def _time_step(runner: ModelRunner, row: int, num_tokens: int) -> float:
    started_s = time.perf_counter()
    logits = runner.forward([Segment(row, [1] * num_tokens, num_logits=num_tokens)]).logits
    logits.max(dim=-1).indices.tolist()
    return time.perf_counter() - started_s
