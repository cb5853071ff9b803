"""Delivers a response, whole or as events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from starspec.gateway.answers import Answer, metrics_of
from starspec.gateway.chat_text import ChatText
from starspec.gateway.formats import ChatFormat, ReplyBuilder
from starspec.gateway.generation import Progress
from starspec.gateway.generation_request import ReplyOptions
from starspec.gateway.http_errors import HttpError
from starspec.gateway.replies import RequestMetrics, Usage
from starspec.gateway.responses.output import ResponseOutput
from starspec.gateway.responses.replies import Event, Incomplete, OutputItem, ResponseObject, ResponseUsage, Status
from starspec.gateway.responses.schema import FlatToolName, ResponsesRequest
from starspec.gateway.stream import Delivery
from starspec.gateway.token_text import TokenText

PLAIN_TEXT: Final = {"format": {"type": "text"}}


class ResponseBuilder(ReplyBuilder):
    """Builds response objects, which repeat what the request said."""

    def __init__(
        self,
        reply_id: str,
        model: str,
        fingerprint: str,
        options: ReplyOptions,
        tokens: TokenText,
        request: ResponsesRequest,
    ) -> None:
        super().__init__(reply_id, model, fingerprint, ChatFormat(options, tokens))
        self.options = options
        self._said = _said(request)

    def whole(self, answers: Sequence[Answer], usage: Usage, metrics: RequestMetrics) -> ResponseObject:
        (answer,) = answers
        text, output, status = ChatText(self.options), ResponseOutput(), status_of(answer)
        list(output.add(text.deltas(answer.text, is_last=True)))
        list(output.end(status))
        return self.response(status, output.items, usage, metrics)

    def response(
        self,
        status: Status,
        output: Sequence[OutputItem] = (),
        usage: Usage | None = None,
        metrics: RequestMetrics | UnsetType = UNSET,
    ) -> ResponseObject:
        used = None
        if usage is not None:
            used = ResponseUsage(usage.prompt_tokens, usage.completion_tokens, usage.total_tokens)
        return ResponseObject(
            id=self.reply_id,
            created_at=self.created_s,
            status=status,
            model=self.model,
            output=list(output),
            incomplete_details=Incomplete() if status == "incomplete" else None,
            usage=used,
            metrics=metrics,
            **self._said,
        )


class ResponseDelivery(Delivery):
    """As Delivery, with the events of this API. It needs a ResponseBuilder, and a request for one answer."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        assert isinstance(self._builder, ResponseBuilder)
        self._responses = self._builder
        self._text = ChatText(self._builder.options)
        self._output = ResponseOutput()
        self._num_events = 0

    def _events_of(self, update: tuple[Progress, bool]) -> Iterator[bytes]:
        (_, output, _), _ = update
        is_last = output.finish_reason is not None
        if not self._num_events:
            yield self._written_event(Event(type="response.created", response=self._responses.response("in_progress")))
            yield self._written_event(
                Event(type="response.in_progress", response=self._responses.response("in_progress"))
            )
        for event in self._output.add(self._text.deltas(output.text, is_last=is_last)):
            yield self._written_event(event)

    def _last_events(self) -> Iterator[bytes]:
        status = status_of(self._answers[0])
        for event in self._output.end(status):
            yield self._written_event(event)
        whole = self._responses.response(status, self._output.items, self._usage(), metrics_of(self._answers))
        yield self._written_event(Event(type=f"response.{status}", response=whole))

    def error_event(self, fault: HttpError) -> bytes:
        """OpenAI's fields, and our error object for clients that look for one."""
        said = {"code": str(fault.status), "message": fault.message, "param": fault.param}
        data = {"type": "error", "sequence_number": self._num_events, **said, **msgspec.json.decode(fault.body())}
        return b"event: error\ndata: " + msgspec.json.encode(data) + b"\n\n"

    def _written_event(self, event: Event) -> bytes:
        event.sequence_number, self._num_events = self._num_events, self._num_events + 1
        return b"event: " + event.type.encode() + b"\ndata: " + msgspec.json.encode(event) + b"\n\n"


def status_of(answer: Answer) -> Status:
    return "incomplete" if answer.finish_reason == "length" else "completed"


def _said(request: ResponsesRequest) -> dict[str, Any]:
    choice = request.tool_choice
    return {
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "metadata": request.metadata or {},
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "temperature": request.temperature,
        "text": PLAIN_TEXT if request.text is None else request.text.model_dump(by_alias=True, exclude_none=True),
        "tool_choice": choice.model_dump() if isinstance(choice, FlatToolName) else choice or "auto",
        "tools": [each.model_dump(exclude_none=True) for each in request.tools or []],
        "top_p": request.top_p,
    }
