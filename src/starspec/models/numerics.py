"""The same bits with and without speculation: find out at load for which row counts the machine's kernels allow it.

A matrix product may round differently for different numbers of rows: kernels are chosen, and sums are cut, by shape.
Then a token's logits depend on what it is computed with, and greedy output changes when speculation or batching is
switched on. The probe looks for the range of row counts within which that does not happen; the runner pads smaller
forwards and splits larger ones (`models/batch.py`). In attention (`models/attention_plan.py`) the probe looks whether
tokens, and sequences, may share a call with the bits that a token has alone.

Nothing is promised that the probe did not see: it ends with the model itself, one token alone, in a chain, in a batch.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from functools import cache
from typing import Final

import torch
from torch import Tensor

from starspec.cache.ragged import KEY_BLOCK, RaggedCache
from starspec.models.attention import RaggedAttention
from starspec.models.attention_call import MIN_QUERY_ROWS
from starspec.models.attention_plan import MAX_QUERY_ROWS, MAX_TOGETHER, Reading, joined, plan_calls
from starspec.models.batch import RowRange
from starspec.models.device import is_accelerator
from starspec.models.linear import StepLinear
from starspec.models.packed import PackedRunner
from starspec.models.row_width import quickest_rows
from starspec.models.runner import Segment
from starspec.models.step_numerics import steps_are_invariant

MIN_ROWS: Final = 2  # one row alone is a matrix-vector product: another kernel, whose rounding shows only rarely
MAX_ROWS: Final = 64  # no forward of several sequences is wider
ANCHOR_ROWS: Final = 8  # the range must hold this row count: padding every decode further would cost more than it gives
SURE_ROWS: Final = 2 * ANCHOR_ROWS  # tried however long it takes
# then wider forwards are tried for so long, by this thread's own time, so that a machine busy with other things is not
# taken for a slow one: where that is too short, splitting them costs little. Where memory is shared, that time is
# longer in some hours; what is found in one of them is kept.
PROBE_S: Final = 4.0
NUM_OUTPUTS: Final = 50_000  # compared for each row count: two kernels often agree in 99.96% of rounded outputs

# committed slots: inside a key block, across one, across a longer one; between them sums of other kernels
PREFIX_LENS: Final = (3, 60, 300, 440, 505, 1500)
CHAIN_LEN: Final = 5
READ_AS: Final = {
    Reading.TOGETHER: "; sequences of about one length attend together",
    Reading.IN_STEPS: "; forwards have fixed shapes for it, and are CUDA graphs where they can be recorded",
    Reading.BY_TOKEN: "; tokens attend one by one for it",
}
FEW_TOKENS: Final = MAX_QUERY_ROWS // MIN_QUERY_ROWS  # by run, no more share a call
NUMS_TOGETHER: Final = (2, 3, MAX_TOGETHER)  # sequences


def settle_numerics(runner: PackedRunner) -> None:
    """Make a runner's bits independent of what is batched, as far as this machine allows.

    Effects: the runner's `rows`, `reading` and `numerics_report`; leases and frees rows of its cache.
    """
    cache = runner.cache
    free = runner.rows
    rows = invariant_rows(runner.step_linears, cache.dtype, cache.device)
    culprit = "linears"
    if rows is not None:
        runner.rows = rows
        culprit = _settle_attention(runner)
    if not runner.is_invariant:
        runner.rows = free  # padding and splitting would cost and promise nothing
    elif cache.device.type == "cpu":
        runner.rows = quickest_rows(runner.step_linears, runner.rows, cache.dtype)
    runner.numerics_report = f"{_kernels(cache)}: {_finding(rows, runner.reading, culprit)}{_width(runner, rows)}"


def _settle_attention(runner: PackedRunner) -> str:
    """Let the runner read its cache in the fastest way that keeps bits.

    Returns: what keeps them from being kept, if it still is `FAST` after. Effects: its `reading`.
    """
    culprit = "attention"
    for reading in _readings(runner):
        if attention_is_invariant(runner.cache, runner.num_heads, reading):
            runner.reading = reading
            if model_is_invariant(runner):
                break
            runner.reading = Reading.FAST
            culprit = "layers"
    return culprit


def _readings(runner: PackedRunner) -> tuple[Reading, ...]:
    """Those to try, the quickest first."""
    if not is_accelerator(runner.cache.device):
        return (Reading.TOGETHER, Reading.BY_RUN, Reading.BY_TOKEN)
    # there any number of sequences are one call where they are read together, and that is not tried
    singly = (Reading.BY_RUN, Reading.BY_TOKEN)
    return singly if runner.graphs is None else (Reading.IN_STEPS, *singly)


def _kernels(cache: RaggedCache) -> str:
    name = f"{str(cache.dtype).removeprefix('torch.')} on {cache.device.type}"
    num_threads = torch.get_num_threads()
    return f"{name}, {num_threads} thread{'s' * (num_threads > 1)}" if cache.device.type == "cpu" else name


def _finding(rows: RowRange | None, reading: Reading, culprit: str) -> str:
    if rows is not None and reading is not Reading.FAST:
        return (
            f"in forwards of {rows.lowest} to {rows.highest} rows every row gets the same bits, "
            "so a token's logits do not depend on what it is batched with" + READ_AS.get(reading, "")
        )
    return (
        f"the {culprit} round differently for different row counts, "
        "so a token's last bits may depend on what it is batched with"
    )


def _width(runner: PackedRunner, rows: RowRange | None) -> str:
    width = runner.rows.lowest
    is_wider = rows is not None and width > rows.lowest
    return f"; smaller forwards are padded to {width} rows, which is quicker" if is_wider else ""


@torch.inference_mode()
def invariant_rows(
    linears: Sequence[StepLinear], dtype: torch.dtype, device: torch.device, probe_s: float = PROBE_S
) -> RowRange | None:
    """The widest range of row counts around `ANCHOR_ROWS` for which all linears give each row the same bits.

    Only one linear of each shape is tried, the cheapest first. A processor that needs long for this is bound by
    arithmetic: two forwards of half the rows cost it about what one does.

    Returns: None if the range holds no second row count.
    """
    lowest, highest = MIN_ROWS, MAX_ROWS
    deadline_s = time.thread_time() + probe_s
    of_each_shape = {(linear.in_features, linear.num_bytes): linear for linear in linears}
    for linear in sorted(of_each_shape.values(), key=lambda linear: linear.num_bytes):
        # cubed: like real activations a few entries dominate, so that another order of summation shows
        x = torch.randn(MAX_ROWS, linear.in_features, generator=torch.Generator().manual_seed(0)).pow(3)
        lowest, highest = _narrow(linear, x.to(device, dtype), lowest, highest, deadline_s)
    return RowRange(lowest, highest) if lowest < highest else None


def _narrow(linear: StepLinear, x: Tensor, lowest: int, highest: int, deadline_s: float) -> tuple[int, int]:
    """Narrow lowest..highest to the row counts next to the anchor that are seen to give the anchor's bits in time."""
    # backwards, so that each row stands in another place than below
    blocks = x.view(-1, ANCHOR_ROWS, x.shape[-1]).flip(1)
    expected = torch.cat([linear.call(block).flip(0) for block in blocks])

    def agrees(num_rows: int) -> bool:
        num_calls = min(-(-NUM_OUTPUTS // (num_rows * expected.shape[1])), MAX_ROWS // num_rows)
        parts = [slice(call * num_rows, (call + 1) * num_rows) for call in range(num_calls)]
        return all(torch.equal(linear.call(x[part]), expected[part]) for part in parts)

    for num_rows in range(ANCHOR_ROWS, lowest - 1, -1):
        if not agrees(num_rows):
            lowest = num_rows + 1
            break
    for num_rows in range(ANCHOR_ROWS + 1, highest + 1):
        is_late = num_rows > SURE_ROWS and time.thread_time() > deadline_s
        if is_late or not agrees(num_rows):
            highest = num_rows - 1
            break
    return lowest, highest


@torch.inference_mode()
def attention_is_invariant(like: RaggedCache, num_heads: int, reading: Reading) -> bool:
    """Whether each token of a chain attends with the bits that it has as a batch entry alone.

    In steps: `steps_are_invariant`. Else it tries every number of tokens that share a call, for various numbers of
    cached slots; if sequences are to be read together, various numbers of them, and slots in vain up to any block.
    """
    if reading is Reading.IN_STEPS:
        return steps_are_invariant(like, num_heads)
    num_kv_heads, _, head_dim = like.keys[0].shape[1:]
    num_slots = max(PREFIX_LENS) + MAX_ROWS
    kept = RaggedCache(1, max(NUMS_TOGETHER), num_slots, num_kv_heads, head_dim, dtype=like.dtype, device=like.device)
    generator = torch.Generator().manual_seed(0)
    for stored in (kept.keys[0], kept.values[0]):  # the same in each row, so a length says what is expected
        stored.copy_(torch.randn(stored.shape[1:], generator=generator).expand_as(stored))
    query = torch.randn(MAX_ROWS, num_heads, head_dim, generator=generator).to(like.device, like.dtype)

    @cache
    def alone(prefix_len: int, token: int) -> Tensor:
        return _attend_chains(kept, (prefix_len + token,), query[token : token + 1], Reading.BY_TOKEN)

    def is_as_alone(prefix_lens: Sequence[int], num_tokens: int) -> bool:
        found = _attend_chains(kept, prefix_lens, query[:num_tokens], reading)
        return torch.equal(
            found, torch.cat([alone(each, token) for each in prefix_lens for token in range(num_tokens)])
        )

    nums_for_each = (*range(1, FEW_TOKENS + 1), MAX_ROWS // 2)
    chains = [((prefix_len,), num_tokens) for prefix_len in PREFIX_LENS for num_tokens in nums_for_each]
    in_turns = zip(itertools.cycle(PREFIX_LENS), range(1, MAX_ROWS + 1))  # every number, each for one length
    chains += [((prefix_len,), num_tokens) for prefix_len, num_tokens in in_turns]
    return all(is_as_alone(*each) for each in (chains + _groups() if reading is Reading.TOGETHER else chains))


def _groups() -> list[tuple[tuple[int, ...], int]]:
    """Prefix lengths of sequences that are read together, and how many tokens each has."""
    lengths = itertools.cycle(PREFIX_LENS)
    mixed = [
        (tuple(itertools.islice(lengths, num)), num_tokens)
        for num in NUMS_TOGETHER
        for num_tokens in range(1, MAX_ROWS // num + 1, 1 + MAX_ROWS // num // 8)
    ]
    longer = [
        ((prefix_len, longest), CHAIN_LEN)
        for prefix_len in PREFIX_LENS
        for longest in range(prefix_len, max(PREFIX_LENS), KEY_BLOCK)
    ]
    return mixed + longer


def _attend_chains(cache: RaggedCache, prefix_lens: Sequence[int], query: Tensor, reading: Reading) -> Tensor:
    """What the same chain [T, Hq, D] attends to in each of the first N rows, [N T, Hq D]."""
    num_tokens, num_heads, head_dim = query.shape
    calls = []
    for row, prefix_len in enumerate(prefix_lens):
        calls += plan_calls(
            row,
            row * num_tokens,
            prefix_len,
            parents=None,
            new_tokens=range(num_tokens),
            is_prompt=False,
            reading=reading,
            group=num_heads // cache.keys[0].shape[1],
            like=cache.keys[0],
        )
    if len(prefix_lens) > 1:
        calls = joined(calls, are_calls_dear=True)  # however unlike their lengths
    # the keys and values are there already
    attention = RaggedAttention(cache, [], calls, num_rows=len(prefix_lens) * num_tokens, num_heads=num_heads)
    nothing = query.new_empty(0, 2, cache.keys[0].shape[1], head_dim)
    return attention(0, query.repeat(len(prefix_lens), 1, 1), nothing, head_dim**-0.5)


def model_is_invariant(runner: PackedRunner) -> bool:
    """Whether a chain's tokens get the bits that they have one by one: together, in a batch, and hidden in a tree.

    The chain crosses a key block. Takes about fifteen decoding steps and a prompt of 60 tokens.
    """
    cache = runner.cache
    rows = sorted(cache.lease() for _ in range(min(3, cache.num_free_rows)))
    try:
        vocab_size = runner.info.vocab_size
        prompt = [token * 7919 % vocab_size for token in range(PREFIX_LENS[1] + CHAIN_LEN)]
        prefix, chain = prompt[:-CHAIN_LEN], prompt[-CHAIN_LEN:]
        row, *others = rows
        runner.forward([Segment(row, prefix, 0)])
        cache.append(row, len(prefix))
        verified = runner.forward([Segment(row, chain, CHAIN_LEN)]).logits
        beside = [Segment(other, chain[: 1 + index], 1) for index, other in enumerate(others)]
        batched = runner.forward([*beside, Segment(row, chain, CHAIN_LEN)]).logits[len(beside) :]
        pair = rows[:2]  # of different lengths, perhaps read together
        alike = runner.forward([Segment(each, chain, CHAIN_LEN) for each in pair]).logits
        # each token of the chain has a sibling before it, from which nothing hangs
        siblings = [token for node in chain for token in ((node + 1) % vocab_size, node)]
        parents = [2 * (node // 2) - 1 for node in range(2 * CHAIN_LEN)]
        hidden = runner.forward([Segment(row, siblings, 2 * CHAIN_LEN, parents)]).logits[1::2]
        expected = [_one_by_one(runner, each, chain) for each in pair]
        return torch.equal(alike, torch.cat(expected)) and all(
            torch.equal(each, expected[0]) for each in (verified, batched, hidden)
        )
    finally:
        for row in rows:
            cache.free(row)


def _one_by_one(runner: PackedRunner, row: int, chain: Sequence[int]) -> Tensor:
    """Logits of each token, decoded behind what the row holds. Effects: the row's slots and length."""
    singly = []
    for token in chain:
        singly.append(runner.forward([Segment(row, [token], 1)]).logits)
        runner.cache.append(row, 1)
    return torch.cat(singly)
