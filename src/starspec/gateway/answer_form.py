"""The form that a request asks of its answers: OpenAI's `response_format`, or vLLM's `structured_outputs`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

from starspec.errors import CapacityError, RequestError
from starspec.gateway.schema import SamplingFields
from starspec.grammars.trial import MAX_CPU_S, TooSlow, Trial
from starspec.quoting import quoted
from starspec.sampling.grammar import GrammarSpec
from starspec.structured_outputs import StructuredOutputsParams, structured_outputs_of

FORMAT: Final = "response_format"
MAX_WAITING: Final = 64  # grammars
USUAL_CPU_S: Final = 0.06  # of a grammar; large honest ones take 0.02
SCHEMA: Final = f"{FORMAT}.json_schema.schema"
HINT: Final = 'a schema is {"type": "json_schema", "json_schema": {"name": ..., "schema": {...}}}'


def form_of(request: SamplingFields) -> StructuredOutputsParams | None:
    """None: any text. Raises: RequestError that names the parameter."""
    given = request.response_format
    if given is not None:
        _check_keys(given)
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


class FormChecks:
    """Compiles the grammars that requests ask for. Only other grammars wait for that.

    Each gets as much time as honest ones need, and only then, behind others like it, as much as a grammar may take.

    Args:
        special_tokens: as `Trial`.
    """

    def __init__(self, special_tokens: tuple[str, ...]) -> None:
        trials = [Trial(limit_s, special_tokens) for limit_s in (USUAL_CPU_S, MAX_CPU_S)]
        self._lanes = [(each, ThreadPoolExecutor(1, "grammar")) for each in trials]
        self._num_waiting = 0

    async def check(self, request: SamplingFields, grammar: GrammarSpec) -> None:
        """Raises: as Trial, naming the parameter that the request has; CapacityError if too many wait."""
        if self._num_waiting >= MAX_WAITING:
            raise CapacityError(f"{MAX_WAITING} grammars are waiting to be checked; try again later")
        self._num_waiting += 1
        try:
            with _naming(request):
                await self._check(grammar)
        finally:
            self._num_waiting -= 1

    async def _check(self, grammar: GrammarSpec) -> None:
        loop = asyncio.get_running_loop()
        (first, worker), (last, patient_worker) = self._lanes
        try:
            await loop.run_in_executor(worker, first.check, grammar)
        except TooSlow:
            await loop.run_in_executor(patient_worker, last.check, grammar)

    def close(self) -> None:
        for trial, worker in self._lanes:
            worker.shutdown(wait=False, cancel_futures=True)
            trial.close()


@contextmanager
def _naming(request: SamplingFields) -> Iterator[None]:
    """Errors name the parameter that the request has."""
    try:
        yield
    except RequestError as error:
        if error.param is None or (request.response_format or {}).get("type") != "json_schema":
            raise
        raise RequestError(str(error).replace(error.param, SCHEMA, 1), SCHEMA) from error


def _check_keys(given: Mapping[str, Any]) -> None:
    """A schema in another place would be lost."""
    kind = given.get("type")
    of_kind = (given, ("type", "json_schema") if kind == "json_schema" else ("type",), FORMAT)
    of_schema = (given.get("json_schema"), ("name", "description", "schema", "strict"), f"{FORMAT}.json_schema")
    for keys, known, where in (of_kind, of_schema):
        for key, value in keys.items() if isinstance(keys, Mapping) else ():
            if key not in known and value is not None:
                raise RequestError(f"{where}: {quoted(key)} is not supported with {quoted(kind)}: {HINT}", where)


def _schema_of(given: Any) -> Mapping[str, Any]:
    """Of OpenAI's object around a schema."""
    if not isinstance(given, Mapping) or not isinstance(given.get("schema"), Mapping):
        raise RequestError(f"{SCHEMA} is required: {HINT}", SCHEMA)
    schema: Mapping[str, Any] = given["schema"]
    return schema
