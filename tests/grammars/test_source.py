"""A grammar that cannot be followed is refused with the place, before anything is generated."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from starspec.errors import RequestError
from starspec.grammars.source import MAX_COMPLAINT, check_grammar, source_of, start
from starspec.grammars.vocabulary import bytes_and
from starspec.sampling.grammar import GrammarSpec

ENDLESS: dict[str, Any] = {
    "$ref": "#/$defs/a",
    "$defs": {"a": {"type": "object", "required": ["x"], "properties": {"x": {"$ref": "#/$defs/a"}}}},
}
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
        ("json", "[" * 9999, "json: it is nested too deeply"),
        ("json", f'{{"const": {"7" * 5000}}}', "json: it has an integer of 5000 digits"),
        ("json", '{"allOf": [{"type": "string"}, {"type": "integer"}]}', "Unsatisfiable schema"),
        (
            "json",
            '{"properties": {"a": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}}',
            "oneOf: the same text may fit several of its schemas, which cannot be kept out: use anyOf, or set them "
            "apart, as by a required property with a 'const' of its own (at #/properties/a)",
        ),
        ("json", '{"$ref": "#"}', "json: no text fits it: it needs itself without end, or allows nothing (at #)"),
        ("json", json.dumps(ENDLESS), "needs itself without end, or allows nothing (at #/$defs/a/properties/x)"),
        ("json", json.dumps(ENDLESS["$defs"]["a"] | {"$defs": ENDLESS["$defs"]}), "(at #/properties/x)"),
        ("json", '{"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#"}}}', "(at #/properties/a)"),
        ("json", '{"allOf": [{"$ref": "#/$defs/x"}], "$defs": {"x": {"$ref": "#/$defs/x"}}}', "nothing (at #/allOf/0)"),
        ("regex", "[^\\x00-\\U0010ffff]", "no text fits it"),
        ("grammar", "start: start", "no text fits it"),
        ("regex", "ab(c", "unclosed group"),
        ("choice", "[1]", "choice"),
        ("grammar", 'start: "a" foo', 'unknown name: "foo"'),
        ("grammar", 'root ::= "a" b', "Rule 'b' not found"),
        ("grammar", "start: " + " ".join(["/a?/"] * 6000), "Too many items"),
        ("grammar", "start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(2500)), "1000 are allowed"),
        ("grammar", 'root ::= "a"' + "\n" * 2**14, "may have 16384"),
        ("grammar", 'root ::= "a', "read as GBNF, because its rules have '::='"),
        ("grammar", "one: two", "no start rule"),
        ("grammar", "", "Empty grammar"),
        ("json", '{"items":' * 400 + "{}" + "}" * 400, "recursion limit exceeded"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(kind, text, words) -> None:
    with pytest.raises(RequestError) as caught:
        check_grammar(GrammarSpec(kind, text))
    assert caught.value.param == f"structured_outputs.{kind}"
    assert words in str(caught.value)
    assert not re.search("NoExtension|verbose|sys.set_int", str(caught.value))


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
        (
            "json",
            '{"type": "object", "required": ["a"], "properties": {"a": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}}',
        ),
        ("regex", "[0-9]{4}-[0-9]{2}"),
        ("choice", '["é😀", "a\\"b", "line\\nbreak", "\\u2028"]'),
        ("grammar", 'start: "a" %json {"type": "integer"}'),
        ("grammar", 'root ::= "yes" | "no" [0-9]+'),
    ],
)
def test_what_is_sound_passes(kind, text) -> None:
    check_grammar(GrammarSpec(kind, text))


def accepts(spec: GrammarSpec, text: str) -> bool:
    matcher = start(source_of(spec), bytes_and(()))
    assert not matcher.is_error(), matcher.get_error()
    token_ids = list(text.encode())
    return matcher.try_consume_tokens(token_ids) == len(token_ids) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('root ::= start "!"\nstart ::= "start" | [start]', ["start!", "s!"]),  # a text and a class stay
        ('root ::= Start a-b a_b\nStart ::= "s"\na-b ::= "1"\na_b ::= "2" # a-b', ["s12"]),
        ('start ::= root2\nroot ::= start start-2\nroot2 ::= "x"\nstart-2 ::= "y"', ["xy"]),
        ('# start: of all\n  root::="a"', ["a"]),
        ('?start: "a ::= b"', ["a ::= b"]),
        ('!start : x\nx: "y ::= " /[a-z]/ // root ::= "z"', ["y ::= q"]),
        ('%llguidance {}\nstart: %json {"const": "::="}', ['"::="']),
    ],
)
def test_what_defines_rules_decides_whether_a_grammar_is_gbnf(text: str, words: list[str]) -> None:
    for word in words:
        assert accepts(GrammarSpec("grammar", text), word)
        assert not accepts(GrammarSpec("grammar", text), f"{word}~")


def test_a_choice_may_have_any_character() -> None:
    odd = ["".join(map(chr, range(1, 0x300))), "\x7f", "\0", "\u2028", "\ufeff", "😀", '\\x7f"', "/x/", "%json {}"]
    for each in odd:
        assert accepts(GrammarSpec("choice", json.dumps(odd)), each)


DOUBLED = {"patternProperties": {"^k$": {"const": 1}}, "additionalProperties": False, "minProperties": 2}


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "object", **DOUBLED}, '{"k": 1, "k": 1}'),
        ({"type": "string", "pattern": r"^[\x00-\x1f]+$"}, r'"\"\\"'),
        ({"type": "string", "pattern": '^[^"]+$'}, r'"\"\\"'),
    ],
)
def test_what_a_form_lets_through_as_the_docs_say(schema: dict[str, Any], text: str) -> None:
    """If one of these fails, the library has become better: take it out of the limits."""
    assert accepts(GrammarSpec("json", json.dumps(schema)), text)
    assert not Draft202012Validator(schema).is_valid(json.loads(text))


def test_a_class_without_some_control_characters_is_followed() -> None:
    spec = GrammarSpec("json", json.dumps({"type": "string", "pattern": "^[ !#-~]+$"}))
    assert accepts(spec, '"a!~"')
    assert not accepts(spec, r'"\""')
