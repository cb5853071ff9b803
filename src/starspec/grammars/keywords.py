"""Refuses what a JSON schema says and llguidance would read otherwise: numbers that it keeps as other ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from starspec.grammars.finite import referred
from starspec.quoting import quoted, readable, shortened

MAX_NUMBER: Final = 2**53 - 1  # of a double that has no other integer beside it
BOUNDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
ONE: Final = ("items", "additionalItems", "additionalProperties", "not", "if", "then", "else", "contains")
ONE_NAME: Final = ("propertyNames", "unevaluatedItems", "unevaluatedProperties")
LISTED: Final = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
NAMED: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")


class Misread(ValueError):
    """What is wrong in a schema, and where, as a JSON pointer."""

    def __init__(self, why: str, pointer: str) -> None:
        super().__init__(f"{why} (at {shortened(readable(pointer))})")


def check_keywords(schema: dict[str, Any]) -> None:
    """Raises: Misread, for the first place that would be read otherwise."""
    found: list[tuple[str, Any]] = [("#", schema)]
    seen: set[int] = set()
    while found:
        pointer, here = found.pop()
        if isinstance(here, dict) and id(here) not in seen:
            seen.add(id(here))
            for key, value in here.items():
                _check(key, value, pointer)
            found += reversed([(pointer + step, each) for step, each in subschemas(here)])
            if isinstance(here.get("$ref"), str):
                found.append((here["$ref"], referred(schema, here["$ref"])))


def subschemas(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects directly in a schema that are schemas, each with the end of its JSON pointer."""
    for key, value in schema.items():
        if key in NAMED and isinstance(value, dict):
            yield from ((f"/{key}/{_escaped(name)}", each) for name, each in value.items() if isinstance(each, dict))
        elif key in LISTED and isinstance(value, list):
            yield from ((f"/{key}/{index}", each) for index, each in enumerate(value) if isinstance(each, dict))
        elif key in (*ONE, *ONE_NAME) and isinstance(value, dict):
            yield f"/{key}", value


def _escaped(name: str) -> str:
    """As a part of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def _check(key: str, value: Any, pointer: str) -> None:
    if key in (*BOUNDS, "const", "enum"):
        for number in _numbers(value):
            if not abs(number) <= MAX_NUMBER:  # nor is NaN
                raise Misread(f"{key}: {quoted(number)} is not kept exactly: it is beyond {MAX_NUMBER}", pointer)


def _numbers(value: Any) -> Iterator[int | float]:
    """All of them in a value, at any depth."""
    left = [value]
    while left:
        match left.pop():
            case bool():
                pass
            case int() | float() as number:
                yield number
            case list() as items:
                left += items
            case dict() as fields:
                left += fields.values()
