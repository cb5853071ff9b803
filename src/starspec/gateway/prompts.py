"""Text to tokens and back: prompts, chat templates, and checks of token ids."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final, TypeVar

from starspec.errors import ContextTooLong, RequestError
from starspec.gateway.chat_template import ChatTemplate
from starspec.gateway.reasoning import OPENING, Thinking, thinks
from starspec.gateway.request_body import parse_body
from starspec.gateway.schema import ChatMessage, ChatPrompt, FunctionTool, ToolCall
from starspec.gateway.token_text import TokenText
from starspec.gateway.tools import check_schemas, known, syntax_of
from starspec.gateway.unsupported import refuse_unsupported_parts
from starspec.grammars.vocabulary import special_tokens_of
from starspec.ids import BadWords
from starspec.models.loading.tokenizer import bad_words_of
from starspec.quoting import quoted
from starspec.sampling.grammar import check_size

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

NUM_WORKERS: Final = 4  # threads; one that renders a slow template leaves three
PIECE: Final = 2**18  # characters of a text that is tokenized without counting first
FEW_LAST: Final = 16  # tokens of a prompt that show how it ends
FEW_TOKENS: Final = 2**13  # decoded in a few milliseconds
MAX_WRITTEN_BYTES: Final = 2**21  # of one value that a template may write as JSON; half of the longest body
UNKNOWN_CONTEXT: Final = 2**17  # tokens; assumed by /tokenize while no target is connected

T = TypeVar("T")


class PromptCodec:
    """A transformers tokenizer on threads of its own, so that long prompts do not block the event loop.

    Args:
        tokenizer: a transformers tokenizer.
        eos_token_ids: the tokens that end an answer of this model.
        clock: seconds, monotonic.
    """

    def __init__(
        self, tokenizer: Any, eos_token_ids: tuple[int, ...], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._tokenizer = tokenizer
        self._template = ChatTemplate(tokenizer, clock)
        self.workers = ThreadPoolExecutor(max_workers=NUM_WORKERS, thread_name_prefix="tokenizer")
        self.eos_token_ids = eos_token_ids
        template = _template_with_tools(tokenizer)
        self.special_tokens = special_tokens_of(tokenizer)  # for which a grammar can ask
        added = {token.content for token in tokenizer.added_tokens_decoder.values()}
        syntax = syntax_of(template)
        self.tool_syntax = syntax and replace(syntax, are_tokens={syntax.opening, syntax.closing} <= added)
        self.thinks = thinks(template)
        self.vocab_size = len(tokenizer)
        self.tokens = TokenText(tokenizer)
        self._longest_token = max(map(len, tokenizer.get_vocab()), default=1)  # characters
        self._encode(".", True)  # the first call may change the tokenizer; later ones only read it, on any thread

    def close(self) -> None:
        self.workers.shutdown(wait=False, cancel_futures=True)

    def max_chars(self, max_model_len: int | None) -> int:
        """Characters of a text that can fit into the context. vLLM has the same bound.

        Args:
            max_model_len: None = not known yet.
        """
        return self._longest_token * (UNKNOWN_CONTEXT if max_model_len is None else max_model_len)

    async def encode(
        self, text: str, param: str, max_model_len: int | None, *, add_special_tokens: bool = True
    ) -> list[int]:
        """The token ids of a text.

        Raises: ContextTooLong, naming `param`, if it has more characters than can fit into the context, or clearly
            more tokens.
        """
        self._check_length(text, param, max_model_len)
        return await self.run(self._encode_checked, text, param, max_model_len, add_special_tokens)

    async def encode_chat(self, prompt: ChatPrompt, max_model_len: int | None) -> list[int]:
        """The token ids of a conversation, rendered by the model's chat template.

        Raises: RequestError if the model has no template, if the template refuses the conversation or takes too long,
            or if a message has parts that are not supported. ContextTooLong as `encode`.
        """
        if not getattr(self._tokenizer, "chat_template", None):
            raise RequestError("this model has no chat template; use /v1/completions", "messages")
        extra = _checked_kwargs(prompt.chat_template_kwargs or {})
        if prompt.tools:
            known(self.tool_syntax, "tools")
        continues = bool(prompt.continue_final_message)
        opens = not continues if prompt.add_generation_prompt is None else prompt.add_generation_prompt
        if continues and opens:
            raise RequestError(
                "continue_final_message and add_generation_prompt exclude each other", "continue_final_message"
            )
        return await self.run(self._encode_chat, prompt.messages, prompt.tools, opens, continues, extra, max_model_len)

    async def thinking_of(self, prompt: Sequence[int]) -> Thinking | None:
        """Where an answer to this prompt begins; None if the model does not think aloud."""
        if not self.thinks:
            return None
        end = await self.decode(prompt[-FEW_LAST:])
        return Thinking.HAS_BEGUN if end.rstrip().endswith(OPENING) else Thinking.MAY_BEGIN

    def bad_words(self, texts: Sequence[str]) -> BadWords:
        """As `bad_words_of`. Run it on a worker thread."""
        return bad_words_of(self._tokenizer, texts)

    def is_special(self, token: str) -> bool:
        """Whether it is a special token, which texts of answers leave out unless they are told not to."""
        return token in self._tokenizer.all_special_tokens

    async def decode(self, token_ids: Sequence[int]) -> str:
        """The text of token ids, special tokens included. Raises: RequestError for ids outside the vocabulary."""
        return await self.run(self._decode, token_ids)

    def check_ids(self, token_ids: Sequence[int], param: str) -> None:
        """Raises: RequestError, naming `param`, if an id is outside the vocabulary."""
        largest = max(token_ids, default=0)
        if largest >= self.vocab_size:
            raise RequestError(
                f"{param}: token id {quoted(largest)} is outside the vocabulary of {self.vocab_size}", param
            )

    async def run(self, work: Callable[..., T], *args: object) -> T:
        """Run `work` on a worker thread. If this is cancelled, work that has not begun is not begun."""
        return await asyncio.get_running_loop().run_in_executor(self.workers, work, *args)

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Long texts without offsets and masks: making those of a million tokens holds Python's lock for 45 ms."""
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if len(text) > PIECE and backend is not None:
            (encoding,) = backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
            return list(encoding.ids)
        return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens))

    def _encode_checked(self, text: str, param: str, max_model_len: int | None, add_special_tokens: bool) -> list[int]:
        """As `_encode`, unless the text has more than twice the tokens of the context.

        Tokens take memory and time long before they are too many to run. So a long text is tokenized in pieces first,
        which are counted. A cut makes a few tokens of one, hence twice.
        """
        num_tokens, most = 0, 2 * (UNKNOWN_CONTEXT if max_model_len is None else max_model_len)
        for start in range(0, len(text) if len(text) > PIECE else 0, PIECE):
            num_tokens += len(self._encode(text[start : start + PIECE], False))
            if num_tokens > most:
                raise ContextTooLong(
                    f"{param}: the first {start + PIECE} of {len(text)} characters have about {num_tokens} tokens, "
                    f"more than fit into the context of {most // 2}",
                    param,
                )
        return self._encode(text, add_special_tokens)

    def _decode(self, token_ids: Sequence[int]) -> str:
        """Many tokens as a batch of one: the tokenizers library releases Python's lock for batches only."""
        self.check_ids(token_ids, "tokens")
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if len(token_ids) > FEW_TOKENS and backend and not self._tokenizer.clean_up_tokenization_spaces:
            return str(backend.decode_batch([list(token_ids)], skip_special_tokens=False)[0])
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=False))

    def _encode_chat(
        self,
        given: Sequence[ChatMessage],
        tools: Sequence[FunctionTool] | None,
        opens: bool,
        continues: bool,
        extra: Mapping[str, Any],
        max_model_len: int | None,
    ) -> list[int]:
        for index, each in enumerate(given):
            refuse_unsupported_parts(index, each.model_extra)
            for name in ("tool_calls", "tool_call_id"):
                if getattr(each, name):
                    known(self.tool_syntax, f"messages[{index}].{name}")
            if (each.reasoning or each.reasoning_content) and not self.thinks:
                name = f"messages[{index}].{'reasoning' if each.reasoning else 'reasoning_content'}"
                raise RequestError(f"{name} is not supported: this model does not think aloud, leave it out", name)
        arguments = "".join(call.function.arguments for each in given for call in each.tool_calls or ())
        self._check_length(arguments, "messages", max_model_len)  # before they are parsed
        messages = [_template_message(index, each) for index, each in enumerate(given)]
        for message in messages:
            self._check_length(message["content"], "messages", max_model_len)
        check_schemas(tools or ())
        _check_written("chat_template_kwargs", extra)
        told = [each.model_dump(exclude_none=True) for each in tools or ()] or None
        text = self._template.render(messages, told, opens, continues, extra)
        self._check_length(text, "messages", max_model_len)
        return self._encode_checked(text, "messages", max_model_len, False)

    def _check_length(self, text: str, param: str, max_model_len: int | None) -> None:
        most = self.max_chars(max_model_len)
        if len(text) > most:
            raise ContextTooLong(
                f"{param}: the prompt has {len(text)} characters; at most {most} can fit into the context"
                + (f" of {max_model_len} tokens" if max_model_len is not None else ""),
                param,
            )


