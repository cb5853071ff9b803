"""From sampling parameters to what a target runs: one RequestSpec for each answer."""

from __future__ import annotations

from collections.abc import Sequence

from starspec.config import Policy
from starspec.errors import ContextTooLong
from starspec.ids import BadWords
from starspec.sampling_params import SamplingParams
from starspec.wire.messages import RequestSpec


def request_specs(
    prompt_token_ids: Sequence[int],
    params: SamplingParams,
    eos_token_ids: tuple[int, ...],
    num_draft_tokens: int | None = None,
    length_policy: Policy | None = None,
    relaxed_tau: float = 0.0,
    *,
    bad_words: BadWords = (),
) -> list[RequestSpec]:
    """One spec for each of the `n` answers to a prompt. Each has its own seed.

    Args:
        num_draft_tokens: None = the target's own choice, 0 = do not speculate.
        length_policy: None = the target's own.
        relaxed_tau: of relaxed verification, 0 to 1; 0 = strict.
        bad_words: those of `params`, as tokens of the model.
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
            prompt_logprobs=params.prompt_logprobs,
            num_draft_tokens=num_draft_tokens,
            length_policy=length_policy,
            relaxed_tau=relaxed_tau,
            grammar=params.grammar,
        )
        for sampling in params.sampling_specs(eos_token_ids, bad_words)
    ]


def check_context(num_prompt_tokens: int, max_tokens: int, param: str, limit_param: str, max_model_len: int) -> None:
    """Check that an answer of `max_tokens` fits behind its prompt. Not for a default, which is cut to what fits.

    Args:
        param: what holds the prompt, for the sentence.
        limit_param: the parameter that says `max_tokens`.
    Raises: ContextTooLong in vLLM's words, naming `limit_param`.
    """
    if num_prompt_tokens + max_tokens <= max_model_len:
        return
    raise ContextTooLong(
        f"{limit_param}: this model's maximum context length is {max_model_len} tokens. However, you requested "
        f"{num_prompt_tokens + max_tokens} tokens ({num_prompt_tokens} in the {param}, {max_tokens} in the "
        f"completion). Please reduce the length of the {param} or {limit_param}.",
        limit_param,
    )
