"""Builds replies in OpenAI's two formats, text completion and chat completion, whole or as stream chunks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from starspec.errors import RequestError
from starspec.gateway.answers import Answer, finish_reason_of
from starspec.gateway.chat_text import ChatText
from starspec.gateway.generation_request import ReplyOptions
from starspec.gateway.replies import (
    AnyChoice,
    ChatChoice,
    ChatDeltaChoice,
    CompletionChoice,
    CompletionLogprobs,
    Delta,
    LikelyToken,
    PromptLogprobs,
    Reply,
    RequestMetrics,
    Usage,
    Verification,
    VerifiedPlace,
)
from starspec.gateway.token_text import (
    TokenText,
    chat_logprobs,
    completion_logprobs,
    echoed_logprobs,
    joined,
    vllm_logprobs,
)
from starspec.speculation.tree import ROOT
from starspec.wire.messages import EngineOutput, TokenLogprob


class ReplyFormat(Protocol):
    """One of the two formats."""

    whole_object: str
    chunk_object: str

    def opening(self, answer: Answer) -> AnyChoice | None:
        """The chunk that opens an answer's stream; None if the format has none."""
        ...

    def part(self, answer: Answer, output: EngineOutput) -> AnyChoice | None:
        """The chunk for one output, which `answer` already includes; None if it would be empty."""
        ...

    def whole(self, answer: Answer) -> AnyChoice:
        """The choice for a finished answer."""
        ...

    def prompt_logprobs(self, answer: Answer) -> PromptLogprobs | UnsetType:
        """Those that the reply has, rather than each of its choices."""
        ...


class CompletionFormat:
    """`/v1/completions`."""

    whole_object = chunk_object = "text_completion"

    def __init__(self, options: ReplyOptions, tokens: TokenText) -> None:
        self._options = options
        self._tokens = tokens
        self._unsent: dict[int, list[TokenLogprob]] = {}  # answer -> those of tokens whose text is still held back

    def opening(self, answer: Answer) -> AnyChoice | None:
        """The prompt, if it is to be echoed."""
        if not self._options.echo:
            return None
        logprobs = None
        if self._options.num_top_logprobs is not None:
            logprobs = self._of_prompt(answer)
        return CompletionChoice(index=answer.index, text=answer.prompt_text, logprobs=logprobs)

    def part(self, answer: Answer, output: EngineOutput) -> AnyChoice | None:
        if not output.text and _may_be_left_out(output, self._options):
            return None
        logprobs = None
        if self._options.num_top_logprobs is not None:
            logprobs = self._of_answer(self._sendable(answer, output), answer)
        return CompletionChoice(
            index=answer.index,
            text=output.text,
            logprobs=logprobs,
            finish_reason=finish_reason_of(output),
            stop_reason=output.stop_reason,
            token_ids=_token_ids(output.token_ids, self._options),
            prompt_token_ids=_prompt_token_ids(answer, output, self._options),
        )

    def whole(self, answer: Answer) -> AnyChoice:
        logprobs = None
        if self._options.num_top_logprobs is not None:
            logprobs = self._of_answer(answer.logprobs, answer)
            if self._options.echo:
                logprobs = joined(self._of_prompt(answer), logprobs)
        return CompletionChoice(
            index=answer.index,
            text=answer.prompt_text + answer.text,
            logprobs=logprobs,
            prompt_logprobs=_prompt_logprobs(answer, self._options, self._tokens),
            finish_reason=answer.finish_reason,
            stop_reason=answer.stop_reason,
            token_ids=_token_ids(answer.token_ids, self._options),
            prompt_token_ids=_token_ids(answer.prompt_token_ids, self._options),
        )

    def _of_prompt(self, answer: Answer) -> CompletionLogprobs:
        num_top = self._options.num_top_logprobs or 0
        return echoed_logprobs(
            answer.prompt_token_ids, answer.prompt_logprobs, self._tokens, answer.prompt_text, num_top
        )

    def _of_answer(self, entries: list[TokenLogprob], answer: Answer) -> CompletionLogprobs:
        return completion_logprobs(entries, self._tokens, answer.text, len(answer.prompt_text))

    def prompt_logprobs(self, answer: Answer) -> PromptLogprobs | UnsetType:  # noqa: ARG002 (each choice has its own)
        return UNSET

    def _sendable(self, answer: Answer, output: EngineOutput) -> list[TokenLogprob]:
        """Those whose text has been sent, and all at the end. The offsets of others change if a stop cuts the text."""
        entries = [*self._unsent.pop(answer.index, ()), *(output.logprobs or ())]
        if output.finish_reason is not None:
            return entries
        num = sum(entry.text_offset < len(answer.text) for entry in entries)
        self._unsent[answer.index] = entries[num:]
        return entries[:num]


