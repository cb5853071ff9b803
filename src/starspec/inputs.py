"""What `LLM` is asked, in the forms that vLLM takes: prompts, and sampling parameters for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from starspec.config import nearest
from starspec.errors import ConfigError, RequestError
from starspec.sampling_params import SamplingParams

Prompt = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids, or vLLM's form of either: {"prompt": text} or {"prompt_token_ids": ids}."""
ChatMessage = Mapping[str, Any]
PROMPT_KEYS = ["prompt_token_ids", "prompt"]


def as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or several, as several. Raises: RequestError if they are neither."""
    if not isinstance(prompts, str | Mapping | Sequence):
        raise RequestError(
            f"prompts must be text, token ids or a list of either, not {type(prompts).__name__}", "prompt"
        )
    if isinstance(prompts, str | Mapping) or (prompts and isinstance(prompts[0], int)):
        return [prompts]  # type: ignore[list-item]  # a list of ids is one prompt
    return list(prompts)  # type: ignore[arg-type]


def unwrapped(prompt: Prompt) -> str | Sequence[int]:
    """The text or the ids of a prompt. If it has both, the ids win, as in vLLM. Raises: RequestError if it has none."""
    found: object = prompt
    if isinstance(prompt, Mapping):
        for key in prompt:
            if key not in PROMPT_KEYS:
                raise RequestError(f"a prompt has no key '{key}'{nearest(str(key), PROMPT_KEYS)}", "prompt")
        key, found = next(((key, prompt[key]) for key in PROMPT_KEYS if prompt.get(key) is not None), ("", None))
        if key == "prompt_token_ids" and not _are_ids(found):
            raise RequestError("prompt_token_ids must be a list of token ids", "prompt")
    if not isinstance(found, str) and not _are_ids(found):
        raise RequestError("a prompt must be text or a list of token ids", "prompt")
    return cast("str | Sequence[int]", found)


def _are_ids(found: object) -> bool:
    is_list = isinstance(found, Sequence) and not isinstance(found, str | bytes | bytearray | memoryview)
    ids = cast("Sequence[object]", found)
    return is_list and all(isinstance(each, int) and not isinstance(each, bool) for each in ids)


def params_for(
    prompts: Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None
) -> Sequence[SamplingParams]:
    """The parameters of each prompt: the same for all, or one of each. Raises: ConfigError if they do not fit."""
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * len(prompts)
    if not isinstance(params, Sequence) or not all(isinstance(each, SamplingParams) for each in params):
        raise ConfigError("sampling_params must be a SamplingParams, or a list of one for each prompt")
    if len(params) != len(prompts):
        raise ConfigError(f"{len(prompts)} prompts but {len(params)} sampling_params")
    return params
