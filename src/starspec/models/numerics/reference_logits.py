"""A check at load that a model's logits over starspec's cache and attention are those of the model's own code."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from starspec.errors import ModelError
from starspec.models.layers import LayerRange
from starspec.models.loading.part import run_part
from starspec.models.numerics.stand_in import forward_part, stand_in
from starspec.models.packed import PackedRunner
from starspec.models.runner import Segment

NUM_TOKENS = 8  # of the prompt that both compute
SPLIT = 5  # tokens that are committed before the others, so that cached keys and positions are checked too
TOLERANCE = 0.25  # relative: bfloat16 alone stays below 0.05, another kind of attention is off by about 1


def reference_logits(model: Any, layers: LayerRange | None = None) -> Tensor:
    """Logits [8, V] of a short prompt by the model's own code, computed before its attention is replaced.

    Args:
        model: transformers' causal LM.
        layers: those that `leave_out` has left; None = all.
    Returns: hidden states [8, C] if the last layer is not there.
    """
    text = model.config.get_text_config(decoder=True)
    layers = layers or LayerRange.whole(text.num_hidden_layers)
    prompt = _prompt(text.vocab_size)
    hidden = stand_in(layers, prompt, text.hidden_size, model.dtype, model.device)
    token_ids = torch.tensor([prompt], device=model.device)
    with torch.inference_mode():
        computed, _ = run_part(model, layers, hidden, input_ids=token_ids, use_cache=False)
    return computed[0]


def check_reference_logits(model: str, runner: PackedRunner, expected: Tensor) -> None:
    """Compare a runner's logits for the prompt, a part of which it reads from the cache, with the model's own.

    Without the last layer it compares hidden states.

    Args:
        model: name for the error message.
        runner: the runner.
        expected: of `reference_logits`.
    Raises: ModelError if they differ.
    """
    prompt = _prompt(runner.info.vocab_size)
    row = runner.cache.lease()
    try:
        first = forward_part(runner, [Segment(row, prompt[:SPLIT], SPLIT)])
        runner.cache.append(row, SPLIT)
        rest = forward_part(runner, [Segment(row, prompt[SPLIT:], NUM_TOKENS - SPLIT)])
    finally:
        runner.cache.free(row)
    wanted = expected.float()
    spread = (wanted - wanted.mean(-1, keepdim=True)).norm()
    gap = ((torch.cat([first, rest]).float() - wanted).norm() / spread).item()
    if not gap <= TOLERANCE:
        raise ModelError(
            f"'{model}' is not supported: its attention is not causal attention over keys and values "
            f"(over the cache its {'logits' if runner.layers.is_last else 'hidden states'} are {gap:.0%} off)"
        )


def _prompt(vocab_size: int) -> list[int]:
    """Ids from the whole vocabulary: the first ones are often special tokens, whose bfloat16 logits are chaotic."""
    return [vocab_size * (index + 1) // (NUM_TOKENS + 2) for index in range(NUM_TOKENS)]
