"""Which prompts a head is measured on, and how far its greedy chains go on them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from starspec.errors import ConfigError
from starspec.harness.datasets import Prompt
from starspec.train.features import Text, batches_of, collate
from starspec.train.head import TrainedHead
from starspec.train.unroll import Batch, unroll


def split(texts: Sequence[Text], prompts: Sequence[Prompt], every: int) -> tuple[list[Text], list[Text]]:
    """Divide texts into held-out ones and training ones.

    The text of a prompt alone decides. So a head that starts from an earlier one is not measured on prompts that the
    earlier one learned, even if their order or number changed. If no text is chosen, one of them is held out.

    Args:
        prompts: a text names the index of its prompt.
        every: about one of so many prompts is held out. Only its greedy answers are for measuring.
    Returns: held-out texts, training texts.
    Raises: ConfigError if there is nothing to learn from.
    """
    numbers = {text.index: _number_of(prompts[text.index]) for text in texts}
    chosen = {index for index, number in numbers.items() if number % every == 0}
    greedy = {text.index for text in texts if text.is_greedy}
    if greedy and not chosen & greedy:
        chosen.add(min(greedy, key=numbers.__getitem__))
    learnt = [text for text in texts if text.index not in chosen]
    if not learnt:
        raise ConfigError("there are too few answers to learn from: more prompts are needed")
    return [text for text in texts if text.index in chosen and text.is_greedy], learnt


def _number_of(prompt: Prompt) -> int:
    return int.from_bytes(hashlib.sha256(prompt.text.encode()).digest()[:8])


BATCH_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class ChainAcceptance:
    """Acceptance of a head's chains."""

    num_tokens: int  # emitted tokens: accepted ones and one of the target in each round
    num_rounds: int
    right_by_step: tuple[float, ...]  # share of right tokens at step k, where all before were right

    @property
    def length(self) -> float:
        """Tokens a round."""
        return self.num_tokens / max(self.num_rounds, 1)


@torch.inference_mode()
def chain_acceptance(
    head: TrainedHead,
    texts: Sequence[Text],
    embedding: Tensor,
    lm_head: Tensor,
    draft_token_ids: Tensor | None,
    num_steps: int = 4,
) -> ChainAcceptance:
    """Simulate greedy chains of `num_steps` over greedy answers."""
    num_tokens = num_rounds = 0
    tried, right = [0] * num_steps, [0] * num_steps
    rows = lm_head if draft_token_ids is None else lm_head[draft_token_ids]
    lengths = [len(text) for text in texts]
    order = sorted(range(len(texts)), key=lambda index: lengths[index])
    for indices in batches_of(lengths, order, BATCH_TOKENS):
        batch = collate([texts[index] for index in indices]).to(embedding.device)
        with torch.autocast(embedding.device.type, torch.bfloat16, enabled=embedding.dtype == torch.bfloat16):
            is_right = drawn_right(head, batch, embedding, rows, draft_token_ids, num_steps)
        for line, answer_length in zip(is_right.tolist(), batch.answer_lengths.tolist(), strict=True):
            runs = [_leading(each) for each in line]
            start = 0  # the prefill gives the answer's first token
            while start < answer_length - 1:
                run = min(runs[start], answer_length - 1 - start)
                for step in range(min(num_steps, answer_length - 1 - start)):
                    tried[step] += run >= step
                    right[step] += run > step
                gained = min(run + 1, answer_length - 1 - start)
                num_tokens, num_rounds, start = num_tokens + gained, num_rounds + 1, start + gained
    return ChainAcceptance(num_tokens, num_rounds, tuple(r / max(t, 1) for r, t in zip(right, tried, strict=True)))


def drawn_right(
    head: TrainedHead,
    batch: Batch,
    embedding: Tensor,
    rows: Tensor,
    draft_token_ids: Tensor | None,
    num_steps: int,
) -> Tensor:
    """[B, A, steps] bool: is step k's first choice the answer's token m + 1 + k?"""
    found = []
    num_slots = batch.token_ids.shape[1] - 1
    ends = (batch.prompt_lengths + batch.answer_lengths)[:, None]
    for step, h in enumerate(unroll(head, batch, embedding, num_steps)):
        choice = torch.stack([(head.spoken(line).to(rows.dtype) @ rows.T).argmax(-1) for line in h])
        if draft_token_ids is not None:
            choice = draft_token_ids.to(choice.device)[choice]
        indices = batch.anchors + 2 + step
        found.append((choice == batch.token_ids.gather(1, indices.clamp(max=num_slots))) & (indices < ends))
    return torch.stack(found, -1)


def _leading(flags: Sequence[bool]) -> int:
    """How many are true before the first that is not."""
    return flags.index(False) if False in flags else len(flags)
