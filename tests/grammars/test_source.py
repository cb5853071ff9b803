"""A grammar that cannot be followed is refused with the place, before anything is generated."""

from __future__ import annotations

import json

import pytest

from starspec.errors import RequestError
from starspec.grammars.source import MAX_COMPLAINT, check_grammar
from starspec.sampling.grammar import GrammarSpec

NESTED = {"type": "object", "properties": {"a/b": {"anyOf": [{"type": "null"}, {"type": "strin"}]}}}


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("json", json.dumps(NESTED), "Invalid type: strin (at #/properties/a~1b/anyOf/1)"),
        ("json", '{"type": "strin"}', "Invalid type: strin (at #)"),
        ("json", '{"$defs": {"x": {"not": {}}}, "$ref": "#/$defs/x"}', '["not"] (at #/$defs/x)'),
        ("json", '{"items": {"$ref": "#/$defs/y"}, "$defs": {"x": {}}}', "'/$defs/y' does not exist (at #/items)"),
        ("json", '{"type": "array", "uniqueItems": true}', "uniqueItems"),
        ("json", '{"type": ', "line 1 column 10"),
        ("json", "[1]", "must be an object"),
        ("json", "[" * 9999, "recursion"),
        ("json", '{"allOf": [{"type": "string"}, {"type": "integer"}]}', "Unsatisfiable schema"),
        ("regex", "ab(c", "unclosed group"),
        ("choice", "[1]", "choice"),
        ("grammar", 'start: "a" foo', 'unknown name: "foo"'),
        ("grammar", 'root ::= "a" b', "Rule 'b' not found"),
        ("grammar", "start: " + " ".join(["/a?/"] * 6000), "Too many items"),
        ("grammar", "start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(2500)), "1000 are allowed"),
        ("grammar", "\n" * 2**15, "GBNF may have 16384"),
        ("json", '{"items":' * 400 + "{}" + "}" * 400, "recursion limit exceeded"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(kind, text, words) -> None:
    with pytest.raises(RequestError) as caught:
        check_grammar(GrammarSpec(kind, text))
    assert caught.value.param == f"structured_outputs.{kind}"
    assert words in str(caught.value)


def test_a_complaint_is_short_however_long_the_schema() -> None:
    schema = {"properties": {"p" * 9000: {"type": "q" * 9000}}}
    with pytest.raises(RequestError, match=r"\.\.\.") as caught:
        check_grammar(GrammarSpec("json", json.dumps(schema)))
    assert len(str(caught.value)) < 2 * MAX_COMPLAINT


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("json", "{}"),
        ("json", '{"type": "object"}'),
        ("regex", "[0-9]{4}-[0-9]{2}"),
        ("choice", '["é😀", "a\\"b", "line\\nbreak", "\\u2028"]'),
        ("grammar", 'start: "a" %json {"type": "integer"}'),
        ("grammar", 'root ::= "yes" | "no" [0-9]+'),
    ],
)
def test_what_is_sound_passes(kind, text) -> None:
    check_grammar(GrammarSpec(kind, text))