class ChatFormat:
    """`/v1/chat/completions`."""

    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, options: ReplyOptions, tokens: TokenText) -> None:
        self._options = options
        self._tokens = tokens
        self._streams: dict[int, ChatText] = {}  # by answer

    def opening(self, answer: Answer) -> AnyChoice | None:
        return ChatDeltaChoice(
            index=answer.index,
            delta=Delta("assistant", content=UNSET if self._options.tool_use or self._options.thinking else ""),
            prompt_token_ids=_token_ids(answer.prompt_token_ids, self._options),
        )

    def part(self, answer: Answer, output: EngineOutput) -> AnyChoice | None:
        text = self._streams.setdefault(answer.index, ChatText(self._options))
        delta = text.delta(output.text, is_last=output.finish_reason is not None)
        if delta == Delta() and _may_be_left_out(output, self._options):
            return None
        logprobs = None
        if self._options.num_top_logprobs is not None:
            logprobs = chat_logprobs(output.logprobs or [], self._tokens, self._options.num_top_logprobs)
        return ChatDeltaChoice(
            index=answer.index,
            delta=delta,
            logprobs=logprobs,
            finish_reason=text.reason(finish_reason_of(output)),
            stop_reason=output.stop_reason,
            token_ids=_token_ids(output.token_ids, self._options),
        )

    def whole(self, answer: Answer) -> AnyChoice:
        logprobs = None
        if self._options.num_top_logprobs is not None:
            logprobs = chat_logprobs(answer.logprobs, self._tokens, self._options.num_top_logprobs)
        text = ChatText(self._options)
        return ChatChoice(
            index=answer.index,
            message=text.message(answer.text),
            logprobs=logprobs,
            finish_reason=text.reason(answer.finish_reason),
            stop_reason=answer.stop_reason,
            token_ids=_token_ids(answer.token_ids, self._options),
            prompt_token_ids=_token_ids(answer.prompt_token_ids, self._options),
        )

    def prompt_logprobs(self, answer: Answer) -> PromptLogprobs | UnsetType:
        return _prompt_logprobs(answer, self._options, self._tokens)


class ReplyBuilder:
    """Builds the reply, or the chunks of the stream, with the fields that they share."""

    def __init__(self, reply_id: str, model: str, fingerprint: str, reply_format: ReplyFormat) -> None:
        self.reply_id = reply_id
        self.reply_format = reply_format
        self.model = model
        self.fingerprint = fingerprint
        self.created_s = int(time.time())

    def chunk(
        self,
        choices: list[AnyChoice],
        usage: Usage | UnsetType | None = UNSET,
        metrics: RequestMetrics | UnsetType = UNSET,
    ) -> Reply:
        return self._reply(self.reply_format.chunk_object, choices, usage, metrics)

    def whole(self, answers: Sequence[Answer], usage: Usage, metrics: RequestMetrics) -> Struct:
        choices = [self.reply_format.whole(answer) for answer in answers]
        reply = self._reply(self.reply_format.whole_object, choices, usage, metrics)
        return replace(reply, prompt_logprobs=self.reply_format.prompt_logprobs(answers[0]))

    def _reply(
        self,
        kind: str,
        choices: list[AnyChoice],
        usage: Usage | UnsetType | None,
        metrics: RequestMetrics | UnsetType,
    ) -> Reply:
        return Reply(
            id=self.reply_id,
            object=kind,
            created=self.created_s,
            model=self.model,
            system_fingerprint=self.fingerprint,
            choices=choices,
            usage=usage,
            metrics=metrics,
        )


class VerificationBuilder(ReplyBuilder):
    """Builds the verdict about a draft. Raises: RequestError if the target did not give one."""

    def __init__(self, reply_id: str, model: str, fingerprint: str, tokens: TokenText) -> None:
        super().__init__(reply_id, model, fingerprint, CompletionFormat(ReplyOptions(), tokens))
        self._tokens = tokens

    def whole(
        self,
        answers: Sequence[Answer],
        usage: Usage,
        metrics: RequestMetrics,  # noqa: ARG002 (of the base class: one round has no speed)
    ) -> Verification:
        (answer,) = answers
        if answer.verified is None:
            raise RequestError("the target that answered verifies no drafts: its version is old", None, 501)
        tops = enumerate(answer.verified.tops, ROOT)
        places = [VerifiedPlace(node, [self._likely(*each) for each in top]) for node, top in tops]
        return Verification(
            id=self.reply_id,
            created=self.created_s,
            model=self.model,
            system_fingerprint=self.fingerprint,
            accepted_length=len(answer.verified.accepted_nodes),
            accepted_nodes=answer.verified.accepted_nodes,
            token_ids=answer.token_ids,
            next_token_id=answer.token_ids[-1],
            next_token=self._tokens.text_of(answer.token_ids[-1]),
            places=places or UNSET,
            usage=usage,
        )

    def _likely(self, token_id: int, logprob: float) -> LikelyToken:
        return LikelyToken(token_id, self._tokens.text_of(token_id), logprob)


def _may_be_left_out(output: EngineOutput, options: ReplyOptions) -> bool:
    """Tokens without text, such as special ones, make no chunk unless the client asked for token ids or logprobs."""
    wants_tokens = options.num_top_logprobs is not None or options.has_token_ids
    return output.finish_reason is None and not wants_tokens


def _prompt_logprobs(answer: Answer, options: ReplyOptions, tokens: TokenText) -> PromptLogprobs | UnsetType:
    if options.num_prompt_logprobs is None:
        return UNSET
    return [None, *(vllm_logprobs(each, tokens, options.num_prompt_logprobs) for each in answer.prompt_logprobs)]


def _token_ids(token_ids: list[int], options: ReplyOptions) -> list[int] | UnsetType:
    return token_ids if options.has_token_ids else UNSET


def _prompt_token_ids(answer: Answer, output: EngineOutput, options: ReplyOptions) -> list[int] | UnsetType:
    """Sent once, with an answer's first tokens."""
    is_first = len(answer.token_ids) == len(output.token_ids)
    return answer.prompt_token_ids if options.has_token_ids and is_first else UNSET
