"""What a request says about the form of its answer, with vLLM's names."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from starspec.errors import RequestError
from starspec.quoting import quoted
from starspec.sampling.grammar import GrammarKind, GrammarSpec, check_size

PARAM: Final = "structured_outputs"
ANY_OBJECT: Final = '{"type":"object"}'
MAX_CHOICES: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputsParams:
    """The form of an answer: exactly one of these.

    Raises: RequestError that names the parameter, if there is none or more than one, or if it has another type.
    """

    json: str | Mapping[str, Any] | None = None  # a JSON schema, as text or as an object
    regex: str | None = None  # of the whole answer
    choice: Sequence[str] | None = None  # the answer is one of these
    grammar: str | None = None  # Lark, or GBNF as llama.cpp has it
    json_object: bool | None = None  # True: any JSON object

    def __post_init__(self) -> None:
        given = [each.name for each in fields(self) if getattr(self, each.name) not in (None, False)]
        if len(given) != 1:
            names = ", ".join(each.name for each in fields(self))
            raise RequestError(f"{PARAM} needs exactly one of {names}; it has {', '.join(given) or 'none'}", PARAM)
        self._check_types()
        self.spec()

    def _check_types(self) -> None:
        if not isinstance(self.json, str | Mapping | None):
            raise RequestError(f"{PARAM}.json must be a JSON schema", f"{PARAM}.json")
        for name in ("regex", "grammar"):
            if not isinstance(getattr(self, name), str | None):
                raise RequestError(f"{PARAM}.{name} must be a string", f"{PARAM}.{name}")
        if not isinstance(self.json_object, bool | None):
            raise RequestError(f"{PARAM}.json_object must be true or false", f"{PARAM}.json_object")
        if self.choice is not None:
            _check_choice(self.choice)

    def spec(self) -> GrammarSpec:
        """The grammar as a target gets it. Raises: RequestError if it is too long or not valid Unicode."""
        kind, text = self._text()
        try:
            return GrammarSpec(kind, text)
        except ValueError as error:
            name = f"{PARAM}.{kind}"
            why = "must be valid Unicode text" if isinstance(error, UnicodeError) else str(error)
            raise RequestError(f"{name} {why}", name) from error

    def _text(self) -> tuple[GrammarKind, str]:
        if self.regex is not None:
            return "regex", self.regex
        if self.choice is not None:
            return "choice", json.dumps([*self.choice], ensure_ascii=False)
        if self.grammar is not None:
            return "grammar", self.grammar
        if self.json is None:
            return "json", ANY_OBJECT
        return "json", self.json if isinstance(self.json, str) else _schema_text(self.json)


def structured_outputs_of(given: object) -> StructuredOutputsParams | None:
    """The parameters, which may be given as a mapping. Raises: RequestError for anything else and for unknown keys."""
    if given is None or isinstance(given, StructuredOutputsParams):
        return given
    if not isinstance(given, Mapping):
        raise RequestError(f'{PARAM} must be an object, as {{"regex": "[0-9]+"}}', PARAM)
    known = {each.name for each in fields(StructuredOutputsParams)}
    for key, value in given.items():
        if key not in known and value not in (None, False):
            raise RequestError(f"{PARAM}: {quoted(key)} is not supported; known are {', '.join(sorted(known))}", PARAM)
    return StructuredOutputsParams(**{key: value for key, value in given.items() if key in known})


def _schema_text(schema: Mapping[str, Any]) -> str:
    try:
        check_size(schema)
    except ValueError as error:
        raise RequestError(f"{PARAM}.json {error}", f"{PARAM}.json") from error
    try:
        return json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"{PARAM}.json cannot be written as JSON: {error}", f"{PARAM}.json") from error


def _check_choice(choice: object) -> None:
    name = f"{PARAM}.choice"
    if isinstance(choice, str) or not isinstance(choice, Sequence) or not all(isinstance(each, str) for each in choice):
        raise RequestError(f"{name} must be a list of strings", name)
    if not 1 <= len(choice) <= MAX_CHOICES or not all(choice):
        raise RequestError(f"{name} must be 1 to {MAX_CHOICES} strings that are not empty", name)
