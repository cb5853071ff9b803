"""The form that a request asks of its answers: OpenAI's `response_format`, or vLLM's `structured_outputs`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from starspec.errors import RequestError
from starspec.gateway.schema import SamplingFields
from starspec.grammars.source import check_grammar
from starspec.quoting import quoted
from starspec.sampling.grammar import GrammarSpec
from starspec.structured_outputs import StructuredOutputsParams, structured_outputs_of

FORMAT: Final = "response_format"
SCHEMA: Final = f"{FORMAT}.json_schema.schema"


def form_of(request: SamplingFields) -> StructuredOutputsParams | None:
    """None: any text. Raises: RequestError that names the parameter."""
    given = request.response_format
    if given is None or given.get("type") == "text":
        return structured_outputs_of(request.structured_outputs)
    if request.structured_outputs is not None:
        raise RequestError(f"{FORMAT} and structured_outputs exclude each other: leave one out", FORMAT)
    match given.get("type"):
        case "json_object":
            return StructuredOutputsParams(json_object=True)
        case "json_schema":
            schema = _schema_of(given.get("json_schema"))
            with _naming(request):
                return StructuredOutputsParams(json=schema)
        case other:
            raise RequestError(
                f"{FORMAT}.type must be 'text', 'json_object' or 'json_schema', not {quoted(other)}: structured_outputs"
                " takes a regex, a choice or a grammar",
                f"{FORMAT}.type",
            )


def check_form(request: SamplingFields, grammar: GrammarSpec | None) -> None:
    """Compile a grammar that the request asks for. It may take a second.

    Raises: RequestError with the place, naming the parameter that the request has.
    """
    if grammar is not None:
        with _naming(request):
            check_grammar(grammar)


@contextmanager
def _naming(request: SamplingFields) -> Iterator[None]:
    """Errors name the parameter that the request has."""
    try:
        yield
    except RequestError as error:
        if error.param is None or (request.response_format or {}).get("type") != "json_schema":
            raise
        raise RequestError(str(error).replace(error.param, SCHEMA, 1), SCHEMA) from error


def _schema_of(given: Any) -> Mapping[str, Any]:
    """Of OpenAI's object around a schema."""
    if not isinstance(given, Mapping) or not isinstance(given.get("schema"), Mapping):
        raise RequestError(
            f'{SCHEMA} is required: {{"type": "json_schema", "json_schema": {{"name": ..., "schema": {{...}}}}}}',
            SCHEMA,
        )
    schema: Mapping[str, Any] = given["schema"]
    return schema
