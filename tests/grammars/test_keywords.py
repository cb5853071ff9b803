"""A schema that llguidance would read otherwise is refused with the place, wherever that is."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from starspec.bench.grammar.schemas import SCHEMAS
from starspec.errors import RequestError
from starspec.grammars.keywords import NARROWING, Misread, check_keywords
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


MISSPELT = {
    **{
        "maxlength": "maxLength",
        "typ": "type",
        "types": "type",
        "tpye": "type",
        "TYPE": "type",
        "propertys": "properties",
    },
    **{"ref": "$ref", "enums": "enum", "item": "items", "require": "required", "anyof": "anyOf", "IF": "if"},
    **{
        "min_length": "minLength",
        "any_of": "anyOf",
        "prefix-items": "prefixItems",
        "minimun": "minimum",
        "exclusiveMininum": "exclusiveMinimum",
        "consts": "const",
    },
}
OTHERS = [
    *("id", "$id", "$schema", "$anchor", "$defs", "defs", "title", "titel", "description", "default", "example"),
    *("nullable", "deprecated", "discriminator", "xml", "note", "hint", "tsType", "enumNames", "x-typ", "in", "of"),
    *("formatMinimum", "propertyOrdering", "markdownDescription", "contentSchema", "label", "minimize", "cost", "form"),
    *("option", "readOnly", "$vocabulary", "links", "href", "components", "units", "when", "a", ""),
]


@pytest.mark.parametrize(("key", "meant"), MISSPELT.items())
def test_a_misspelt_keyword_is_refused_but_for_names_and_values(key: str, meant: str) -> None:
    with pytest.raises(Misread) as refused:
        check_keywords({"items": {key: 3}})
    assert str(refused.value) == f"unknown keyword '{key}'; did you mean '{meant}'? (at #/items)"
    names = {each: {key: {}} for each in ("properties", "$defs", "definitions", "patternProperties")}
    check_keywords(
        {**names, **{each: {key: 3} for each in ("const", "default")}, "enum": [{key: 3}], "examples": [{key: 3}]}
    )


def test_no_keyword_and_no_other_word_is_refused_as_misspelt() -> None:
    known = {*NARROWING, *OTHERS}
    check_keywords(dict.fromkeys(known))


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"exclusiveMinimum": True}, "exclusiveMinimum must be a number, or stand beside 'minimum' as in draft 4"),
        ({"minimum": 1, "exclusiveMaximum": False}, "exclusiveMaximum must be a number, or stand beside 'maximum'"),
        ({"multipleOf": 0}, "multipleOf must be above 0, not 0 (at #)"),
        ({"multipleOf": -0.5}, "multipleOf must be above 0, not -0.5 (at #)"),
    ],
)
def test_what_is_no_bound_is_refused(schema: dict[str, Any], words: str) -> None:
    with pytest.raises(Misread) as refused:
        check_keywords(schema)
    assert str(refused.value).startswith(words)


def test_bounds_of_draft_4_are_kept() -> None:
    schema = {"type": "integer", "minimum": 3, "exclusiveMinimum": True, "maximum": 9, "exclusiveMaximum": False}
    spec = GrammarSpec("json", json.dumps(schema))
    assert [number for number in range(12) if fits(spec, str(number))] == [4, 5, 6, 7, 8, 9]


def test_very_many_unknown_words_cost_little() -> None:
    schema = {f"wor{number}": 1 for number in range(3000)}  # some 32 KiB
    started_s = time.thread_time()
    check_keywords(schema)
    assert time.thread_time() - started_s < 0.2


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
