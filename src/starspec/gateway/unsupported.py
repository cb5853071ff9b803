"""Parameters of other servers that this one does not support. They are refused by name, not ignored."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Any, Final

import structlog

from starspec.errors import RequestError
from starspec.gateway.schema import ChatCompletionRequest, CompletionRequest
from starspec.quoting import quoted, shortened

UNSUPPORTED: Final[Mapping[str, tuple[object, ...]]] = {
    # name: values with no effect, besides null
    "add_special_tokens": (False,),  # of a chat, whose template adds them
    "allowed_token_ids": (),
    "audio": (),
    "background": (False,),
    "best_of": (1,),
    "cache_salt": (),
    "chat_template": (),
    "context_management": (),
    "conversation": (),
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
    "guided_whitespace_pattern": (),
    "include": ([],),
    "kv_transfer_params": (),
    "length_penalty": (1,),
    "logits_processors": ([],),
    "max_tool_calls": (),
    "media_io_kwargs": ({},),
    "mm_processor_kwargs": ({},),
    "modalities": (["text"],),
    "moderation": (),
    "prediction": (),
    "previous_response_id": (),
    "priority": (0,),
    "prompt": (),
    "prompt_embeds": (),
    "reasoning": ({},),
    "reasoning_effort": (),
    "repetition_detection": (),
    "return_tokens_as_token_ids": (False,),
    "spaces_between_special_tokens": (True,),
    "store": (False,),
    "structural_tag": (),
    "suffix": ("",),
    "thinking_token_budget": (),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "truncate_prompt_tokens": (),
    "truncation": ("disabled",),
    "typical_p": (1,),
    "use_beam_search": (False,),
    "verbosity": (),
    "vllm_xargs": ({},),
    "web_search_options": (),
}

WITHOUT_EFFECT: Final = frozenset(  # clients send them, and no value of theirs changes an answer's text
    {
        "include_reasoning",
        "metadata",
        "parallel_tool_calls",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "request_id",
        "safety_identifier",
        "service_tier",
    }
)

OF_A_MESSAGE: Final[Mapping[str, tuple[object, ...]]] = {  # what a chat template would have to render
    "audio": (),
    "function_call": (),
    "prefix": (False,),
    "refusal": ("",),
}

NEAR: Final = 0.7  # of difflib's ratio
NAMED_OTHERWISE: Final[Mapping[str, str]] = {  # a field of one route -> what another one calls it
    "max_tokens": "max_output_tokens",
    "logprobs": "top_logprobs",
}
FIELDS_OF: Final[Mapping[str, Collection[str]]] = {
    "completions": CompletionRequest.model_fields,
    "chats": ChatCompletionRequest.model_fields,
}
OLD_TOOLS: Final = "chats take tools and tool_choice in its place: use those, or leave this out"
STATELESS: Final = "this server keeps no responses: send the whole conversation as input, and leave this out"
OLD_GUIDED: Final = 'use structured_outputs in its place, as {"json": ...}, "regex", "choice" or "grammar"'
ADVICE: Final[Mapping[str, str]] = {
    **dict.fromkeys(("functions", "function_call"), OLD_TOOLS),
    **dict.fromkeys(("tools", "tool_choice"), "tools are for /v1/chat/completions: ask there, or leave this out"),
    **dict.fromkeys(("guided_choice", "guided_grammar", "guided_json", "guided_regex"), OLD_GUIDED),
    **dict.fromkeys(("conversation", "previous_response_id", "store"), STATELESS),
    "best_of": "ask for as many answers with n and logprobs, and choose among them yourself, or leave this out",
    "prefix": "use continue_final_message of the request in its place, or leave this out",
    "refusal": "send it as content, or leave it out",
    "prediction": "it is for /v1/chat/completions: ask there, or leave this out",
    "echo": "/v1/completions can repeat its prompt, a chat cannot: leave this out, or ask there",
    "suffix": (
        "this server only continues texts: write the text around the gap into the prompt, in the form that your model "
        "was trained with, or leave this out"
    ),
}

log = structlog.get_logger()


def refuse_unsupported(extras: Mapping[str, Any] | None, fields: Collection[str]) -> None:
    """Check the keys of a body that are not fields of its schema.

    Args:
        fields: the fields of the schema.
    Raises: RequestError that names the first parameter that is unknown or not supported.
    """
    for name, value in (extras or {}).items():
        if name in UNSUPPORTED:
            _refuse(name, value, UNSUPPORTED[name], "")
        elif name not in WITHOUT_EFFECT:
            raise RequestError(_unknown(name, fields), shortened(name))


def _unknown(name: str, fields: Collection[str]) -> str:
    """The sentence about a key that is none of the fields."""
    places = [place for place, known in FIELDS_OF.items() if name in known]
    meant = NAMED_OTHERWISE.get(name, "")
    if places and meant not in fields:
        return f"{name} is for {' and '.join(places)}: ask there, or leave this out"
    begin = shortened(name)  # a name may have 4 MiB
    same = [each for each in fields if each.replace("_", "") == begin.replace("_", "").lower()]  # as topP
    near = [meant] if meant in fields else same or get_close_matches(begin, fields, n=1, cutoff=NEAR)
    hint = f"; did you mean '{near[0]}'?" if near else ": leave it out"
    return f"unknown parameter {quoted(name)}{hint}"


def refuse_unsupported_parts(index: int, extras: Mapping[str, Any] | None) -> None:
    """Check the keys of one chat message that are not fields of its schema.

    Raises: RequestError that names the first part that is not supported.
    Effects: logs unknown names at debug level; templates do not see them.
    """
    for name, value in (extras or {}).items():
        if name in OF_A_MESSAGE:
            _refuse(name, value, OF_A_MESSAGE[name], f"messages[{index}].")
        else:
            log.debug("unknown part of a message ignored", param=f"messages[{index}].{quoted(name)}")


def _refuse(name: str, value: Any, without_effect: tuple[object, ...], where: str) -> None:
    if value is not None and value not in without_effect:
        raise RequestError(f"{where}{name} is not supported: {ADVICE.get(name, 'leave it out')}", where + name)
