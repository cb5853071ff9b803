"""What a request says of tools, in the syntax of the model's chat template, and the grammar that demands calls."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from starspec.errors import RequestError
from starspec.gateway.schema import ChatCompletionRequest, Function, FunctionTool, NamedTool
from starspec.grammars.finite import BASES, NOTHING_FITS, has_finite_text
from starspec.grammars.keywords import NAMED, Misread, check_keywords, walked
from starspec.quoting import quoted
from starspec.sampling.grammar import GrammarSpec, check_size
from starspec.structured_outputs import StructuredOutputsParams

MAX_CALLS: Final = 16  # of one answer that a grammar demands
MAX_SCHEMAS: Final = 2**20  # bytes of the schemas of all tools of a request
SEPARATORS: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
NO_PARAMETERS: Final = {"type": "object", "properties": {}, "additionalProperties": False}
REFERENCE: Final = "$ref"  # a keyword of JSON schemas
ANCHOR: Final = "$anchor"  # another one: a name for references
DATA: Final = ("const", "enum", "default", "examples")  # keywords whose values are not schemas
NO_SYNTAX: Final = (
    "this model's chat template has none of the tool syntaxes that this server reads, which are <tool_call> (Hermes, "
    "Qwen) and the JSON of Llama 3: describe the tools in a message, and leave this out"
)


@dataclass(frozen=True, slots=True)
class ToolSyntax:
    """How a model writes a call: a JSON object between two texts."""

    opening: str  # empty: a call is at the beginning of an answer, or nowhere
    closing: str
    arguments_key: str
    are_tokens: bool = False  # the two texts are tokens of the vocabulary

    def demand(self, tools: Sequence[FunctionTool], most: int, *, as_tokens: bool = False) -> StructuredOutputsParams:
        """The form of an answer that is 1 to `most` calls of these tools.

        Args:
            as_tokens: the opening and closing texts are tokens. In a grammar a text is never spelled by such tokens.
        Raises: RequestError if it is too long, or if the schema of a tool can never end or would be read otherwise.
        """
        try:
            check_size([each.function.parameters for each in tools])  # before anything looks into them
            calls = [self._schema(each, f"#/anyOf/{place}") for place, each in enumerate(tools)]
            schema = {"anyOf": calls, "x-guidance": SEPARATORS}
            check_size(schema)
            call = f"%json {json.dumps(schema, ensure_ascii=False)}"
        except ValueError as error:
            raise RequestError(f"tools: the grammar of their schemas {error}", "tools") from error
        except RecursionError as error:
            raise RequestError("tools: their schemas are nested too deeply", "tools") from error
        if not self.opening:  # its templates render one call only
            grammar = f"start: call\ncall: {call}\n"
        else:
            more = f' ("\\n" block){{0,{most - 1}}}' if most > 1 else ""
            opening, closing = (each if as_tokens else f'"{each}"' for each in (self.opening, self.closing))
            block = f'{opening} "\\n" call "\\n" {closing}'
            grammar = f"start: block{more}\nblock: {block}\ncall: {call}\n"
        try:
            return StructuredOutputsParams(grammar=grammar)
        except RequestError as error:
            raise RequestError(f"tools: their schemas are too long: {error}", "tools") from error

    def _schema(self, tool: FunctionTool, place: str) -> dict[str, Any]:
        """Of a call. Args: place: where it will be in the whole schema, as a reference."""
        return {
            "type": "object",
            "properties": {
                "name": {"const": tool.function.name},
                self.arguments_key: _parameters(tool.function, f"{place}/properties/{self.arguments_key}"),
            },
            "required": ["name", self.arguments_key],
            "additionalProperties": False,
        }


def _parameters(function: Function, place: str) -> Any:
    """The schema of its arguments, for a place in another schema.

    Raises: RecursionError; RequestError that names the function if the schema can never end, would be read otherwise or
    cannot be moved.
    """
    parameters = function.parameters or NO_PARAMETERS
    try:
        check_keywords(parameters)
        if not has_finite_text(parameters):
            raise ValueError(NOTHING_FITS)
        base = _base(parameters)
        _check_references(parameters, base)
    except ValueError as error:
        raise wrong_parameters(function, str(error)) from error
    return _moved({key: each for key, each in parameters.items() if key not in BASES}, place, base)


def wrong_parameters(function: Function, why: str) -> RequestError:
    return RequestError(f"tools: parameters of {quoted(function.name)}: {why}", "tools")


def _base(schema: dict[str, Any]) -> str | None:
    """What a reference may have before its `#` that leads into this schema."""
    base = schema.get("$id", schema.get("id"))
    return base.rstrip("#") if isinstance(base, str) else None


def _check_references(schema: dict[str, Any], base: str | None) -> None:
    """Raises: Misread if one would lead elsewhere in another schema."""
    for pointer, here in walked(schema):
        if here is not schema and isinstance(here.get("$id"), str):
            raise Misread("$id: only the root of parameters may have one", pointer)
        reference = here.get(REFERENCE)
        if isinstance(reference, str) and not f"{_local(reference, base)}/".startswith("#/"):
            raise Misread(f"$ref: {quoted(reference)} must be '#' or begin with '#/'", pointer)


def _local(reference: str, base: str | None) -> str:
    """The reference without the address of the schema that it is in."""
    address, sharp, rest = reference.partition("#")
    return (sharp or "#") + rest if address == base else reference


def _moved(schema: Any, place: str, base: str | None, *, has_names: bool = False) -> Any:
    """The schema with its references to itself, for a place in another schema, and without names that none refers to.

    Args:
        base: what references may have before their `#`.
        has_names: its keys are names of schemas, not keywords.
    Raises: RecursionError.
    """
    if isinstance(schema, list):
        return [_moved(each, place, base) for each in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {}
    for key, each in schema.items():
        if has_names or key not in (REFERENCE, ANCHOR, *DATA):
            moved[key] = _moved(each, place, base, has_names=not has_names and key in NAMED)
        elif key == REFERENCE and isinstance(each, str):
            moved[key] = place + _local(each, base)[1:]
        elif key != ANCHOR:
            moved[key] = each
    return moved


HERMES: Final = ToolSyntax("<tool_call>", "</tool_call>", "arguments")
LLAMA: Final = ToolSyntax("", "", "parameters")


def syntax_of(template: str | None) -> ToolSyntax | None:
    """The tool syntax of a chat template; None if it has none, or one that nobody here reads."""
    if template is None or "tools" not in template:
        return None
    if HERMES.opening in template and '"arguments"' in template.replace("\\", ""):
        return HERMES
    if "ipython" in template and '"parameters"' in template.replace("\\", ""):
        return LLAMA
    return None


def check_schemas(tools: Sequence[FunctionTool | Function]) -> None:
    """Raises: RequestError if the schemas of these tools have more bytes than a request's may have."""
    parts: list[Any] = [each.model_extra for each in tools]
    for each in tools:
        function = each.function if isinstance(each, FunctionTool) else each
        parts += (function.parameters, function.model_extra)
    try:
        check_size(parts, MAX_SCHEMAS)
    except ValueError as error:
        raise RequestError(f"tools: their JSON {error}", "tools") from error


