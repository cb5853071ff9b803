"""The loss in pieces against torch's own, value and gradient."""

from __future__ import annotations

import torch

from starspec.train import loss
from starspec.train.loss import soft_cross_entropy, step_weights, target_distribution


def test_value_and_gradient_are_those_of_soft_cross_entropy(monkeypatch):
    monkeypatch.setattr(loss, "PIECE", 4)  # the last piece is not full
    rng = torch.Generator().manual_seed(1)
    rows, last = torch.randn(30, 16, generator=rng), torch.randn(11, 16, generator=rng)
    hidden = torch.randn(11, 16, generator=rng, requires_grad=True)
    found = soft_cross_entropy(hidden, rows, target_distribution(last, rows))
    (3 * found.entropy).backward()
    mine, hidden.grad = hidden.grad, None
    p = (last @ rows.T).softmax(-1)
    expected = -(p * (hidden @ rows.T).log_softmax(-1)).sum()
    (3 * expected).backward()
    torch.testing.assert_close(found.entropy, expected)
    torch.testing.assert_close(mine, hidden.grad, atol=1e-5, rtol=1e-4)
    assert found.is_right.tolist() == ((hidden @ rows.T).argmax(-1) == p.argmax(-1)).tolist()


def test_the_loss_is_least_where_head_and_target_agree():
    rng = torch.Generator().manual_seed(2)
    rows, last = torch.randn(30, 16, generator=rng), torch.randn(5, 16, generator=rng)
    hidden = last.clone().requires_grad_()
    found = soft_cross_entropy(hidden, rows, target_distribution(last, rows))
    found.entropy.backward()
    assert hidden.grad.abs().max() < 1e-5
    assert found.is_right.all()


def test_steps_weigh_less_and_less():
    assert step_weights(3, 0.5) == [4 / 7, 2 / 7, 1 / 7]
