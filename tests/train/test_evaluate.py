"""Simulated acceptance against drafting each round for itself."""

from __future__ import annotations

import pytest
import torch
from slow_head import slow_chain
from train_toys import STAGE, texts_of

from starspec.train.evaluate import chain_acceptance
from starspec.train.plan import TrainPlan
from starspec.train.trainer import Trainer


@torch.no_grad()
def drafted_acceptance(head, text, embedding, known_ids, num_steps):
    """(tokens, rounds) of greedy rounds over one answer, each chain drawn anew.

    Args:
        known_ids: that the head can say, increasing.
    """
    token_ids, end = text.token_ids.tolist(), len(text)
    known, num_rounds = text.prompt_length + 1, 0
    while known < end:
        so_far = token_ids[:known]
        for step in range(num_steps):
            h = slow_chain(head, text.features, [*so_far, 0], known - 2, step + 1, embedding)[-1]
            so_far.append(max(known_ids, key=lambda token_id: float(head.spoken(h) @ embedding[token_id])))
        accepted = 0
        while (
            known + accepted < end and accepted < num_steps and so_far[known + accepted] == token_ids[known + accepted]
        ):
            accepted += 1
        known, num_rounds = min(known + accepted + 1, end), num_rounds + 1
    return end - text.prompt_length - 1, num_rounds


@pytest.mark.parametrize(("num_steps", "known_ids"), [(1, None), (3, None), (3, (1, 2, 9, 40))])
def test_rounds_are_those_of_real_drafting(head, make_batch, embedding, tmp_path, num_steps, known_ids):
    batch = make_batch(head, (3, 6, 2), (14, 9, 17))
    batch.token_ids[:] = batch.token_ids % 3  # so that guesses are often right
    texts = texts_of(batch)
    plan = TrainPlan(steps=40, learning_rate=1e-2, warmup=1, ttt_steps=2, bf16=False, batch_tokens=64)
    for place, text in enumerate(texts):  # the target says what stands there
        batch.last_hidden[place, : text.answer_length - 1] = (
            9 * embedding[text.token_ids[text.prompt_length + 1 :].long()]
        )
    Trainer(head, texts_of(batch), embedding, embedding, plan, tmp_path, STAGE).run(lambda _: None, lambda: None)
    draft_token_ids = None if known_ids is None else torch.tensor(known_ids)
    found = chain_acceptance(head, texts, embedding, embedding, draft_token_ids, num_steps)
    sayable = range(len(embedding)) if known_ids is None else known_ids
    counts = [drafted_acceptance(head, text, embedding, sayable, num_steps) for text in texts]
    assert (found.num_tokens, found.num_rounds) == tuple(map(sum, zip(*counts, strict=True)))
    assert found.length > 1.3  # the comparison is of something
    assert len(found.right_by_step) == num_steps
