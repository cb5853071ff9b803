"""Text to tokens and back: prompts, chat templates, and checks of token ids."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

from starspec.errors import RequestError
from starspec.gateway.schema import ChatMessage, ChatPrompt
from starspec.gateway.token_text import TokenText
from starspec.gateway.unsupported import refuse_unsupported_parts
from starspec.models.loading.tokenizer import TEMPLATE_ERRORS

RESERVED_KWARGS: Final = frozenset(  # set by this server, or able to replace the template
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "documents",
        "max_length",
        "messages",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "sanitize_control_tokens",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)

T = TypeVar("T")


class PromptCodec:
    """A transformers tokenizer on a thread of its own, so that long prompts do not block the event loop.

    Args:
        tokenizer: a transformers tokenizer.
        eos_token_ids: the tokens that end an answer of this model.
    """

    def __init__(self, tokenizer: Any, eos_token_ids: tuple[int, ...]) -> None:
        self._tokenizer = tokenizer
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tokenizer")
        self.eos_token_ids = eos_token_ids
        self.vocab_size = len(tokenizer)
        self.tokens = TokenText(tokenizer)

    def close(self) -> None:
        self._thread.shutdown(wait=False)

    async def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The token ids of a text."""
        return await self._run(self._encode, text, add_special_tokens)

    async def encode_chat(self, prompt: ChatPrompt) -> list[int]:
        """The token ids of a conversation, rendered by the model's chat template.

        Raises: RequestError if the model has no template, if the template refuses the conversation, or if a message has
            parts that are not supported.
        """
        if not getattr(self._tokenizer, "chat_template", None):
            raise RequestError("this model has no chat template; use /v1/completions", "messages")
        extra = _checked_kwargs(prompt.chat_template_kwargs or {})
        continues = bool(prompt.continue_final_message)
        opens = not continues if prompt.add_generation_prompt is None else prompt.add_generation_prompt
        if continues and opens:
            raise RequestError(
                "continue_final_message and add_generation_prompt exclude each other", "continue_final_message"
            )
        for index, each in enumerate(prompt.messages):
            refuse_unsupported_parts(index, each.model_extra)
        messages = [_template_message(each) for each in prompt.messages]
        return await self._run(self._encode_chat, messages, opens, continues, extra)

    async def decode(self, token_ids: Sequence[int]) -> str:
        """The text of token ids, special tokens included. Raises: RequestError for ids outside the vocabulary."""
        self.check_ids(token_ids, "tokens")
        return await self._run(self._decode, list(token_ids))

    def check_ids(self, token_ids: Sequence[int], param: str) -> None:
        """Raises: RequestError, naming `param`, if an id is outside the vocabulary."""
        largest = max(token_ids, default=0)
        if largest >= self.vocab_size:
            raise RequestError(f"{param}: token id {largest} is outside the vocabulary of {self.vocab_size}", param)

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens))

    def _decode(self, token_ids: list[int]) -> str:
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=False))

    def _encode_chat(
        self, messages: list[dict[str, str]], opens: bool, continues: bool, extra: Mapping[str, Any]
    ) -> list[int]:
        render = partial(self._tokenizer.apply_chat_template, tokenize=True, return_dict=False)
        try:
            return list(render(messages, add_generation_prompt=opens, continue_final_message=continues, **extra))
        except RecursionError as error:  # messages are flat
            raise RequestError("chat_template_kwargs are nested too deeply", "chat_template_kwargs") from error
        except TEMPLATE_ERRORS as error:
            raise RequestError(f"the chat template refused the messages: {error}", "messages") from error

    async def _run(self, work: Callable[..., T], *args: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *args)


def _template_message(message: ChatMessage) -> dict[str, str]:
    content = message.content
    text = content if isinstance(content, str) else "\n".join(part.text for part in content or [])
    named = {"name": message.name} if message.name is not None else {}
    return {"role": message.role, "content": text, **named}


def _checked_kwargs(given: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in given:
        if name in RESERVED_KWARGS:
            raise RequestError(f"chat_template_kwargs must not set {name}", "chat_template_kwargs")
    return given
