"""Parameters of other servers that this one does not support. They are refused by name, not ignored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import structlog

from starspec.errors import RequestError

UNSUPPORTED: Final[Mapping[str, tuple[object, ...]]] = {
    # name: values with no effect, besides null
    "add_special_tokens": (False,),  # of a chat, whose template adds them
    "allowed_token_ids": (),
    "audio": (),
    "bad_words": ([],),
    "best_of": (1,),
    "cache_salt": (),
    "chat_template": (),
    "documents": ([],),
    "early_stopping": (False,),
    "echo": (False,),
    "function_call": ("none",),
    "functions": ([],),
    "guided_choice": (),
    "guided_decoding_backend": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "kv_transfer_params": (),
    "length_penalty": (1,),
    "logits_processors": ([],),
    "mm_processor_kwargs": (),
    "modalities": (["text"],),
    "prediction": (),
    "priority": (0,),
    "prompt_embeds": (),
    "prompt_logprobs": (),
    "reasoning_effort": (),
    "response_format": ({"type": "text"},),
    "return_tokens_as_token_ids": (False,),
    "spaces_between_special_tokens": (True,),
    "store": (False,),
    "structured_outputs": (),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "truncate_prompt_tokens": (),
    "typical_p": (1,),
    "use_beam_search": (False,),
    "verbosity": (),
    "vllm_xargs": ({},),
    "web_search_options": (),
}

OF_A_MESSAGE: Final[Mapping[str, tuple[object, ...]]] = {  # what a chat template would have to render
    "audio": (),
    "function_call": (),
    "reasoning": ("",),
    "reasoning_content": ("",),
    "tool_call_id": (),
    "tool_calls": ([],),
}

log = structlog.get_logger()


def refuse_unsupported(extras: Mapping[str, Any] | None) -> None:
    """Check the keys of a body that are not fields of its schema.

    Raises: RequestError that names the first unsupported parameter.
    Effects: logs unknown names at debug level; they have no effect, as in vLLM.
    """
    _refuse(extras or {}, UNSUPPORTED, "")


def refuse_unsupported_parts(index: int, extras: Mapping[str, Any] | None) -> None:
    """As `refuse_unsupported`, for the keys of one chat message."""
    _refuse(extras or {}, OF_A_MESSAGE, f"messages[{index}].")


def _refuse(extras: Mapping[str, Any], unsupported: Mapping[str, tuple[object, ...]], where: str) -> None:
    for name, value in extras.items():
        if name not in unsupported:
            log.debug("unknown request parameter ignored", param=ascii(where + name))
        elif value is not None and value not in unsupported[name]:
            raise RequestError(f"{where}{name} is not supported", where + name)
