"""From the logits of a forward to verdicts. Whoever has the logits of a target calls this, and nothing else decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from starspec.models.runner import ForwardOutput
from starspec.sampling.logprobs import TopLogprobs, top_logprobs
from starspec.speculation.signals import path_divergences
from starspec.speculation.verify import VerifyResult, verify_trees
from starspec.windows.batching import roll_back
from starspec.windows.window import Law, Verdict, Window

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
    )
    if commits_evenly:
        results = roll_back(results)
    verdicts, first_row = [], 0
    for each, result in zip(judges, results, strict=True):
        rows = slice(first_row, first_row + each.tree.num_draft_tokens + 1)
        first_row, logits = rows.stop, output.logits[rows]
        verdicts.append(
            Verdict(
                result,
                _logprobs(each.law, result, logits),
                path_divergences(each.tree, result, logits),
                None if output.features is None else output.features[rows][list(result.rows)],
            )
        )
    return verdicts


def _logprobs(law: Law, result: VerifyResult, logits: Tensor) -> list[TopLogprobs]:
    """The target's log-probabilities of the result's tokens, if the request asks for them."""
    if law.num_logprobs is None:
        return []
    pairs = zip(result.rows, result.token_ids, strict=True)
    return [top_logprobs(logits[row], token_id, law.num_logprobs) for row, token_id in pairs]
