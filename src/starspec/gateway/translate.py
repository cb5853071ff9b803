"""Translates an OpenAI request into a GenerationRequest. Every known parameter is used, or refused by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import msgspec

from starspec.errors import CapacityError, ContextTooLong, RequestError
from starspec.gateway.answer_form import FormChecks, form_of
from starspec.gateway.generation_request import GenerationRequest, ReplyOptions
from starspec.gateway.prompts import PromptCodec
from starspec.gateway.reasoning import CLOSING, OPENING
from starspec.gateway.responses.as_chat import as_chat, naming
from starspec.gateway.responses.schema import ResponsesRequest
from starspec.gateway.schema import (
    ChatCompletionRequest,
    CompletionRequest,
    DrawFields,
    Function,
    Prediction,
    SamplingFields,
    TokenIds,
    VerifyRequest,
)
from starspec.gateway.served_model import GenerationDefaults
from starspec.gateway.speculation import Speculation
from starspec.gateway.tools import ToolUse, wrong_parameters
from starspec.gateway.unsupported import refuse_unsupported
from starspec.policy.retry_after import NO_TARGET_S
from starspec.request_specs import check_context, request_specs
from starspec.sampling_params import SamplingParams
from starspec.structured_outputs import StructuredOutputsParams
from starspec.wire.messages import DraftToVerify, RequestSpec

DEFAULT_COMPLETION_TOKENS: Final = 16  # max_tokens of /v1/completions; a chat may fill the context
MAX_TOKENS_SENT: Final = 2**20  # prompt tokens of all answers of a request, which the targets get one by one
# log-probabilities of the tokens of prompts, kept until the reply is written: 0.1 GB, and as much text
MAX_SCORES: Final = 2**20
SEEDS: Final = 2**63  # a seed may be any integer; it is taken modulo this


class _Asked(NamedTuple):
    """A request of any kind, before its prompts are checked."""

    request: SamplingFields
    params: SamplingParams
    prompts: Sequence[TokenIds]
    prompt_param: str  # where the prompts came from
    limit_param: str | None  # what limits the answer; None = a default does
    max_model_len: int | None  # the targets' context; None = no target is connected


class Translator:
    """Translates requests with the model's tokenizer and defaults."""

    def __init__(self, codec: PromptCodec, defaults: GenerationDefaults) -> None:
        self._codec = codec
        self._defaults = defaults
        self._form_checks = FormChecks(codec.special_tokens)

    def close(self) -> None:
        self._form_checks.close()

    async def completion(self, request: CompletionRequest, max_model_len: int | None) -> GenerationRequest:
        """Translate a request.

        Args:
            max_model_len: the targets' context; None = no target is connected.
        Raises: RequestError, naming the parameter, for anything that is not supported. Only then CapacityError, if the
            context is not known.
        """
        refuse_unsupported(request.model_extra, CompletionRequest.model_fields)
        limit = DEFAULT_COMPLETION_TOKENS if request.max_tokens is None else request.max_tokens
        is_only_prompt = bool(request.echo) and limit == 0
        if limit < 1 and not is_only_prompt:
            raise RequestError("max_tokens: must be at least 1", "max_tokens")
        params = await self._codec.run(self._params, request, 1 if is_only_prompt else limit, request.logprobs)
        given = _several(request.prompt)
        prompts = await self._prompts(request, given, max_model_len)
        limit_param = "max_tokens" if request.max_tokens is not None else None
        made = await self._made(_Asked(request, params, prompts, "prompt", limit_param, max_model_len))
        if not request.echo:
            return made
        texts = [each if isinstance(each, str) else await self._codec.decode(each) for each in given]
        if not is_only_prompt:  # a character that a prompt begins and its answer completes is the answer's
            whole = self._codec.tokens.without_open_character
            texts = [whole(text, prompt) for text, prompt in zip(texts, prompts, strict=True)]
        options = replace(made.options, echo=True, has_answer=not is_only_prompt)
        return replace(made, options=options, prompt_texts=tuple(texts))

    async def verification(self, request: VerifyRequest, max_model_len: int | None) -> GenerationRequest:
        """As `completion`: one answer, which is the verdict about a draft."""
        refuse_unsupported(request.model_extra, VerifyRequest.model_fields)
        try:
            draft = DraftToVerify(request.draft_token_ids, request.parents, request.top_logprobs)
        except ValueError as error:
            raise RequestError(f"parents: {error}", "parents") from error
        self._codec.check_ids(draft.token_ids, "draft_token_ids")
        sampling = {name: getattr(request, name) for name in DrawFields.model_fields}
        completion = CompletionRequest.model_construct(
            prompt=request.prompt, add_special_tokens=request.add_special_tokens, ignore_eos=True, **sampling
        )
        params = await self._codec.run(self._params, completion, 1 + max(draft.tree.depths, default=0), None)
        prompts = await self._prompts(completion, [request.prompt], max_model_len)
        made = await self._made(_Asked(completion, params, prompts, "prompt", "draft_token_ids", max_model_len))
        spec = msgspec.structs.replace(made.specs[0], draft=draft, num_draft_tokens=0)
        return replace(made, specs=(spec,))

    async def chat(self, request: ChatCompletionRequest, max_model_len: int | None) -> GenerationRequest:
        """As `completion`."""
        refuse_unsupported(request.model_extra, ChatCompletionRequest.model_fields)
        tool_use = await self._codec.run(ToolUse.of, request, self._codec.tool_syntax)
        params = self._with_markup(await self._codec.run(self._chat_params, request), tool_use)
        told = request if tool_use is not None else request.model_copy(update={"tools": None})
        prompt = await self._codec.encode_chat(told, max_model_len)
        limit_param = "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"
        try:
            made = await self._made(_Asked(request, params, [prompt], "messages", limit_param, max_model_len))
        except RequestError as error:
            if tool_use is None or tool_use.demand is None or not (error.param or "").startswith("structured_outputs"):
                raise
            for function in tool_use.functions:
                await self._check_function(request, function)
            why = str(error).removeprefix(f"{error.param}: ")
            raise RequestError(f"tools: no grammar can be made of their schemas: {why}", "tools") from error
        is_free = params.structured_outputs is None  # a grammar leaves no room for thoughts
        thinking = await self._codec.thinking_of(prompt) if is_free else None
        is_told = request.include_reasoning is not False
        options = replace(made.options, tool_use=tool_use, thinking=thinking, is_reasoning_told=is_told)
        specs = made.specs
        if tool_use is not None and tool_use.grammar is not None:
            specs = tuple(msgspec.structs.replace(each, grammar=tool_use.grammar) for each in specs)
        if request.prediction is not None:
            predicted = await self._predicted(request.prediction, max_model_len)
            specs = tuple(msgspec.structs.replace(each, prediction=predicted) for each in specs)
        return replace(made, options=options, specs=specs)

    async def response(self, request: ResponsesRequest, max_model_len: int | None) -> GenerationRequest:
        """As `completion`."""
        refuse_unsupported(request.model_extra, ResponsesRequest.model_fields)
        with naming():
            made = await self.chat(await self._codec.run(as_chat, request), max_model_len)
        return replace(made, prompt_param="input")

    async def _predicted(self, prediction: Prediction, max_model_len: int | None) -> TokenIds:
        text = prediction.text
        token_ids = await self._codec.encode(text, "prediction", max_model_len, add_special_tokens=False)
        return token_ids[:max_model_len]

    def _with_markup(self, params: SamplingParams, tool_use: ToolUse | None) -> SamplingParams:
        """The parameters of an answer that may call tools, and think."""
        tags = [OPENING, CLOSING] if self._codec.thinks else []
        tags += [tool_use.syntax.opening] if tool_use is not None else []
        if any(map(self._codec.is_special, tags)):
            params = replace(params, skip_special_tokens=False)
        if tool_use is not None and tool_use.demand is not None:
            if params.structured_outputs is not None:
                raise RequestError("tool_choice demands a call, and another format is asked for", "tool_choice")
            params = replace(params, structured_outputs=tool_use.demand)
        return params

    def _chat_params(self, request: ChatCompletionRequest) -> SamplingParams:
        """As `_params`, with errors that name the parameter as the chat API does."""
        if request.top_logprobs is not None and not request.logprobs:
            raise RequestError("top_logprobs needs logprobs to be true", "top_logprobs")
        is_renamed = request.max_completion_tokens is not None
        limit = request.max_completion_tokens if is_renamed else request.max_tokens
        spelled = {"logprobs": "top_logprobs"} | ({"max_tokens": "max_completion_tokens"} if is_renamed else {})
        try:
            return self._params(request, limit, (request.top_logprobs or 0) if request.logprobs else None)
        except RequestError as error:
            name = spelled.get(error.param or "")
            if name is None or error.param is None:
                raise
            raise RequestError(str(error).replace(error.param, name), name) from error

    def _params(self, request: SamplingFields, max_tokens: int | None, num_logprobs: int | None) -> SamplingParams:
        stop = [request.stop] if isinstance(request.stop, str) else request.stop or []
        end_ids = request.stop_token_ids or []
        self._codec.check_ids(end_ids, "stop_token_ids")
        given: dict[str, Any] = {
            "temperature": _first(request.temperature, self._defaults.temperature),
            "top_p": _first(request.top_p, self._defaults.top_p),
            "top_k": _first(request.top_k, self._defaults.top_k),
            "min_p": _first(request.min_p, self._defaults.min_p),
            "repetition_penalty": _first(request.repetition_penalty, self._defaults.repetition_penalty),
            "presence_penalty": request.presence_penalty,
            "frequency_penalty": request.frequency_penalty,
            "bad_words": request.bad_words,
            "n": request.n,
            "min_tokens": request.min_tokens,
            "ignore_eos": request.ignore_eos,
            "include_stop_str_in_output": request.include_stop_str_in_output,
            "skip_special_tokens": request.skip_special_tokens,
        }
        return SamplingParams(
            max_tokens=max_tokens,
            seed=None if request.seed is None else request.seed % SEEDS,
            stop=tuple(stop),
            stop_token_ids=tuple(end_ids),
            logit_bias=self._logit_bias(request.logit_bias or {}),
            logprobs=num_logprobs,
            structured_outputs=form_of(request),
            prompt_logprobs=_num_prompt_logprobs(request, num_logprobs),
            **{name: value for name, value in given.items() if value is not None},
        )

    def _logit_bias(self, given: dict[str, float]) -> dict[int, float]:
        for key in given:
            if not (key.isascii() and key.isdecimal()):
                raise RequestError("logit_bias: keys must be token ids", "logit_bias")
        bias = {int(key[:20]): value for key, value in given.items()}
        self._codec.check_ids(list(bias), "logit_bias")
        return bias

    async def _prompts(
        self, request: CompletionRequest, given: Sequence[str | TokenIds], max_model_len: int | None
    ) -> list[TokenIds]:
        """Each prompt as token ids."""
        adds_special = request.add_special_tokens is not False
        if not given or not all(given):
            raise RequestError("prompt is empty", "prompt")
        return [
            await self._codec.encode(each, "prompt", max_model_len, add_special_tokens=adds_special)
            if isinstance(each, str)
            else each
            for each in given
        ]

    async def _made(self, asked: _Asked) -> GenerationRequest:
        """Check its grammar, which keeps only other new grammars waiting, and all the rest.

        Raises: RequestError; CapacityError if too many grammars wait, or as `completion`.
        """
        if asked.params.grammar is not None:
            await self._form_checks.check(asked.request, asked.params.grammar)
        return await self._codec.run(self._generation_request, asked)

    async def _check_function(self, request: ChatCompletionRequest, function: Function) -> None:
        """Compile the schema of its arguments alone. Raises: RequestError that names the function, as `_made`."""
        grammar = StructuredOutputsParams(json=function.parameters or {}).spec()
        try:
            await self._form_checks.check(request, grammar)
        except RequestError as error:
            raise wrong_parameters(function, str(error).removeprefix(f"{error.param}: ")) from error

    def _generation_request(self, asked: _Asked) -> GenerationRequest:
        params = asked.params
        self._check_prompts(asked.prompts, params.n, asked.prompt_param)
        speculation = Speculation.of(asked.request.speculative)
        options = _reply_options(asked.request, params)
        if asked.max_model_len is None:
            raise CapacityError("no target is connected that could take this request", NO_TARGET_S)
        for prompt in asked.prompts:
            _check_room(len(prompt), asked, asked.max_model_len)
        ends, bad_words = self._codec.eos_token_ids, self._codec.bad_words(params.bad_words or ())
        specs = tuple(
            spec
            for prompt in asked.prompts
            for spec in request_specs(
                prompt, _within(params, asked.max_model_len - len(prompt)), ends, *speculation, bad_words=bad_words
            )
        )
        _check_scores(specs, asked.prompt_param)
        return GenerationRequest(
            specs=specs, num_prompts=len(asked.prompts), prompt_param=asked.prompt_param, options=options
        )

    def _check_prompts(self, prompts: Sequence[TokenIds], num_answers: int, param: str) -> None:
        for prompt in prompts:
            if not prompt:
                raise RequestError(f"{param}: the prompt has no tokens", param)
            self._codec.check_ids(prompt, param)
        num_sent = sum(map(len, prompts)) * num_answers
        if num_sent > MAX_TOKENS_SENT:
            raise RequestError(
                f"{param}: the answers have prompts of {num_sent} tokens together, more than the {MAX_TOKENS_SENT} "
                "that one request may have: ask for fewer answers at a time",
                param,
            )


