"""What a last stage may answer: its coordinator takes nothing that cannot be the answer to what it asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from starspec.ids import RowLease
from starspec.speculation.tree import ROOT, DraftTree
from starspec.windows.window import Judge
from starspec.wire.messages import Landing, VerdictOf


class Asked(NamedTuple):
    """A window in flight about which the last stage decides."""

    row: int
    lease: RowLease  # of the row when it was launched
    root: int
    judge: Judge


class _End(NamedTuple):
    """Where a sequence ends, as far as its verdicts have landed."""

    lease: RowLease
    num_tokens: int
    last_token_id: int


class LandingCheck:
    """Compares what lands with what was asked.

    Windows land in order, so it is known which of them stand on true tokens, as the last stage knows it (`laws.py`).
    Those that do have a verdict with tokens, or with an error: else a request would never end.

    Args:
        vocab_size: of the model.
        layers: first one, and the one behind the last, of each stage in order.
    """

    def __init__(self, vocab_size: int, layers: Sequence[tuple[int, int]]) -> None:
        self._vocab_size = vocab_size
        self._layers = list(layers)
        self._ends: dict[int, _End] = {}  # row -> its sequence

    def start_over(self) -> None:
        """All rows have new occupants."""
        self._ends.clear()

    def complaint(
        self, landing: Landing, asked: Sequence[Asked], is_held: Callable[[int, RowLease], bool]
    ) -> str | None:
        """Why this cannot be the answer to these windows; None if it can.

        Args:
            asked: those of the traversal, in order.
            is_held: whether a row still has this occupant. What is said about windows of others does not matter.
        Effects: notes the verdicts until one is wrong.
        """
        layers = [(each.start, each.end) for each in landing.work]
        if layers != self._layers:
            return f"layers {', '.join(f'{start}:{end}' for start, end in layers) or 'of no stage'} computed it"
        if len(landing.verdicts) != len(asked):
            return f"{len(landing.verdicts)} verdicts about {len(asked)} windows"
        for verdict, each in zip(landing.verdicts, asked, strict=True):
            is_answered = bool(verdict.token_ids or verdict.error)
            if is_held(each.row, each.lease) and self._stands(each) != is_answered:
                return "tokens for a window on refused ones" if is_answered else "no tokens for a window"
            if (problem := _problem(verdict, each.judge, self._vocab_size)) is not None:
                return problem
            if is_answered:
                num_tokens = each.judge.prefix_len + len(verdict.token_ids)
                self._ends[each.row] = _End(each.lease, num_tokens, [each.root, *verdict.token_ids][-1])
        return None

    def _stands(self, window: Asked) -> bool:
        """Whether it begins with the last true token, as the first one of an occupant does."""
        end = self._ends.get(window.row)
        if end is None or end.lease != window.lease:
            return True
        return (window.judge.prefix_len, window.root) == (end.num_tokens, end.last_token_id)


def _problem(verdict: VerdictOf, judge: Judge, vocab_size: int) -> str | None:
    """What is wrong with a verdict by itself."""
    if not _is_path(verdict.nodes, judge.tree):
        return "a path that the draft does not have"
    if tuple(verdict.token_ids[:-1]) != tuple(judge.tree.token_ids[node] for node in verdict.nodes):
        return "other tokens than those of the accepted draft"
    tops = [top for _, top in verdict.logprobs or ()]
    if max((*verdict.token_ids, *(token_id for top in tops for token_id, _ in top)), default=0) >= vocab_size:
        return "token ids outside the vocabulary"
    return _surplus(verdict, judge)


def _surplus(verdict: VerdictOf, judge: Judge) -> str | None:
    """What it says that nobody asked for, or does not say although it was."""
    num_tokens, num_wanted = len(verdict.token_ids), judge.law.num_logprobs
    logprobs = verdict.logprobs or ()
    is_told = len(logprobs) == (0 if num_wanted is None else num_tokens)
    if not is_told or any(len(top) > (num_wanted or 0) for _, top in logprobs):
        return "other log-probabilities than those that were asked for"
    if verdict.relaxed and judge.law.relaxation is None:
        return "relaxed tokens of a strict request"
    if len(verdict.divergences) > (num_tokens if judge.tree.tops else 0):
        return "divergences that nobody asked for"
    return None


def _is_path(nodes: Sequence[int], tree: DraftTree) -> bool:
    """Whether these are nodes of the tree, each the child of the one before, and the first one of the root."""
    return all(
        node < tree.num_draft_tokens and tree.parents[node] == parent
        for parent, node in zip((ROOT, *nodes), nodes, strict=False)
    )
