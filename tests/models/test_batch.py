import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import make_config, make_info, make_model, prefill, prompt_ids

from starspec.models.batch import MAX_DECODE_TOKENS, RowRange, plan_forwards
from starspec.models.fused import FusedRunner
from starspec.models.linear.dense import pack_dense
from starspec.models.runner import Segment

LONG = MAX_DECODE_TOKENS + 1


@st.composite
def segments(draw, row=0):
    num_tokens = draw(st.integers(1, 40))
    return Segment(row, [1] * num_tokens, draw(st.sampled_from([0, 1, num_tokens])))


@given(st.lists(segments(), max_size=8), st.integers(4, 24))
def test_forwards_hold_every_token_once_in_order_and_are_never_too_wide(batch, highest):
    forwards = plan_forwards(batch, RowRange(2, highest))
    pieces = [piece for forward in forwards for piece in forward]
    tokens = [(id(piece.segment), token) for piece in pieces for token in range(piece.first, piece.last)]
    assert tokens == [(id(segment), token) for segment in batch for token in range(len(segment.token_ids))]
    for forward in forwards:
        assert forward
        width = sum(piece.num_tokens for piece in forward)
        assert width <= highest or (len(forward) == 1 and forward[0].is_prompt)


@given(st.lists(segments(), max_size=8), st.integers(4, 24))
def test_a_prompt_runs_alone_and_whole(batch, highest):
    for forward in plan_forwards(batch, RowRange(2, highest)):
        for piece in forward:
            if piece.is_prompt:
                assert len(forward) == 1
                assert piece.num_tokens == len(piece.segment.token_ids)


@pytest.mark.parametrize(
    ("segment", "is_prompt"),
    [
        (Segment(0, [1] * LONG, 1), True),
        (Segment(0, [1] * LONG, 0), True),
        (Segment(0, [1] * LONG, 2), False),  # verification: its rows must have the bits of decoding
        (Segment(0, [1] * MAX_DECODE_TOKENS, 1), False),  # a few tokens catch up beside others
        (Segment(0, [1] * LONG, 1, (-1,) * LONG), False),  # a tree is never prefill
    ],
)
def test_what_counts_as_a_prompt(segment, is_prompt):
    [[piece, *_], *_] = plan_forwards([segment], RowRange(2, 8))
    assert piece.is_prompt is is_prompt


def test_without_a_limit_everything_but_prompts_shares_one_forward():
    batch = [Segment(0, [1] * 300, 300), Segment(1, [1] * LONG, 1), Segment(2, [1], 1), Segment(3, [1], 1)]
    assert [len(forward) for forward in plan_forwards(batch, RowRange(1, None))] == [1, 1, 2]


@pytest.mark.parametrize("rows", [RowRange(2, 8), RowRange(7, 7), RowRange(1, 3)])
def test_padding_and_splitting_do_not_change_results(rows):
    runner = FusedRunner(make_model(), make_config(), make_info(), pack_dense)
    tree = (-1, 0, 0, 1, 1, 2, 3, 3, 4, 7)
    at = [prefill(runner, prompt_ids(length, seed=length)) for length in (5, 60, 63)]
    batch = [
        Segment(at[0], prompt_ids(10, seed=1), 10, tree),
        Segment(at[1], prompt_ids(20, seed=2), 20),
        Segment(at[2], prompt_ids(3, seed=3), 1),
    ]
    expected = runner.forward(batch).logits
    runner.rows = rows
    torch.testing.assert_close(runner.forward(batch).logits, expected, atol=2e-5, rtol=1e-4)
