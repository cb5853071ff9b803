"""From the logits of a forward to verdicts. Whoever has the logits of a target calls this, and nothing else decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from starspec.errors import outcome
from starspec.models.runner import ForwardOutput
from starspec.sampling.logprobs import LikelyTokens, TopLogprobs, top_logprobs
from starspec.speculation.signals import path_divergences
from starspec.speculation.verify import VerifyResult, verify_trees
from starspec.windows.batching import roll_back
from starspec.windows.window import Judge, Verdict, Window

Judging = Callable[[Sequence[Window], ForwardOutput, bool], list[Verdict]]
"""`judge`, or what does the same."""


def judge(windows: Sequence[Window], output: ForwardOutput, commits_evenly: bool) -> list[Verdict]:
    """Verify the trees of one forward. If the law of a window fails, only its own verdict is an error.

    Args:
        windows: of the forward, all of them, in order. Each has a judge.
        output: with one row for the root and for each node of every tree.
        commits_evenly: cut all verdicts to the length of the shortest one.
    """
    judges = [each.judge for each in windows if each.judge is not None]
    sizes = [each.tree.num_draft_tokens + 1 for each in judges]
    rows = torch.split(output.logits, sizes)
    results = _results(judges, output.logits, rows)
    if commits_evenly:
        sound = [each for each in results if isinstance(each, VerifyResult)]
        even = iter(roll_back(sound) if sound else ())
        results = [next(even) if isinstance(each, VerifyResult) else each for each in results]
    features = [None] * len(judges) if output.features is None else torch.split(output.features, sizes)
    verdicts = [outcome(partial(_verdict, *each)) for each in zip(judges, results, rows, features, strict=True)]
    return [_failed(each) if isinstance(each, BaseException) else each for each in verdicts]


def _results(judges: Sequence[Judge], logits: Tensor, rows: Sequence[Tensor]) -> list[VerifyResult | BaseException]:
    """What follows each window. If that fails, all are asked alone, so that only those fail whose own law does."""
    together = outcome(partial(_verify, judges, logits))
    if not isinstance(together, BaseException):
        return [*together]
    return [outcome(partial(_alone, judge, own_rows)) for judge, own_rows in zip(judges, rows, strict=True)]


def _alone(judge: Judge, rows: Tensor) -> VerifyResult:
    [result] = _verify([judge], rows)
    return result


def _verify(judges: Sequence[Judge], logits: Tensor) -> list[VerifyResult]:
    return verify_trees(
        [each.tree for each in judges],
        logits,
        [each.law.sampling for each in judges],
        [each.prefix_len for each in judges],
        [each.counts for each in judges],
        [each.law.relaxation for each in judges],
        [each.constraint for each in judges],
    )


def _failed(error: BaseException) -> Verdict:
    return Verdict(VerifyResult((), ()), [], (), None, error=error)


def _verdict(judge: Judge, result: VerifyResult | BaseException, logits: Tensor, features: Tensor | None) -> Verdict:
    """Args: logits, features: of the root and of each node."""
    if isinstance(result, BaseException):
        return _failed(result)
    logprobs, divergences = list[TopLogprobs](), tuple[float, ...]()
    if judge.law.num_logprobs is not None:
        logprobs = _logprobs(result, logits, judge.law.num_logprobs)
    if judge.tree.tops:
        divergences = path_divergences(judge.tree, result, logits)
    kept = None if features is None else features[list(result.rows)]
    return Verdict(result, logprobs, divergences, kept, _node_tops(logits, judge.law.num_node_tops))


def _node_tops(logits: Tensor, num_top: int | None) -> tuple[LikelyTokens, ...]:
    """The likeliest tokens after the root and after each node."""
    return () if num_top is None else tuple(top_logprobs(row, 0, num_top).top for row in logits)


def _logprobs(result: VerifyResult, logits: Tensor, num_top: int) -> list[TopLogprobs]:
    """The target's log-probabilities of the result's tokens."""
    pairs = zip(result.rows, result.token_ids, strict=True)
    return [top_logprobs(logits[row], token_id, num_top) for row, token_id in pairs]
