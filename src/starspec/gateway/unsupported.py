"""Parameters that other servers know and this one does not: refused by name, never silently ignored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import structlog

from starspec.errors import RequestError

UNSUPPORTED: Final[Mapping[str, tuple[object, ...]]] = {
    # name: values that ask for nothing, besides null
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
    "web_search_options": (),
}

log = structlog.get_logger()


def refuse_unsupported(extras: Mapping[str, Any] | None) -> None:
    """Judge the keys of a body that are no fields of its schema.

    Raises: RequestError naming the first parameter that asks for something we cannot do.
    Effects: names nobody knows are logged at debug level and have no effect, as in vLLM.
    """
    for name, value in (extras or {}).items():
        if name not in UNSUPPORTED:
            log.debug("unknown request parameter ignored", param=ascii(name))
        elif value is not None and value not in UNSUPPORTED[name]:
            raise RequestError(f"{name} is not supported", name)
