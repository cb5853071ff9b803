"""A schema is refused as endless only if no value fits it, however deep."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from starspec.bench.grammar.schemas import SCHEMAS
from starspec.grammars.finite import has_finite_text

NULL = {"type": "null"}
REFERENCES = [{"$ref": each} for each in ("#", "#/$defs/a", "#/$defs/b")]
NAMES = ("x", "y")


def objects(parts: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    properties = st.dictionaries(st.sampled_from(NAMES), parts, min_size=1, max_size=2)
    required = st.lists(st.sampled_from(NAMES), min_size=1, max_size=2, unique=True)
    return st.builds(
        lambda *fields: {"type": "object", "properties": fields[0], "required": fields[1]}, properties, required
    )


def arrays(parts: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    fields = {"minItems": st.integers(0, 2), "items": parts, "prefixItems": st.lists(parts, min_size=1, max_size=2)}
    return st.fixed_dictionaries({"type": st.just("array")}, optional=fields)


def schemas(*, is_sharp: bool) -> st.SearchStrategy[dict[str, Any]]:
    """Schemas with references to themselves. Args: is_sharp: all of them are understood to the full."""

    def inner(depth: int) -> st.SearchStrategy[Any]:
        """No reference, so that every reference leads into a value."""
        if not depth:
            return st.just(NULL)
        below = inner(depth - 1)
        parts = st.booleans().flatmap(lambda is_one: st.sampled_from(REFERENCES) if is_one else below)
        choices = [
            objects(parts),
            arrays(parts),
            st.builds(lambda each: {"anyOf": each}, st.lists(below, min_size=1, max_size=2)),
        ]
        if not is_sharp:
            several = st.lists(below, min_size=1, max_size=2)
            choices += [
                st.sampled_from([{}, True, {"const": []}, {"type": ["object", "null"], "required": ["x"]}]),
                st.builds(lambda key, each: {key: each}, st.sampled_from(["oneOf", "allOf"]), several),
                st.builds(lambda each, other: each | {"additionalProperties": other}, objects(parts), parts),
                st.builds(lambda each, other: each | other, objects(parts), st.fixed_dictionaries({"anyOf": several})),
            ]
        return st.one_of(*choices, *[st.just(NULL)] * (depth == 1))

    root = inner(2).filter(lambda each: isinstance(each, dict))
    return st.builds(lambda each, a, b: each | {"$defs": {"a": a, "b": b}}, root, inner(2), inner(2))


@cache
def values(depth: int) -> list[Any]:
    """All of them with these names and two items at most."""
    if not depth:
        return [None]
    below = values(depth - 1)
    items = [list(each) for num in range(3) for each in product(below, repeat=num)]
    fields = [dict(zip(NAMES, each, strict=True)) for each in product([..., *below], repeat=2)]
    return [None, *items, *({key: each for key, each in one.items() if each is not ...} for one in fields)]


@settings(deadline=None)
@given(schemas(is_sharp=False))
def test_no_schema_is_refused_that_a_value_fits(schema: dict[str, Any]) -> None:
    validator = Draft202012Validator(schema)
    assert has_finite_text(schema) or not any(map(validator.is_valid, values(2)))


def witness(schema: Any, root: dict[str, Any], depth: int) -> Any:
    """A value that fits the schema, with so many levels of schemas at most; ... if there is none."""
    if not depth:
        return ...
    match schema:
        case {"$ref": reference}:
            return witness(root if reference == "#" else root["$defs"][reference[-1]], root, depth - 1)
        case {"anyOf": choices}:
            return next((each for part in choices if (each := witness(part, root, depth - 1)) is not ...), ...)
        case {"type": "object", "properties": properties, "required": required}:
            found = {name: witness(properties.get(name, NULL), root, depth - 1) for name in required}
            return ... if ... in found.values() else found
        case {"type": "array"}:
            parts = [*schema.get("prefixItems", []), *[schema.get("items", NULL)] * 2][: schema.get("minItems", 0)]
            items = [witness(part, root, depth - 1) for part in parts]
            return ... if ... in items else items
        case _:
            return None


@settings(deadline=None)
@given(schemas(is_sharp=True))
def test_what_is_understood_to_the_full_is_refused_exactly_if_nothing_fits_it(schema: dict[str, Any]) -> None:
    found = witness(schema, schema, depth=12)
    assert has_finite_text(schema) == (found is not ...)
    if found is not ...:
        Draft202012Validator(schema).validate(found)


def endless(**fields: object) -> dict[str, Any]:
    return {"type": "object", "required": ["x"], **fields}


@pytest.mark.parametrize(
    "schema",
    [
        endless(properties={"x": {"$ref": "#"}}, patternProperties={"y": {}}),
        endless(properties={"x": {"$ref": "#/properties/x"}}),
        endless(properties={"x": {"anyOf": [{"$ref": "#/properties/x/anyOf/00"}]}}),
        endless(additionalProperties={"$ref": "#"}),
        endless(properties={"x": {"type": ["array"], "items": {"$ref": "#"}, "minItems": 1}}),
        endless(properties={"x": {"items": [{"$ref": "#"}], "type": "array", "minItems": 1}}),
        endless(
            properties={"x": {"$ref": "#/$defs/a~1b~0/oneOf/0"}}, **{"$defs": {"a/b~": {"oneOf": [{"$ref": "#"}]}}}
        ),
        {"$id": "http://a.b", **endless(properties={"x": {"allOf": [{}, {"$ref": "#"}]}})},
    ],
)
def test_what_needs_itself_without_end_has_no_finite_text(schema: dict[str, Any]) -> None:
    assert not has_finite_text(schema)


@pytest.mark.parametrize(
    "schema",
    [
        endless(patternProperties={"x": {}}, additionalProperties={"$ref": "#"}),
        endless(properties={"x": {"$id": "http://a.b", **endless(properties={"x": {"$ref": "#"}})}}),
        *(endless(properties={"x": {"$ref": each}}) for each in ("#x", "other.json#", "#/a/0", "#/%24defs", 3)),
        *(endless(properties={"x": {"$ref": f"#/allOf/{each}"}}, allOf=[{}]) for each in ("1", "9" * 5000)),
        endless(
            properties={"x": {"$ref": "#/$defs/a/x"}}, **{"$defs": {"a": {"id": "http://a.b", "x": {"$ref": "#"}}}}
        ),
        *(
            endless(**{key: each})
            for key in ("properties", "required", "allOf", "anyOf")
            for each in (3, [3], {"x": 3})
        ),
        {"type": "array", "minItems": "1", "items": {"$ref": "#"}, "prefixItems": {}},
        {"type": "array", "minItems": -1, "prefixItems": [{"$ref": "#"}, {"$ref": "#"}]},
        {"anyOf": []},
    ],
)
def test_what_is_not_understood_is_taken_to_fit_something(schema: dict[str, Any]) -> None:
    assert has_finite_text(schema)


def test_all_schemas_of_the_bench_have_finite_texts() -> None:
    assert all(map(has_finite_text, SCHEMAS.values()))


def seconds(schema: dict[str, Any]) -> float:
    """Of a processor, at best."""
    times_s = []
    for _ in range(3):
        started_s = time.thread_time()
        assert not has_finite_text(schema)
        times_s.append(time.thread_time() - started_s)
    return min(times_s)


def chained(num: int) -> dict[str, Any]:
    defs = {f"{i}": endless(properties={"x": {"$ref": f"#/$defs/{i + 1}"}}) for i in range(num)}
    return {"$ref": "#/$defs/0", "$defs": defs | {f"{num}": {"$ref": "#/$defs/0"}}}


def repeated(num: int) -> dict[str, Any]:
    return endless(required=["x"] * num + ["y"], properties={"x": {"anyOf": [NULL]}, "y": {"$ref": "#"}})


@pytest.mark.parametrize("made", [chained, repeated])
def test_the_time_grows_with_the_schema(made: Callable[[int], dict[str, Any]]) -> None:
    """And however long a chain is, no stack overflows."""
    assert seconds(made(16_000)) < 24 * seconds(made(2000))


def test_a_chain_of_any_length_that_ends_is_finite() -> None:
    schema = chained(3000)
    schema["$defs"]["3000"] = NULL
    assert has_finite_text(schema)