def known(syntax: ToolSyntax | None, param: str) -> ToolSyntax:
    """The syntax of the model. Raises: RequestError, naming what needs it, if there is none."""
    if syntax is None:
        raise RequestError(f"{param} is not supported: {NO_SYNTAX}", param)
    return syntax


@dataclass(frozen=True, slots=True)
class ToolUse:
    """How an answer may call tools."""

    syntax: ToolSyntax
    most: int  # calls; later ones are dropped
    demand: StructuredOutputsParams | None  # None: it need not call one
    grammar: GrammarSpec | None = None  # the demand for the model's own vocabulary
    functions: tuple[Function, ...] = ()  # which the demand is for

    @classmethod
    def of(cls, request: ChatCompletionRequest, syntax: ToolSyntax | None) -> ToolUse | None:
        """What a request says; None if it has no tools, or its answer shall call none.

        Raises: RequestError if it demands a tool that is not there, or if the model has no syntax for tools.
        """
        tools, choice = request.tools or [], request.tool_choice
        if isinstance(choice, NamedTool):
            tools = [each for each in tools if each.function.name == choice.function.name]
            if not tools:
                raise RequestError(f"tool_choice: there is no tool {quoted(choice.function.name)}", "tool_choice")
        if choice == "required" and not tools:
            raise RequestError("tool_choice: 'required' needs tools", "tool_choice")
        if choice == "none" or not tools:
            return None
        syntax = known(syntax, "tools")
        has_one = isinstance(choice, NamedTool) or request.parallel_tool_calls is False or not syntax.opening
        most = 1 if has_one else MAX_CALLS
        if choice is None or choice == "auto":
            return cls(syntax, most, None)
        demand = syntax.demand(tools, most)
        own = syntax.demand(tools, most, as_tokens=True) if syntax.are_tokens else demand
        return cls(syntax, most, demand, own.spec(), tuple(each.function for each in tools))
