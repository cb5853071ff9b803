"""What a target in stages would say otherwise if hidden states travelled in 8 bits (`--hidden-dtype int8`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from starspec.config import ModelConfig
from starspec.config.stages import HiddenDtype
from starspec.doctor.agreement import CHUNK, Sample
from starspec.models.loading.load import load_stage
from starspec.models.runner import ForwardOutput, Segment, Stage
from starspec.stages.frames import pack, unpack


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounding:
    """The difference at each position of answers, given the same tokens before it."""

    num_stages: int
    num_positions: int
    num_same: int  # positions with the same greedy token
    mean_kl: float  # in nats, of the rounded distribution from the exact one, at temperature 1


def load_stages(target: ModelConfig, num_stages: int) -> list[Stage]:
    """Equal stages of a target. Raises: as load_stage."""
    return [load_stage(target, f"{place + 1}/{num_stages}") for place in range(num_stages)]


def examine_rounding(stages: Sequence[Stage], sample: Sample) -> Rounding:
    """Score the target's answers, with hidden states as they are and in 8 bits."""
    num_positions, num_same, kl = 0, 0, 0.0
    for job, answer in zip(sample.jobs, sample.answers, strict=True):
        asked, told = job.prompt_token_ids, answer.token_ids
        exact, rounded = (answer_logits(stages, each, asked, told).float() for each in ("model", "int8"))
        num_positions += len(told)
        num_same += int((exact.argmax(1) == rounded.argmax(1)).sum())
        exact, rounded = exact.log_softmax(1), rounded.log_softmax(1)
        kl += float((exact.exp() * (exact - rounded)).sum())
    return Rounding(
        num_stages=len(stages), num_positions=num_positions, num_same=num_same, mean_kl=kl / max(1, num_positions)
    )


def answer_logits(stages: Sequence[Stage], dtype: HiddenDtype, prompt: Sequence[int], answer: Sequence[int]) -> Tensor:
    """The logits for each token of an answer, given all tokens before it: [T, V].

    Args:
        stages: of one model, with the same free rows.
        dtype: of hidden states between them.
    """
    known, num_silent = [*prompt, *answer[:-1]], len(prompt) - 1
    [row] = {each.cache.lease() for each in stages}
    logits = []
    try:
        for start in range(0, len(known), CHUNK):
            chunk = known[start : start + CHUNK]
            num_logits = min(len(chunk), max(0, start + len(chunk) - num_silent))
            logits.append(_forward(stages, dtype, Segment(row, chunk, num_logits)).logits)
            for each in stages:
                each.cache.append(row, len(chunk))
    finally:
        for each in stages:
            each.cache.free(row)
    return torch.cat(logits)


def _forward(stages: Sequence[Stage], dtype: HiddenDtype, segment: Segment) -> ForwardOutput:
    first, *others = stages
    output = first.forward([segment])
    for each in others:
        assert output.hidden is not None, "only the last stage has no hidden states"
        num_tokens, size = output.hidden.shape
        hidden = unpack(pack(output.hidden, dtype), num_tokens, size, output.hidden, dtype)
        output = each.forward([segment], hidden=hidden)
    return output
