"""Which tokens of a segment attend together, and which slots they read.

A prefill is one call. All other tokens (decoding, verification) attend in one of five modes, the same for a whole
runner:

* `FAST`: a segment is one run, and in a tree a mask selects the ancestors. The bits may depend on the batch.
* `IN_STEPS`: as if decoded one by one, in forwards of fixed shapes (`models/graphs/step_batch.py`). Only prefills are
  planned here.
* `TOGETHER`, `BY_RUN`, `BY_TOKEN`: every token gets the bits that it has when it is decoded alone. These mostly depend
  on how many keys are summed. So by run and by token, a token in slot p always reads the first `ceil((p + 1) / 64) *
  64` slots, masked:

      slots   0 ........ 63 | 64 ....... 127        a chain of 4 behind 62 committed slots is two runs:
      chain           62 63 | 64 65                 tokens 62, 63 read one block, tokens 64, 65 read two

  The first branch of a tree is a chain. A node of another branch has its ancestors in other slots than when it is
  decoded, and a kernel that sums over slots then rounds differently. So one branch after the other is laid out behind
  the prefix while its tokens attend. In the mode `TOGETHER`, each branch is instead put behind a copy of the prefix.

In the modes `FAST` and `TOGETHER`, runs of several cache rows with equally many tokens are joined into one call
(`joined`) if this costs less than the masked slots that they then read. So are branches with equally many tokens.

`models/numerics/probe.py` finds out which mode preserves bits on this machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum, auto
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from starspec.cache.ragged import KEY_BLOCK
from starspec.models.attention.call import MIN_QUERY_ROWS, AttentionCall, Branch, Form, num_query_rows
from starspec.models.attention.mask import is_chain, visible_slots
from starspec.models.attention.scores import HIDDEN
from starspec.models.loading.device import is_accelerator

# Torch's CPU kernel cuts longer runs into blocks of this size, or of a multiple of it. The rest must not be smaller
# than MIN_QUERY_ROWS.
MAX_QUERY_ROWS: Final = 32
CALL_SLOTS: Final = 512  # on a CPU, one more call takes the time in which a token reads this many slots
MAX_TOGETHER: Final = 8  # sequences or branches of one call on a CPU: as many as the probe tries
MAX_COPIED_SLOTS: Final = 8192  # copied slots of a call by branches: a few MB, which fit into the processor's caches


class AttentionMode(Enum):
    """How tokens outside of prefills attend to the cache."""

    FAST = auto()  # a whole segment at once
    IN_STEPS = auto()  # as if decoded; every token is a batch entry with a copy of what it reads
    TOGETHER = auto()  # as if decoded; the tokens of a branch at once, and those of several cache rows
    BY_RUN = auto()  # as if decoded; those tokens of a branch together that read equally many slots
    BY_TOKEN = auto()  # as if decoded; every token is a batch entry


def plan_calls(
    row: int,
    first: int,
    prefix_len: int,
    *,
    parents: Sequence[int] | None,
    new_tokens: range,
    is_prompt: bool,
    mode: AttentionMode,
    group: int,
    like: Tensor,
) -> list[AttentionCall]:
    """The calls of one segment, or of a part of it.

    Args:
        row: of the cache.
        first: where the part starts in the packed batch.
        prefix_len: committed slots of the row.
        parents: of the whole segment, None for a chain.
        new_tokens: the part of the segment that this forward computes; everything before it is in the cache.
        is_prompt: a chain that is prefilled; otherwise `mode` applies.
        mode: how the tokens attend.
        group: G, query heads for each key head.
        like: has the dtype of the masks and the device of the paths; on accelerators whole blocks are read.
    """
    if is_prompt:
        return [_call_by_chunk(row, first, prefix_len, new_tokens, like)]
    if mode is AttentionMode.FAST:
        visible = visible_slots(prefix_len, new_tokens.stop, None if parents is None else parents[: new_tokens.stop])
        visible = visible[new_tokens.start :]
        return [_call(row, first, _in_blocks(visible, like.device), Form.BY_RUN, group, like)]
    in_order = Form.BY_TOKEN if mode is AttentionMode.BY_TOKEN else Form.BY_RUN
    beside = Form.BY_BRANCHES if mode is AttentionMode.TOGETHER else in_order
    paths = _paths(new_tokens.stop, parents)
    calls = []
    for run in _runs(new_tokens, prefix_len, paths, mode, num_query_rows(group)):
        path = paths[run[-1]]
        positions = torch.tensor([prefix_len + len(paths[token]) - 1 for token in run]).unsqueeze(1)
        visible = torch.arange(_num_slots(int(positions[-1]))) <= positions
        form, branches = in_order, tuple[Branch, ...]()
        if path[-1] != len(path) - 1:  # otherwise it is in order already
            form, branches = beside, (Branch(prefix_len, new_tokens.stop, torch.tensor(path).to(like.device)),)
        calls.append(_call(row, first + run[0] - new_tokens.start, visible, form, group, like, branches))
    return calls


def joined(calls: Sequence[AttentionCall], *, are_calls_dear: bool) -> list[AttentionCall]:
    """Join the calls of neighbouring runs, or of branches of one row, that have equally many tokens.

    For modes whose bits do not depend on masked slots behind a token's own, or that do not preserve bits.

    Args:
        calls: in the order of the packed batch.
        are_calls_dear: whether a call costs more than whatever it reads, as on accelerators. If not, only runs of
            neighbouring cache rows of similar length are joined, and nothing is copied.
    """
    found = list[list[AttentionCall]]()
    for call in calls:
        if found and _fits(call, found[-1], are_calls_dear=are_calls_dear):
            found[-1].append(call)
        else:
            found.append([call])
    return [_as_one(group) if len(group) > 1 else group[0] for group in found]


def _fits(call: AttentionCall, group: Sequence[AttentionCall], *, are_calls_dear: bool) -> bool:
    """Whether a call joins those before it."""
    before = group[-1]
    num_tokens = call.last - call.first
    if call.form is not before.form or num_tokens != before.last - before.first:
        return False
    together = [*group, call]
    if call.form is Form.BY_BRANCHES:
        num_copied = len(together) * max(each.num_slots for each in together)
        return call.row == before.row and len(together) <= MAX_TOGETHER and num_copied <= MAX_COPIED_SLOTS
    if call.form is not Form.BY_RUN or call.branches or before.branches:
        return False
    if are_calls_dear:
        return True
    num_slots = [each.num_slots for each in together]
    num_in_vain = num_tokens * (len(together) * max(num_slots) - sum(num_slots))
    are_side_by_side = call.row == before.row + 1 and len(together) <= MAX_TOGETHER
    return are_side_by_side and num_in_vain <= CALL_SLOTS * len(group)


def _as_one(runs: Sequence[AttentionCall]) -> AttentionCall:
    """Join runs or branches with equally many tokens that are consecutive in the packed batch."""
    num_slots = max(run.num_slots for run in runs)
    masks = []
    for run in runs:
        assert run.mask is not None, "only prompts attend without a mask"
        masks.append(F.pad(run.mask, (0, num_slots - run.num_slots), value=HIDDEN))
    first, last, mask = runs[0].first, runs[-1].last, torch.cat(masks)
    if branches := tuple(branch for run in runs for branch in run.branches):
        return AttentionCall(runs[0].rows, first, last, num_slots, Form.BY_BRANCHES, mask, branches)
    return AttentionCall(tuple(run.row for run in runs), first, last, num_slots, Form.BY_ROWS, mask)


def _num_slots(position: int) -> int:
    """Slots that the token at a position reads: whole blocks."""
    return (position // KEY_BLOCK + 1) * KEY_BLOCK


def _paths(num_tokens: int, parents: Sequence[int] | None) -> list[Sequence[int]]:
    """For each token: its ancestors behind the prefix, and itself."""
    if parents is None or is_chain(parents):
        return [range(token + 1) for token in range(num_tokens)]
    paths: list[Sequence[int]] = []
    for token, parent in enumerate(parents[:num_tokens]):
        paths.append([*(paths[parent] if parent >= 0 else ()), token])
    return paths


def _runs(
    new_tokens: range, prefix_len: int, paths: Sequence[Sequence[int]], mode: AttentionMode, rows_per_token: int
) -> Iterator[Sequence[int]]:
    """Runs of consecutive tokens, each the child of the one before, cut as the mode requires.

    Args:
        rows_per_token: M, query rows.
    """
    lines: list[list[int]] = []
    for token in new_tokens:
        if lines and len(paths[token]) > 1 and paths[token][-2] == lines[-1][-1]:
            lines[-1].append(token)
        else:
            lines.append([token])
    for line in lines:
        first = 0
        while first < len(line):
            position = prefix_len + len(paths[line[first]]) - 1
            last = first + _run_len(len(line) - first, position, mode, rows_per_token)
            yield line[first:last]
            first = last


def _run_len(num_tokens: int, position: int, mode: AttentionMode, rows_per_token: int) -> int:
    """How many of the tokens from `position` on form one run."""
    if mode is AttentionMode.TOGETHER:
        # to separate the last token costs a call, and runs of several rows are then not neighbours; few values of M
        # need it
        is_rest_small = 0 < num_tokens * rows_per_token % MAX_QUERY_ROWS < MIN_QUERY_ROWS
        return num_tokens - (is_rest_small and num_tokens > 1)
    to_block_end = KEY_BLOCK - position % KEY_BLOCK
    in_one_block = max(1, MAX_QUERY_ROWS // rows_per_token) if mode is AttentionMode.BY_RUN else num_tokens
    return min(num_tokens, to_block_end, in_one_block)


def _call(
    row: int, first: int, visible: Tensor, form: Form, group: int, like: Tensor, branches: tuple[Branch, ...] = ()
) -> AttentionCall:
    """Args: visible: [T, S], which slots each token of the run sees."""
    num_tokens, num_slots = visible.shape
    mask = _additive(visible, like)
    if form is not Form.BY_TOKEN:
        mask = mask.repeat_interleave(num_query_rows(group), dim=0)[None, None]
    else:
        mask = mask[:, None, None]
    return AttentionCall((row,), first, first + num_tokens, num_slots, form, mask, branches)


def _call_by_chunk(row: int, first: int, prefix_len: int, new_tokens: range, like: Tensor) -> AttentionCall:
    num_slots = prefix_len + new_tokens.stop
    mask = None
    if num_slots > len(new_tokens):  # torch aligns `is_causal` with slot 0, so it is right for an empty prefix only
        visible = _in_blocks(visible_slots(num_slots - len(new_tokens), len(new_tokens), None), like.device)
        mask, num_slots = _additive(visible, like), visible.shape[1]
    return AttentionCall((row,), first, first + len(new_tokens), num_slots, Form.BY_CHUNK, mask)


def _in_blocks(visible: Tensor, device: torch.device) -> Tensor:
    """[T, S], padded to whole blocks on accelerators.

    Kernels there require such masks, and torch would copy others into them.
    """
    num_more = _num_slots(visible.shape[1] - 1) - visible.shape[1]
    return F.pad(visible, (0, num_more)) if is_accelerator(device) else visible


def _additive(visible: Tensor, like: Tensor) -> Tensor:
    """0 where visible, -inf elsewhere."""
    return torch.zeros(visible.shape, dtype=like.dtype).masked_fill_(~visible, HIDDEN)