def _several(prompt: Any) -> Sequence[str | TokenIds]:
    """The prompts of a completion request, whose types are checked; a bare string or list of ids is one prompt."""
    is_one = isinstance(prompt, str) or (prompt and isinstance(prompt[0], int))
    return [prompt] if is_one else prompt


def _check_scores(specs: Sequence[RequestSpec], param: str) -> None:
    """Raises: RequestError if log-probabilities of prompts would take too much memory."""
    scored = (each for each in specs if each.prompt_logprobs is not None)
    num_scores = sum(len(each.prompt_token_ids) * (1 + (each.prompt_logprobs or 0)) for each in scored)
    if num_scores > MAX_SCORES:
        raise RequestError(
            f"{param}: {num_scores} log-probabilities of prompts are asked for, more than the {MAX_SCORES} that one "
            "request may have: ask for fewer of them, or for fewer answers at a time",
            param,
        )


def _check_room(num_prompt_tokens: int, asked: _Asked, max_model_len: int) -> None:
    param, limit_param = asked.prompt_param, asked.limit_param
    if num_prompt_tokens >= max_model_len:
        raise ContextTooLong(
            f"{param}: the prompt has {num_prompt_tokens} tokens, which leaves no room for an answer in the "
            f"context of {max_model_len}",
            param,
        )
    if limit_param is not None:
        check_context(num_prompt_tokens, asked.params.max_tokens or 0, param, limit_param, max_model_len)


