"""From the logits of a forward to verdicts. Whoever has the logits of a target calls this, and nothing else decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from starspec.models.runner import ForwardOutput
from starspec.sampling.logprobs import LikelyTokens, TopLogprobs, top_logprobs
from starspec.speculation.signals import path_divergences
from starspec.speculation.verify import VerifyResult, verify_trees
from starspec.windows.batching import roll_back
from starspec.windows.window import Verdict, Window

Judging = Callable[[Sequence[Window], ForwardOutput, bool], list[Verdict]]
"""`judge`, or what does the same."""


def judge(windows: Sequence[Window], output: ForwardOutput, commits_evenly: bool) -> list[Verdict]:
    """Verify the trees of one forward.

    Args:
        windows: of the forward, all of them, in order. Each has a judge.
        output: with one row for the root and for each node of every tree.
        commits_evenly: cut all verdicts to the length of the shortest one.
    """
    judges = [each.judge for each in windows if each.judge is not None]
    results = verify_trees(
        [each.tree for each in judges],
        output.logits,
        [each.law.sampling for each in judges],
        [each.prefix_len for each in judges],
        [each.counts for each in judges],
        [each.law.relaxation for each in judges],
        [each.constraint for each in judges],
    )
    if commits_evenly:
        results = roll_back(results)
    verdicts, first_row = [], 0
    for each, result in zip(judges, results, strict=True):
        rows = slice(first_row, first_row + each.tree.num_draft_tokens + 1)
        first_row = rows.stop
        logprobs, divergences = list[TopLogprobs](), tuple[float, ...]()
        if each.law.num_logprobs is not None:
            logprobs = _logprobs(result, output.logits[rows], each.law.num_logprobs)
        if each.tree.tops:
            divergences = path_divergences(each.tree, result, output.logits[rows])
        features = None if output.features is None else output.features[rows][list(result.rows)]
        node_tops = _node_tops(output.logits[rows], each.law.num_node_tops)
        verdicts.append(Verdict(result, logprobs, divergences, features, node_tops))
    return verdicts


def _node_tops(logits: Tensor, num_top: int | None) -> tuple[LikelyTokens, ...]:
    """The likeliest tokens after the root and after each node."""
    return () if num_top is None else tuple(top_logprobs(row, 0, num_top).top for row in logits)


def _logprobs(result: VerifyResult, logits: Tensor, num_top: int) -> list[TopLogprobs]:
    """The target's log-probabilities of the result's tokens."""
    pairs = zip(result.rows, result.token_ids, strict=True)
    return [top_logprobs(logits[row], token_id, num_top) for row, token_id in pairs]
