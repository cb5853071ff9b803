"""A check at load that a model's logits over starspec's cache and attention are those of the model's own code."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from starspec.errors import ModelError
from starspec.models.runner import ModelRunner, Segment

NUM_TOKENS = 8  # of the prompt that both compute
SPLIT = 5  # tokens that are committed before the others, so that cached keys and positions are checked too
TOLERANCE = 0.25  # relative: bfloat16 alone stays below 0.05, another kind of attention is off by about 1


def reference_logits(model: Any) -> Tensor:
    """Logits [8, V] of a short prompt by the model's own code, computed before its attention is replaced."""
    token_ids = torch.tensor([_prompt(model.get_input_embeddings().weight.shape[0])], device=model.device)
    with torch.inference_mode():
        logits: Tensor = model(input_ids=token_ids, use_cache=False).logits[0]
    return logits


def check_reference_logits(model: str, runner: ModelRunner, expected: Tensor) -> None:
    """Compare a runner's logits for the prompt, a part of which it reads from the cache, with the model's own.

    Args:
        model: name for the error message.
        runner: the runner.
        expected: of `reference_logits`.
    Raises: ModelError if they differ.
    """
    prompt = _prompt(runner.info.vocab_size)
    row = runner.cache.lease()
    try:
        first = runner.forward([Segment(row, prompt[:SPLIT], SPLIT)]).logits
        runner.cache.append(row, SPLIT)
        rest = runner.forward([Segment(row, prompt[SPLIT:], NUM_TOKENS - SPLIT)]).logits
    finally:
        runner.cache.free(row)
    wanted = expected.float()
    spread = (wanted - wanted.mean(-1, keepdim=True)).norm()
    gap = ((torch.cat([first, rest]).float() - wanted).norm() / spread).item()
    if not gap <= TOLERANCE:
        raise ModelError(
            f"'{model}' is not supported: its attention is not causal attention over keys and values "
            f"(over the cache its logits are {gap:.0%} off)"
        )


def _prompt(vocab_size: int) -> list[int]:
    """Ids from the whole vocabulary: the first ones are often special tokens, whose bfloat16 logits are chaotic."""
    return [vocab_size * (index + 1) // (NUM_TOKENS + 2) for index in range(NUM_TOKENS)]
