"""From sampling parameters to what a target runs: one RequestSpec for each answer."""

from __future__ import annotations

from collections.abc import Sequence

from starspec.sampling_params import SamplingParams
from starspec.wire.messages import RequestSpec


def request_specs(
    prompt_token_ids: Sequence[int],
    params: SamplingParams,
    eos_token_ids: tuple[int, ...],
    num_draft_tokens: int | None = None,
    relaxed_tau: float = 0.0,
) -> list[RequestSpec]:
    """One spec for each of the `n` answers to a prompt. Each has its own seed.

    Args:
        num_draft_tokens: None = the target's own choice, 0 = do not speculate.
        relaxed_tau: of relaxed verification, 0 to 1; 0 = strict.
    """
    return [
        RequestSpec(
            prompt_token_ids=list(prompt_token_ids),
            sampling=sampling,
            max_tokens=params.max_tokens,
            stop=params.stop_strings,
            include_stop_str_in_output=params.include_stop_str_in_output,
            skip_special_tokens=params.skip_special_tokens,
            logprobs=params.logprobs,
            num_draft_tokens=num_draft_tokens,
            relaxed_tau=relaxed_tau,
        )
        for sampling in params.sampling_specs(eos_token_ids)
    ]
