"""transformers' own `generate`, plain and assisted: the reference for tokens and for speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from starspec.harness.decode import Job, JobResult
from starspec.models.loading.locate import locate
from starspec.models.loading.transformers_calls import as_model_error, quiet_transformers

DRAFT_TOKENS_AT_FIRST = 5  # of the heuristic schedule


@dataclass(frozen=True, slots=True)
class Assistance:
    """How `assistant_model` is told to speculate."""

    schedule: Literal["heuristic", "constant"]
    num_tokens: int = DRAFT_TOKENS_AT_FIRST

    @property
    def name(self) -> str:
        return "heuristic" if self.schedule == "heuristic" else f"constant {self.num_tokens}"


class TransformersBaseline:
    """A model and, if given, an assistant, run by transformers.

    Args:
        target, draft: folders or hub ids.
        dtype: of both.
        eos_token_ids: end an answer; the same as for the engine that is compared.
    Raises: ModelError if one of them cannot be read.
    """

    def __init__(self, target: str, dtype: str, eos_token_ids: tuple[int, ...], draft: str | None = None) -> None:
        self._target = _load(target, dtype)
        self._draft = None if draft is None else _load(draft, dtype)
        self._eos_token_ids = list(eos_token_ids)

    def answer_all(self, jobs: Sequence[Job]) -> list[JobResult]:
        """Decode each job plainly and greedily, one after the other."""
        return [self.answer(job) for job in jobs]

    def answer(self, job: Job, assistance: Assistance | None = None) -> JobResult:
        """Decode greedily, with the draft as assistant if `assistance` is given.

        Args:
            job: with greedy sampling.
        """
        assert job.sampling.is_plain_argmax, "the baseline decodes greedily"
        options: dict[str, Any] = {}
        if assistance is not None:
            assert self._draft is not None, "assisted generation needs a draft"
            self._draft.generation_config.num_assistant_tokens = assistance.num_tokens
            self._draft.generation_config.num_assistant_tokens_schedule = assistance.schedule
            options["assistant_model"] = self._draft
        prompt = torch.tensor([job.prompt_token_ids], device=self._target.device)
        with quiet_transformers():
            output = self._target.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),  # otherwise tokens equal to the pad token would be masked
                max_new_tokens=job.max_tokens,
                do_sample=False,
                eos_token_id=self._eos_token_ids,
                pad_token_id=self._eos_token_ids[0] if self._eos_token_ids else 0,
                **options,
            )
        token_ids = output[0, len(job.prompt_token_ids) :].tolist()
        is_stopped = bool(token_ids) and token_ids[-1] in self._eos_token_ids
        return JobResult(token_ids, "stop" if is_stopped else "length")


def _load(model: str, dtype: str) -> Any:
    with as_model_error(f"'{model}' cannot be read by transformers"):
        loaded = AutoModelForCausalLM.from_pretrained(
            str(locate(model)), dtype=getattr(torch, dtype), trust_remote_code=False, use_safetensors=True
        )
    # a repetition penalty of the model's author would change greedy answers
    loaded.generation_config = GenerationConfig()
    loaded.eval().requires_grad_(requires_grad=False)
    for parameter in loaded.parameters():
        # memory-mapped weights may be evicted and read again while other methods run
        parameter.data = parameter.data.clone()
    return loaded
