"""Token ids of a text or a chat, and the text of token ids: `/tokenize` and `/detokenize`, as vLLM has them."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import msgspec
from fastapi import Request
from starlette.responses import Response

from starspec.errors import RequestError
from starspec.gateway.http_errors import CLIENT_LEFT
from starspec.gateway.schema import ChatPrompt, DetokenizeRequest, TokenizeRequest
from starspec.gateway.services import Served, Services
from starspec.gateway.stream import until_disconnect
from starspec.gateway.unsupported import refuse_unsupported


class TokenizationRoutes:
    """One method for each route."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def tokenize(self, body: TokenizeRequest, request: Request) -> Response:
        served = self._services.of(body.model)
        refuse_unsupported(body.model_extra, TokenizeRequest.model_fields)
        return await _json_unless_left(_tokenization(served, body), request)

    async def detokenize(self, body: DetokenizeRequest, request: Request) -> Response:
        served = self._services.of(body.model)
        refuse_unsupported(body.model_extra, DetokenizeRequest.model_fields)
        return await _json_unless_left(_detokenization(served, body), request)


async def _tokenization(served: Served, body: TokenizeRequest) -> bytes:
    token_ids = await _tokenized(served, body)
    codec, length = served.codec, served.targets.max_model_len

    def encoded() -> bytes:  # on a worker thread, because there may be a million tokens
        strings = [codec.tokens.text_of(token_id) for token_id in token_ids] if body.return_token_strs else None
        return msgspec.json.encode(
            {"count": len(token_ids), "max_model_len": length, "tokens": token_ids, "token_strs": strings}
        )

    return await codec.run(encoded)


async def _detokenization(served: Served, body: DetokenizeRequest) -> bytes:
    return msgspec.json.encode({"prompt": await served.codec.decode(body.tokens)})


async def _tokenized(served: Served, body: TokenizeRequest) -> list[int]:
    length = served.targets.max_model_len
    if (body.prompt is None) == (body.messages is None):
        raise RequestError("give either prompt or messages", "prompt")
    if body.prompt is not None:
        adds_special = body.add_special_tokens is not False
        return await served.codec.encode(body.prompt, "prompt", length, add_special_tokens=adds_special)
    chat = ChatPrompt.model_construct(  # checked already
        messages=body.messages or [],
        tools=body.tools,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        chat_template_kwargs=body.chat_template_kwargs,
    )
    return await served.codec.encode_chat(chat, length)


async def _json_unless_left(work: Coroutine[Any, Any, bytes], request: Request) -> Response:
    """The JSON that `work` makes; nothing if the client leaves before."""
    body = await until_disconnect(work, request.receive)
    if body is None:
        return Response(status_code=CLIENT_LEFT)
    return Response(body, media_type="application/json")
