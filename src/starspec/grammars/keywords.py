"""Refuses what a JSON schema says and llguidance would read otherwise.

It keeps some numbers as other ones, and ignores keywords that it does not know, as JSON Schema says, misspelt ones too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from starspec.grammars.finite import referred
from starspec.quoting import quoted, readable, shortened

MAX_NUMBER: Final = 2**53 - 1  # of a double that has no other integer beside it
BOUNDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
ONE: Final = (
    *("items", "additionalItems", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames"),
    *("unevaluatedItems", "unevaluatedProperties"),
)
LISTED: Final = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
NAMED: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
# All that narrow what fits. llguidance refuses those that it does not follow.
NARROWING: Final = (
    *(*BOUNDS, *ONE, *LISTED, "properties", "patternProperties", "dependentSchemas", "dependentRequired"),
    *("$ref", "$dynamicRef", "$recursiveRef", "type", "const", "enum", "format", "pattern", "minLength", "maxLength"),
    *("minItems", "maxItems", "uniqueItems", "minContains", "maxContains"),
    *("required", "minProperties", "maxProperties", "dependencies"),
)
BY_CASE: Final = {each.lower(): each for each in NARROWING}  # in lower case -> as it is written
SURE_LEN: Final = 4  # characters of a keyword, from which on a word like it is taken to mean it
LONG: Final = 8  # characters of a keyword, in which two letters may differ
OTHERS: Final = ("cost", "href", "when")  # words like a keyword that may stand beside keywords


class Misread(ValueError):
    """What is wrong in a schema, and where, as a JSON pointer."""

    def __init__(self, why: str, pointer: str) -> None:
        super().__init__(f"{why} (at {shortened(readable(pointer))})")


def check_keywords(schema: dict[str, Any]) -> None:
    """Raises: Misread, for the first place that would be read otherwise."""
    for pointer, here in walked(schema):
        for key, value in here.items():
            _check(key, value, here, pointer)


def walked(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The schema and all within it, also where its references lead, each once and with its JSON pointer."""
    found: list[tuple[str, Any]] = [("#", schema)]
    seen: set[int] = set()
    while found:
        pointer, here = found.pop()
        if isinstance(here, dict) and id(here) not in seen:
            seen.add(id(here))
            yield pointer, here
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
        elif key in ONE and isinstance(value, dict):
            yield f"/{key}", value


def _escaped(name: str) -> str:
    """As a part of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def _check(key: str, value: Any, here: dict[str, Any], pointer: str) -> None:
    if key in ("exclusiveMinimum", "exclusiveMaximum") and isinstance(value, bool):
        bound = key.removeprefix("exclusive").lower()
        if bound not in here:  # beside it, true and false are draft 4
            raise Misread(f"{key} must be a number, or stand beside '{bound}' as in draft 4", pointer)
    if key in (*BOUNDS, "const", "enum"):
        for number in _numbers(value):
            if not abs(number) <= MAX_NUMBER:  # nor is NaN
                raise Misread(f"{key}: {quoted(number)} is not kept exactly: it is beyond {MAX_NUMBER}", pointer)
            if key == "multipleOf" and number <= 0:
                raise Misread(f"{key} must be above 0, not {quoted(number)}", pointer)
    if key not in NARROWING and (meant := _meant(key)) is not None:
        raise Misread(f"unknown keyword {quoted(key)}; did you mean '{meant}'?", pointer)


def _meant(key: str) -> str | None:
    """The keyword from which it differs in case or in dashes, or so little at one place that it surely means it."""
    by_case = BY_CASE.get(key.lower().replace("_", "").replace("-", ""))
    return by_case or next((known for known in NARROWING if _is_near(key, known)), None)


def _is_near(key: str, known: str) -> bool:
    if len(known) < SURE_LEN or abs(len(key) - len(known)) > 1 or key in OTHERS:
        return False
    left, right = _without_same_beginning(key, known)
    left, right = _without_same_beginning(left[::-1], right[::-1])
    return max(len(left), len(right)) <= 1 + (len(known) >= LONG) or left == right[::-1]


def _without_same_beginning(one: str, other: str) -> tuple[str, str]:
    num_same = 0
    while one[: num_same + 1] == other[: num_same + 1] and num_same < len(one):
        num_same += 1
    return one[num_same:], other[num_same:]


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
