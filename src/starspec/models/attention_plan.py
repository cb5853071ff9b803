"""Which tokens of a segment attend together, and which slots they read.

A prompt is one call. All other tokens (decoding, verifying) are read in one of three ways, chosen for a whole runner:

* `FAST`: a segment is one run, and in a tree a mask picks the ancestors. Nothing is promised about bits. Where a call
  costs more than what it computes, runs of as many tokens are one (`joined`).
* `BY_RUN`, `BY_TOKEN`: a token has the bits that it has when it is decoded. They depend on how many keys are summed
  over, so a token in slot p always reads the first `ceil((p + 1) / 64) * 64` slots, masked:

      slots   0 ........ 63 | 64 ....... 127        a chain of 4 behind 62 committed slots is two runs:
      chain           62 63 | 64 65                 tokens 62, 63 read one block, tokens 64, 65 read two

  The first branch of a tree is a chain. A node beside it has its ancestors in other slots than it would have if it
  were decoded, and kernels that sum over slots round differently then. So branch after branch is laid behind the
  prefix while its tokens attend.

`models/numerics.py` finds out which reading keeps its word on this machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum, auto
from itertools import groupby
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from starspec.cache.mask import is_chain, visible_slots
from starspec.cache.ragged import KEY_BLOCK
from starspec.models.attention import MIN_QUERY_ROWS, AttentionCall, Branch, Form
from starspec.models.device import is_accelerator

# Of a run whose bits count: torch's CPU kernel cuts longer ones into blocks of so many, and what is left over might be
# fewer than MIN_QUERY_ROWS.
MAX_QUERY_ROWS: Final = 32
HIDDEN: Final = float("-inf")


class Reading(Enum):
    """How tokens that are no prompt read the cache."""

    FAST = auto()  # a segment at once
    BY_RUN = auto()  # as if decoded; tokens of a branch that read as many slots together
    BY_TOKEN = auto()  # as if decoded; every token a batch entry


def plan_calls(
    row: int,
    first: int,
    prefix_len: int,
    *,
    parents: Sequence[int] | None,
    new_tokens: range,
    is_prompt: bool,
    reading: Reading,
    group: int,
    like: Tensor,
) -> list[AttentionCall]:
    """The calls of one segment, or of a part of it.

    Args:
        first: where the part starts in the packed batch.
        prefix_len: committed slots of the row.
        parents: of the whole segment, None for a chain.
        new_tokens: the part of the segment that this forward computes; what comes before it is in the cache.
        is_prompt: a chain that is read as prompts are; else `reading` says how.
        group: G, query heads a key head.
        like: gives the dtype of the masks and the device of the paths; on accelerators whole blocks are read.
    """
    if is_prompt:
        return [_call_by_chunk(row, first, prefix_len, new_tokens, like)]
    if reading is Reading.FAST:
        visible = visible_slots(prefix_len, new_tokens.stop, None if parents is None else parents[: new_tokens.stop])
        visible = visible[new_tokens.start :]
        return [_call(row, first, _in_blocks(visible, like.device), Form.BY_RUN, group, like)]
    form = Form.BY_RUN if reading is Reading.BY_RUN else Form.BY_TOKEN
    longest = MAX_QUERY_ROWS // max(group, MIN_QUERY_ROWS) if form is Form.BY_RUN else len(new_tokens)
    paths = _paths(new_tokens.stop, parents)
    calls = []
    for run in _runs(new_tokens, prefix_len, paths, max(1, longest)):
        path = paths[run[-1]]
        positions = torch.tensor([prefix_len + len(paths[token]) - 1 for token in run]).unsqueeze(1)
        visible = torch.arange(_num_slots(int(positions[-1]))) <= positions
        branch = None
        if path[-1] != len(path) - 1:  # else it lies in order as it is
            branch = Branch(prefix_len, new_tokens.stop, torch.tensor(path).to(like.device))
        calls.append(_call(row, first + run[0] - new_tokens.start, visible, form, group, like, branch))
    return calls


def joined(calls: Sequence[AttentionCall]) -> list[AttentionCall]:
    """The calls of a forward, those of neighbours that are runs of as many tokens as one.

    Whole segments alone are given as runs where nothing is promised about bits, and there a sum over masked slots may
    be cut otherwise.
    """
    found = []
    for (form, _), group in groupby(calls, key=lambda call: (call.form, call.last - call.first)):
        alike = list(group)
        found += [_as_one(alike)] if form is Form.BY_RUN and len(alike) > 1 else alike
    return found


def _as_one(runs: Sequence[AttentionCall]) -> AttentionCall:
    """Runs of as many tokens, each behind the one before in the packed batch."""
    num_slots = max(run.num_slots for run in runs)
    masks = []
    for run in runs:
        assert run.mask is not None, "only prompts attend without a mask"
        masks.append(F.pad(run.mask, (0, num_slots - run.num_slots), value=HIDDEN))
    rows = tuple(run.row for run in runs)
    return AttentionCall(rows, runs[0].first, runs[-1].last, num_slots, Form.BY_ROWS, torch.cat(masks))


def _num_slots(position: int) -> int:
    """Slots that the token of a position reads: whole blocks."""
    return (position // KEY_BLOCK + 1) * KEY_BLOCK


def _paths(num_tokens: int, parents: Sequence[int] | None) -> list[Sequence[int]]:
    """Of each token: its ancestors behind the prefix, and itself."""
    if parents is None or is_chain(parents):
        return [range(token + 1) for token in range(num_tokens)]
    paths: list[Sequence[int]] = []
    for token, parent in enumerate(parents[:num_tokens]):
        paths.append([*(paths[parent] if parent >= 0 else ()), token])
    return paths


def _runs(new_tokens: range, prefix_len: int, paths: Sequence[Sequence[int]], longest: int) -> Iterator[list[int]]:
    """Tokens that follow each other, each the child of the one before and in the same key block."""
    run: list[int] = []
    for token in new_tokens:
        position = prefix_len + len(paths[token]) - 1
        is_child = bool(run) and len(paths[token]) > 1 and paths[token][-2] == run[-1]
        if is_child and position % KEY_BLOCK and len(run) < longest:
            run.append(token)
            continue
        if run:
            yield run
        run = [token]
    yield run


def _call(
    row: int, first: int, visible: Tensor, form: Form, group: int, like: Tensor, branch: Branch | None = None
) -> AttentionCall:
    """Args: visible: [T, S], what each token of the run sees of the slots that it reads."""
    num_tokens, num_slots = visible.shape
    mask = _additive(visible, like)
    if form is Form.BY_RUN:
        mask = mask.repeat_interleave(max(group, MIN_QUERY_ROWS), dim=0)[None, None]
    else:
        mask = mask[:, None, None]
    return AttentionCall((row,), first, first + num_tokens, num_slots, form, mask, branch)


def _call_by_chunk(row: int, first: int, prefix_len: int, new_tokens: range, like: Tensor) -> AttentionCall:
    num_slots = prefix_len + new_tokens.stop
    mask = None
    if num_slots > len(new_tokens):  # torch aligns `is_causal` with slot 0, so it fits an empty prefix only
        visible = _in_blocks(visible_slots(num_slots - len(new_tokens), len(new_tokens), None), like.device)
        mask, num_slots = _additive(visible, like), visible.shape[1]
    return AttentionCall((row,), first, first + len(new_tokens), num_slots, Form.BY_CHUNK, mask)


def _in_blocks(visible: Tensor, device: torch.device) -> Tensor:
    """[T, S], on accelerators of whole blocks: kernels there want such masks, and torch copies others into them."""
    num_more = _num_slots(visible.shape[1] - 1) - visible.shape[1]
    return F.pad(visible, (0, num_more)) if is_accelerator(device) else visible


def _additive(visible: Tensor, like: Tensor) -> Tensor:
    """0 where visible, -inf where not."""
    return torch.zeros(visible.shape, dtype=like.dtype).masked_fill_(~visible, HIDDEN)
