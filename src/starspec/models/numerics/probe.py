"""The same bits with and without speculation: a probe at load finds out how far this machine's kernels allow it.

A matrix product may round differently for different numbers of rows, because the shape decides which kernel runs and
how it splits sums. Then a token's logits depend on what it is computed with, and switching speculation or batching on
changes greedy output. The probe has two parts. For linears it finds the range of row counts within which rounding does
not change (`row_counts.py`); the runner pads smaller forwards and splits larger ones (`models/batch.py`). For attention
it finds the fastest mode in which every token gets the bits that it has alone (`ragged_attention.py`,
`step_attention.py`; the modes are in `models/attention/plan.py`).

Nothing is promised that the probe did not see. It ends with the model itself: one token alone, in a chain, in a batch
and in a tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from starspec.cache.ragged import RaggedCache
from starspec.models.attention.plan import AttentionMode
from starspec.models.batch import RowRange
from starspec.models.loading.device import is_accelerator
from starspec.models.loading.progress import report
from starspec.models.numerics.ragged_attention import attention_is_invariant
from starspec.models.numerics.row_counts import invariant_rows, quickest_rows
from starspec.models.numerics.stand_in import forward_part
from starspec.models.packed import PackedRunner
from starspec.models.runner import Segment

PROMPT_LEN: Final = 60  # of the prompt whose continuation the model is tried with
STAGE: Final = "probing the kernels"
NUM_PARTS: Final = 3  # linears, attention with the model, and how long forwards take
CHAIN_LEN: Final = 5  # long enough to cross a key block
ABOUT_MODE: Final = {
    AttentionMode.TOGETHER: "; sequences of about one length attend together",
    AttentionMode.IN_STEPS: "; forwards have fixed shapes for it, and are CUDA graphs where they can be recorded",
    AttentionMode.BY_TOKEN: "; tokens attend one by one for it",
}


def settle_numerics(runner: PackedRunner) -> None:
    """Make a runner's bits independent of what is batched, as far as this machine allows it.

    Effects: the runner's `rows`, `attention_mode` and `numerics_report`; leases and frees rows of its cache.
    """
    cache = runner.cache
    free = runner.rows
    report(STAGE, 0, NUM_PARTS)
    rows = invariant_rows(runner.step_linears, cache.dtype, cache.device)
    culprit = "linears"
    report(STAGE, 1, NUM_PARTS)
    if rows is not None:
        runner.rows = rows
        culprit = _settle_attention(runner)
    report(STAGE, 2, NUM_PARTS)
    if not runner.is_invariant:
        runner.rows = free  # padding and splitting would cost time for nothing
    elif cache.device.type == "cpu":
        runner.rows = quickest_rows(runner.step_linears, runner.rows, cache.dtype)
    report(STAGE, NUM_PARTS, NUM_PARTS)
    runner.numerics_report = (
        f"{_kernels(cache)}: {_finding(rows, runner.attention_mode, culprit)}{_width(runner, rows)}"
    )


def _settle_attention(runner: PackedRunner) -> str:
    """Set the fastest attention mode that preserves bits.

    Returns: what prevents it, if the mode is still `FAST` afterwards. Effects: the runner's `attention_mode`.
    """
    culprit = "attention"
    for mode in _modes(runner):
        if attention_is_invariant(runner.cache, runner.num_heads, mode, runner.score_rules):
            runner.attention_mode = mode
            if model_is_invariant(runner):
                break
            runner.attention_mode = AttentionMode.FAST
            culprit = "layers"
    return culprit


def _modes(runner: PackedRunner) -> tuple[AttentionMode, ...]:
    """The modes to try, fastest first."""
    if not is_accelerator(runner.cache.device):
        return (AttentionMode.TOGETHER, AttentionMode.BY_RUN, AttentionMode.BY_TOKEN)
    # TOGETHER is not tried: on accelerators it joins any number of sequences, more than the probe covers
    singly = (AttentionMode.BY_RUN, AttentionMode.BY_TOKEN)
    return singly if runner.graphs is None else (AttentionMode.IN_STEPS, *singly)


def _kernels(cache: RaggedCache) -> str:
    name = f"{str(cache.dtype).removeprefix('torch.')} on {cache.device.type}"
    num_threads = torch.get_num_threads()
    return f"{name}, {num_threads} thread{'s' * (num_threads > 1)}" if cache.device.type == "cpu" else name


def _finding(rows: RowRange | None, mode: AttentionMode, culprit: str) -> str:
    if rows is not None and mode is not AttentionMode.FAST:
        return (
            f"in forwards of {rows.lowest} to {rows.highest} rows every row gets the same bits, "
            "so a token's logits do not depend on what it is batched with" + ABOUT_MODE.get(mode, "")
        )
    return (
        f"the {culprit} round differently for different row counts, "
        "so a token's last bits may depend on what it is batched with"
    )


def _width(runner: PackedRunner, rows: RowRange | None) -> str:
    width = runner.rows.lowest
    is_wider = rows is not None and width > rows.lowest
    return f"; smaller forwards are padded to {width} rows, which is quicker" if is_wider else ""


def model_is_invariant(runner: PackedRunner) -> bool:
    """Whether the tokens of a chain get the bits of one-by-one decoding: together, in a batch, and hidden in a tree.

    The chain crosses a key block if rows are long enough. Takes about fifteen decoding steps and a prefill of 60
    tokens.
    """
    cache = runner.cache
    rows = sorted(cache.lease() for _ in range(min(3, cache.num_free_rows)))
    try:
        vocab_size = runner.info.vocab_size
        prefix_len = min(PROMPT_LEN, cache.max_len - 2 * CHAIN_LEN)
        prompt = [token * 7919 % vocab_size for token in range(prefix_len + CHAIN_LEN)]
        prefix, chain = prompt[:-CHAIN_LEN], prompt[-CHAIN_LEN:]
        row, *others = rows
        forward_part(runner, [Segment(row, prefix, 0)])
        cache.append(row, len(prefix))
        verified = forward_part(runner, [Segment(row, chain, CHAIN_LEN)])
        beside = [Segment(other, chain[: 1 + index], 1) for index, other in enumerate(others)]
        batched = forward_part(runner, [*beside, Segment(row, chain, CHAIN_LEN)])[len(beside) :]
        pair = rows[:2]  # of different lengths, possibly in one call
        alike = forward_part(runner, [Segment(each, chain, CHAIN_LEN) for each in pair])
        # each token of the chain has a sibling before it, which has no children
        siblings = [token for node in chain for token in ((node + 1) % vocab_size, node)]
        parents = [2 * (node // 2) - 1 for node in range(2 * CHAIN_LEN)]
        hidden = forward_part(runner, [Segment(row, siblings, 2 * CHAIN_LEN, parents)])[1::2]
        expected = [_one_by_one(runner, each, chain) for each in pair]
        return torch.equal(alike, torch.cat(expected)) and all(
            torch.equal(each, expected[0]) for each in (verified, batched, hidden)
        )
    finally:
        for row in rows:
            cache.free(row)


def _one_by_one(runner: PackedRunner, row: int, chain: Sequence[int]) -> Tensor:
    """What each token gives, decoded one by one behind what the row holds. Effects: the row's slots and length."""
    singly = []
    for token in chain:
        singly.append(forward_part(runner, [Segment(row, [token], 1)]))
        runner.cache.append(row, 1)
    return torch.cat(singly)
