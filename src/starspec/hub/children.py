"""Turns a draft's logits into the children of tree nodes: the likeliest tokens, or drawn ones."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import count, groupby
from typing import Final, NamedTuple

from torch import Tensor

from starspec.errors import outcome
from starspec.hub.drafter import DraftFailed
from starspec.hub.sequence import DraftSequence
from starspec.hub.tree_nodes import Children, DraftToken
from starspec.sampling.argmax import argmaxes, is_on_cpu
from starspec.speculation.budget import TopKSpec
from starspec.speculation.propose_coupled import propose_token, propose_tokens
from starspec.speculation.propose_rejection import draw_children
from starspec.speculation.signals import entropies, top_tokens
from starspec.speculation.tree import TopTokens

TOP_1_WITHOUT_LOGPROBS: Final = TopKSpec(1, needs_logprobs=False)
NUM_SPARE: Final = 4  # further candidates, so that of equal logits the lowest token ids are taken


class Point(NamedTuple):
    """A node whose children are wanted."""

    sequence: DraftSequence
    node: int

    @property
    def depth(self) -> int:
        return len(self.sequence.tree.path(self.node))


def draft_children(points: Sequence[Point], logits: Tensor, token_ids: Tensor | None = None) -> list[Children]:
    """Predict the target's next token after each node with the target's own sampling spec (ADR 1), or draw it.

    Args:
        points: all points of a sequence side by side, in order of their depth.
        logits: [B, V], one row per node; or [B, Vd] if the draft's vocabulary has only some tokens.
        token_ids: [Vd], increasing: the ids of those tokens.
    Returns: B times at most `top_k` children, with what else the sequences' specs ask for.
    Raises: DraftFailed if the law of a sequence fails.
    """
    children = outcome(partial(_children, points, logits, token_ids))
    if isinstance(children, BaseException):
        if failed := _failing_alone(points, logits, token_ids):
            raise DraftFailed(failed) from children
        raise children
    return children


def _failing_alone(points: Sequence[Point], logits: Tensor, token_ids: Tensor | None) -> list[DraftSequence]:
    """The sequences whose own children cannot be told."""
    failed = list[DraftSequence]()
    for sequence, group in groupby(range(len(points)), lambda index: points[index].sequence):
        own = [*group]
        alone = partial(_children, [points[index] for index in own], logits[own], token_ids)
        if isinstance(outcome(alone), BaseException):
            failed.append(sequence)
    return failed


def _children(points: Sequence[Point], logits: Tensor, token_ids: Tensor | None) -> list[Children]:
    """As `draft_children`. Raises: whatever the law of a sequence raises."""
    children = _chosen_children(points, logits, token_ids)
    specs = [sequence.top_k_spec for sequence, _ in points]
    unsure = [index for index, spec in enumerate(specs) if spec.needs_entropy]
    if unsure:
        for index, entropy in zip(unsure, entropies(logits[unsure]), strict=True):
            children[index] = children[index]._replace(entropy=entropy)
    telling = [index for index, spec in enumerate(specs) if spec.num_stated]
    if telling:
        most = max(specs[index].num_stated for index in telling)
        for index, top in zip(telling, top_tokens(logits[telling], most), strict=True):
            children[index] = children[index]._replace(top=_stated(top, points[index].sequence, token_ids))
    return children


def _stated(top: TopTokens, sequence: DraftSequence, token_ids: Tensor | None) -> TopTokens:
    """What the target asked for, by its own token ids. Tokens that it does not have are left out."""
    ids = top.token_ids if token_ids is None else token_ids[list(top.token_ids)].tolist()
    pairs = list(zip(ids, top.logprobs, strict=True))[: sequence.top_k_spec.num_stated]
    known = [pair for pair in pairs if pair[0] < sequence.target_vocab_size]
    return TopTokens(tuple(each for each, _ in known), tuple(logprob for _, logprob in known))


def _chosen_children(points: Sequence[Point], logits: Tensor, token_ids: Tensor | None) -> list[Children]:
    if not points:
        return []
    is_plain = [sequence.is_plain_argmax for sequence, _ in points]
    likeliest = _likeliest(logits, _widest(points), token_ids) if any(is_plain) else []
    if all(is_plain):
        likely = [Children(_of_target(sequence, each)) for (sequence, _), each in zip(points, likeliest, strict=True)]
        if all(each.tokens for each in likely):
            return likely
    children: list[Children] = []
    for (sequence, _), group in groupby(zip(count(), points), lambda pair: (pair[1].sequence, pair[1].depth)):
        indices, nodes = zip(*((index, point.node) for index, point in group), strict=True)
        plain = [_of_target(sequence, likeliest[index]) if is_plain[index] else [] for index in indices]
        if all(plain):
            children += map(Children, plain)
            continue
        known = _of_all_tokens(logits[indices[0] : indices[-1] + 1], token_ids, sequence.target_vocab_size)
        with sequence.law_timer:
            children += _drawn(sequence, nodes, known) if sequence.is_drawn else _proposed(sequence, nodes, known)
    return children


def _widest(points: Sequence[Point]) -> TopKSpec:
    """The spec that covers those of all nodes."""
    specs = {sequence.top_k_spec for sequence, _ in points}
    return TopKSpec(max(each.top_k for each in specs), any(each.needs_logprobs for each in specs))


def _likeliest(logits: Tensor, top_k_spec: TopKSpec, token_ids: Tensor | None) -> list[list[DraftToken]]:
    """The `top_k` largest of each row [B, V], for all rows at once; of equals mostly the lowest id first."""
    if top_k_spec == TOP_1_WITHOUT_LOGPROBS:
        best = argmaxes(logits)
        return [[DraftToken(token_id, 0.0)] for token_id in (best if token_ids is None else token_ids[best].tolist())]
    top = logits.topk(min(top_k_spec.top_k + NUM_SPARE, logits.shape[-1]), dim=-1)
    indices = top.indices if token_ids is None else token_ids[top.indices]
    log_confidences = (top.values.float() - logits.float().logsumexp(dim=-1, keepdim=True)).tolist()
    return [
        [DraftToken(*pair) for pair in sorted(zip(ids, row, strict=True), key=lambda pair: (-pair[1], pair[0]))]
        for ids, row in zip(indices.tolist(), log_confidences, strict=True)
    ]


def _of_target(sequence: DraftSequence, likeliest: list[DraftToken]) -> list[DraftToken]:
    """The tokens that the target has: the draft's embedding may be padded further than the target's."""
    vocab_size = sequence.target_vocab_size
    return [token for token in likeliest if token.token_id < vocab_size][: sequence.top_k_spec.top_k]


def _of_all_tokens(logits: Tensor, token_ids: Tensor | None, vocab_size: int) -> Tensor:
    """Logits [B, V] of the target's tokens. Tokens that the draft's vocabulary [B, Vd] lacks get minus infinity."""
    if token_ids is None:
        return logits[:, :vocab_size]
    num_tokens = max(vocab_size, int(token_ids[-1]) + 1)
    every = logits.new_full((len(logits), num_tokens), float("-inf"))
    return every.index_copy_(1, token_ids, logits)[:, :vocab_size]


def _drawn(sequence: DraftSequence, nodes: Sequence[int], logits: Tensor) -> list[Children]:
    children, committed = [], sequence.committed
    for node, row in zip(nodes, logits, strict=True):
        path = sequence.tree.path(node)
        draft, log_confidences = draw_children(
            row,
            sequence.sampling,
            len(committed) + len(path),
            committed.counts_after(path),
            num_tokens=sequence.top_k_spec.top_k,
            draw_seed=committed.seed_after(path),
        )
        pairs = zip(draft.candidates, log_confidences, strict=True)
        children.append(Children([DraftToken(*pair) for pair in pairs], draft))
    return children


def _proposed(sequence: DraftSequence, nodes: Sequence[int], logits: Tensor) -> list[Children]:
    """For nodes of one depth, as those of a draft step are."""
    paths = [sequence.tree.path(node) for node in nodes]
    position = len(sequence.committed) + len(paths[0])
    counts = [sequence.committed.counts_after(path) for path in paths]
    # on accelerators all rows at once: that is a few launches, and a dozen for each row otherwise
    if not sequence.top_k_spec.needs_logprobs and is_on_cpu(logits):
        rows = zip(logits, counts, strict=True)
        return [
            Children([DraftToken(propose_token(row, sequence.sampling, position, seen), 0.0)]) for row, seen in rows
        ]
    proposed = propose_tokens(logits, sequence.sampling, position, counts, num_tokens=sequence.top_k_spec.top_k)
    return [Children([DraftToken(*pair) for pair in each]) for each in proposed]
