"""A schema that llguidance would read otherwise is refused with the place, wherever that is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from starspec.bench.grammar.schemas import SCHEMAS
from starspec.errors import RequestError
from starspec.grammars.keywords import Misread, check_keywords
from starspec.grammars.source import source_of, start
from starspec.grammars.vocabulary import bytes_and
from starspec.sampling.grammar import GrammarSpec

SAFE = 2**53 - 1
PLACES = [
    (lambda wrong: wrong, "#"),
    (lambda wrong: {"properties": {"a/b": wrong}}, "#/properties/a~1b"),
    (lambda wrong: {"properties": {"const": {"anyOf": [{}, wrong]}}}, "#/properties/const/anyOf/1"),
    (lambda wrong: {"items": {"prefixItems": [wrong]}}, "#/items/prefixItems/0"),
    (lambda wrong: {"items": [True, wrong]}, "#/items/1"),
    (lambda wrong: {"items": [], "additionalItems": wrong}, "#/additionalItems"),
    (lambda wrong: {"patternProperties": {"": wrong}}, "#/patternProperties/"),
    (lambda wrong: {"$defs": {"a": wrong}}, "#/$defs/a"),
    (lambda wrong: {"$ref": "#/parts/0/a", "parts": [{"a": wrong}]}, "#/parts/0/a"),
    (lambda wrong: {"additionalProperties": {"$ref": "#"}, "allOf": [wrong]}, "#/allOf/0"),
]


@pytest.mark.parametrize(("placed", "pointer"), PLACES)
def test_the_place_is_told(placed: Any, pointer: str) -> None:
    with pytest.raises(Misread) as refused:
        check_keywords(placed({"const": 2**53}))
    assert str(refused.value) == f"const: 9007199254740992 is not kept exactly: it is beyond {SAFE} (at {pointer})"


@pytest.mark.parametrize("key", ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "const"])
@pytest.mark.parametrize("number", [SAFE + 1, -SAFE - 1, 10**400, 1e17, float("inf"), float("-inf"), float("nan")])
def test_numbers_that_are_not_kept_are_refused(key: str, number: float) -> None:
    with pytest.raises(Misread, match=f"{key}: .* is not kept exactly"):
        check_keywords({key: number})
    check_keywords({"default": number, "examples": [number], "properties": {key: {}}})


@pytest.mark.parametrize("value", [[1, SAFE + 1], [{"a": [{"b": SAFE + 1}]}]])
def test_numbers_within_values_are_refused(value: Any) -> None:
    for schema in ({"enum": value}, {"const": value}):
        with pytest.raises(Misread, match="is not kept exactly"):
            check_keywords(schema)


@pytest.mark.parametrize(
    ("number", "text", "others"),
    [
        (SAFE, "9007199254740991", ("9007199254740990", "9007199254740992")),
        (-SAFE, "-9007199254740991", ("-9007199254740990", "-9007199254740992")),
        (10**15 + 1, "1000000000000001", ("1000000000000000", "1000000000000002")),
        (0.1, "0.1", ("0.2", "0.11", "0.0")),
        (1e-7, "0.0000001", ("0.0000002", "0", "0.00000001")),
        (-0.12345678901234568, "-0.12345678901234568", ("-0.12345678901234567", "0.12345678901234568")),
    ],
)
def test_numbers_that_are_kept_are_the_only_ones_that_fit_them(number: float, text: str, others: Any) -> None:
    for schema in ({"const": number}, {"type": "number", "minimum": number, "maximum": number}):
        spec = GrammarSpec("json", json.dumps(schema))
        assert fits(spec, text)
        assert not any(fits(spec, each) for each in others)


@pytest.mark.parametrize(
    "text", ['start: %json {"const": 9007199254740993}', '%llguidance {}\nstart: a\na: %json{"enum":[1e400]}']
)
def test_schemas_within_a_grammar_are_checked(text: str) -> None:
    with pytest.raises(RequestError, match=r"structured_outputs\.grammar: .* is not kept exactly.* \(at #\)"):
        source_of(GrammarSpec("grammar", text))


def test_the_error_of_a_request_has_one_place() -> None:
    schema = {"$defs": {"a": {"minimum": 2**60}}, "properties": {"a": {}}}
    with pytest.raises(RequestError) as refused:
        source_of(GrammarSpec("json", json.dumps(schema)))
    assert str(refused.value) == (
        f"structured_outputs.json: minimum: {2**60} is not kept exactly: it is beyond {SAFE} (at #/$defs/a)"
    )


def test_all_schemas_of_the_bench_pass() -> None:
    for each in SCHEMAS.values():
        check_keywords(each)


def fits(spec: GrammarSpec, text: str) -> bool:
    matcher = start(source_of(spec), bytes_and(()))
    token_ids = list(text.encode())
    return matcher.try_consume_tokens(token_ids) == len(token_ids) and matcher.is_accepting()