def _within(params: SamplingParams, room: int) -> SamplingParams:
    """The parameters, with a default `max_tokens` reduced to what the context still holds."""
    if params.max_tokens is None or params.max_tokens <= room:
        return params
    return replace(params, max_tokens=room)


def _num_prompt_logprobs(request: SamplingFields, num_logprobs: int | None) -> int | None:
    """What the target is asked for: an echo has log-probabilities of the prompt, too."""
    is_echoed = isinstance(request, CompletionRequest) and bool(request.echo)
    wanted = [each for each in (request.prompt_logprobs, num_logprobs if is_echoed else None) if each is not None]
    return max(wanted, default=None)


def _reply_options(request: SamplingFields, params: SamplingParams) -> ReplyOptions:
    options = request.stream_options
    if options is not None and not request.stream:
        raise RequestError("stream_options needs stream to be true", "stream_options")
    if request.prompt_logprobs is not None and request.stream:
        raise RequestError("prompt_logprobs come with a whole answer: leave stream out", "prompt_logprobs")
    include_usage = bool(options and options.include_usage)
    return ReplyOptions(
        is_stream=bool(request.stream),
        include_usage=include_usage,
        continuous_usage=include_usage and bool(options and options.continuous_usage_stats),
        num_top_logprobs=params.logprobs,
        num_prompt_logprobs=request.prompt_logprobs,
        has_token_ids=bool(request.return_token_ids),
    )


def _first(asked: float | None, default: float | None) -> float | None:
    return asked if asked is not None else default
