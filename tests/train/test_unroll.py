"""Training-time test against chains run one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from slow_head import slow_chain
from train_toys import make_head

from starspec.errors import ModelError
from starspec.train.head import TrainedHead, rotate
from starspec.train.unroll import unroll

CLOSE = {"atol": 2e-5, "rtol": 1e-4}  # float32: only the order of sums differs


def test_every_step_of_every_anchor_is_that_of_its_own_chain(head, make_batch, embedding):
    batch = make_batch(head)
    spoken = unroll(head, batch, embedding, 4)
    for line, (prompt, answer) in enumerate(zip(batch.prompt_lengths, batch.answer_lengths, strict=True)):
        token_ids = batch.token_ids[line].tolist()
        for place in range(answer):
            anchor = int(prompt) - 1 + place
            num_steps = min(4, int(prompt + answer) - 1 - anchor)
            chain = slow_chain(head, batch.features[line], token_ids, anchor, num_steps, embedding)
            for step, h in enumerate(chain):
                torch.testing.assert_close(spoken[step][line, place], h, **CLOSE)


def test_the_head_never_sees_what_it_is_to_say(head, make_batch, embedding):
    batch = make_batch(head, (3,), (8,))
    before = unroll(head, batch, embedding, 3)
    batch.token_ids[0, 8:] = 0  # the anchor in place m reads up to token 3 + m + step
    batch.features[0, 8:] = 0.0
    after = unroll(head, batch, embedding, 3)
    for step in range(3):
        seen = 8 - 3 - step
        torch.testing.assert_close(before[step][:, :seen], after[step][:, :seen])
        assert not torch.equal(before[step][:, seen:], after[step][:, seen:])


def test_gradients_reach_every_weight(head: TrainedHead, make_batch, embedding):
    sum(h.square().sum() for h in unroll(head, make_batch(head), embedding, 3)).backward()
    idle = [name for name, each in head.named_parameters() if each.grad is None or not each.grad.any()]
    assert idle == (["norm.weight"] if head.spec.method == "eagle3" else [])  # which only the LM head's input passes


@pytest.mark.parametrize("shift", [1, 7])
def test_rotation_knows_distances_alone(shift):
    rng = torch.Generator().manual_seed(1)
    q, k = torch.randn(1, 8, generator=rng), torch.randn(1, 8, generator=rng)
    products = [
        rotate(q, torch.tensor([place]), 1e4) @ rotate(k, torch.tensor([place + 3]), 1e4).T for place in (2, 2 + shift)
    ]
    torch.testing.assert_close(*products, **CLOSE)


def test_a_head_with_a_scaled_rotary_embedding_is_not_trained_as_if_it_had_none():
    spec = replace(make_head("eagle3").spec, rope_scaling={"rope_type": "llama3", "factor": 8.0})
    with pytest.raises(ModelError, match="rotary type 'llama3' cannot be trained"):
        TrainedHead(spec)