def _template_with_tools(tokenizer: Any) -> str | None:
    """The chat template for conversations with tools, if the model has one."""
    if not getattr(tokenizer, "chat_template", None):
        return None
    return str(tokenizer.get_chat_template(tools=[]))


def _template_message(index: int, message: ChatMessage) -> dict[str, Any]:
    content = message.content
    text = content if isinstance(content, str) else "\n".join(part.text for part in content or [])
    more: dict[str, Any] = {
        name: value for name in ("name", "tool_call_id") if (value := getattr(message, name)) is not None
    }
    if reasoning := message.reasoning or message.reasoning_content:
        more["reasoning_content"] = more["reasoning"] = reasoning
    if message.tool_calls:
        more["tool_calls"] = [_template_call(index, *each) for each in enumerate(message.tool_calls)]
    return {"role": message.role, "content": text, **more}


def _template_call(message: int, index: int, call: ToolCall) -> dict[str, Any]:
    """A call as templates want it: its arguments are an object, not text."""
    name = f"messages[{message}].tool_calls[{index}].function.arguments"
    try:
        arguments = parse_body((call.function.arguments or "{}").encode(), name)
    except RequestError as error:
        raise RequestError(str(error), name) from error
    if not isinstance(arguments, dict):
        raise RequestError(f"{name} must be a JSON object", name)
    _check_written(name, arguments)
    return {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": arguments}}


def _checked_kwargs(given: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in given:
        if name in RESERVED_KWARGS:
            raise RequestError(f"chat_template_kwargs must not set {name}", "chat_template_kwargs")
    return given


def _check_written(name: str, value: Any) -> None:
    """Check what a template may write as JSON, which holds Python's lock to its end. Raises: RequestError."""
    try:
        check_size(value, MAX_WRITTEN_BYTES)
    except ValueError as error:
        raise RequestError(f"{name} {error}", name) from error
