"""Lines of the papers, as printed, and what they do: the errata of docs/papers.md.

The languages are tables: the next token depends on the number of tokens before it, for the draft and for the target.
"""

from __future__ import annotations

import pytest
import torch

TARGET = (3, 1, 4, 1, 5, 9, 2, 6)  # the tokens that greedy decoding emits


def amusd(draft: tuple[int, ...], num_rounds: int, num_ahead: int, *, keeps_correction: bool) -> list[int]:
    """AMUSD's Algorithm 1 in turns: the draft is `num_ahead` tokens ahead whenever the verifier looks.

    Args:
        keeps_correction: append T_v[1:i] at a mismatch, instead of the T_v[1:i-1] of line 22.
    Returns: V.
    """
    verified: list[int] = []
    for _ in range(num_rounds):
        place = len(verified)  # p_v; after a rollback the draft continues from here
        drafted = draft[place : place + num_ahead]
        said = TARGET[place : place + len(drafted)]
        wrong = next((i for i, (one, other) in enumerate(zip(drafted, said, strict=True)) if one != other), None)
        if wrong is None:
            verified += said  # line 25
        else:
            verified += said[: wrong + 1 if keeps_correction else wrong]  # lines 22 and 23
    return verified


def test_amusd_as_printed_stays_for_ever_where_the_first_draft_token_is_wrong() -> None:
    draft = (3, 1, 4, 8, 5, 9, 2, 6)  # wrong at its fourth token
    assert amusd(draft, 100, 2, keeps_correction=False) == [3, 1, 4]
    assert amusd(draft, 5, 2, keeps_correction=True) == list(TARGET)


def starsd(paths: list[list[int]], draws: list[list[float]], target_probs: list[float], corrected: int) -> list[int]:
    """StarSD's Algorithm 2, lines 28 to 51, for one iteration.

    Args:
        draws: r, for each token of each path.
        target_probs: p(x), by token.
        corrected: the token drawn at line 40.
    Returns: target_path.
    """
    accept_length, target_path = 0, list[int]()
    for tree_path, uniforms in zip(paths, draws, strict=True):
        refused = [i for i, (x, r) in enumerate(zip(tree_path, uniforms, strict=True)) if r > target_probs[x]]
        length = min([*refused, len(tree_path)])  # line 35
        kept = [*tree_path[:length], corrected] if length < len(tree_path) else tree_path[:length]  # lines 38 to 43
        if length > accept_length:  # line 45
            accept_length, target_path = length, kept
    return target_path


def test_starsd_as_printed_emits_nothing_where_no_path_is_accepted() -> None:
    probs = [0.5, 0.3, 0.2]
    assert starsd([[0, 1], [1, 0]], [[0.9, 0.1], [0.9, 0.1]], probs, corrected=2) == []
    assert starsd([[0, 1], [1, 0]], [[0.4, 0.9], [0.9, 0.1]], probs, corrected=2) == [0, 2]


def test_starsd_as_printed_emits_no_bonus_token() -> None:
    assert starsd([[0, 1]], [[0.1, 0.1]], [0.5, 0.3, 0.2], corrected=2) == [0, 1], "d tokens, not d + 1"


@pytest.mark.parametrize(("draft", "num_accepted"), [((3, 1, 4), 3), ((3, 1, 7), 2), ((8, 1, 4), 0)])
def test_eqspec_as_printed_takes_a_wholly_right_draft_for_a_wholly_wrong_one(
    draft: tuple[int, ...], num_accepted: int
) -> None:
    matches = torch.tensor(draft) == torch.tensor(TARGET[: len(draft)])
    found = int((~matches).int().argmax())  # line 9
    assert found == (0 if num_accepted == len(draft) else num_accepted)
