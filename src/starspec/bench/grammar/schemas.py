"""Sixty JSON schemas of mixed kinds. Each bounds its answers, so that a model of random weights comes to an end."""

from __future__ import annotations

from typing import Any

from starspec.bench.grammar.plan import NUM_SCHEMAS

Schema = dict[str, Any]

INT = {"type": "integer", "minimum": 0, "maximum": 99}
WORD = {"type": "string", "pattern": "^[a-z]{1,5}$"}
TEXT = {"type": "string", "maxLength": 6}


def of(required: list[str] | None = None, /, **properties: Any) -> Schema:
    """An object of these properties and no others."""
    names = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


def some(items: Schema, least: int, most: int) -> Schema:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


NODE = of(["v"], v=INT, next={"anyOf": [{"$ref": "#/$defs/leaf"}, {"type": "null"}]})
LEAF = of(v=INT)
TREE = of(v={"type": "boolean"}, children=some({"$ref": "#/$defs/tree"}, 0, 1))
MENU = {"$ref": "#/$defs/menu"}

SCHEMAS: dict[str, Schema] = {
    # scalars
    "null": {"type": "null"},
    "boolean": {"type": "boolean"},
    "integer in a range": {"type": "integer", "minimum": -7, "maximum": 42},
    "integer above": {"type": "integer", "exclusiveMinimum": 995, "maximum": 1003},
    "large integer": {"type": "integer", "minimum": 10**11, "maximum": 10**12},
    "multiple": {"type": "integer", "multipleOf": 5, "minimum": 10, "maximum": 60},
    "number in a range": {"type": "number", "minimum": 0.5, "maximum": 2.25},
    "negative number": {"type": "number", "minimum": -1, "exclusiveMaximum": 0},
    "cents": {"type": "number", "multipleOf": 0.01, "minimum": 0, "maximum": 10},
    "const": {"const": "exactly this"},
    "const object": {"const": {"a": [1, None], "b": "x"}},
    "const number": {"const": 3.5},
    # enums
    "enum of words": {"enum": ["red", "green", "blue"]},
    "enum with common beginnings": {"enum": ["in", "int", "integer", "inter"]},
    "enum of numbers": {"enum": [1, 10, 100, -1]},
    "mixed enum": {"enum": ["a", 1, None, True, {"x": []}]},
    "enum of accents": {"enum": ["é", "日本", "🚀", "naïve"]},
    "large enum": {"enum": [f"item-{number:03}" for number in range(200)]},
    # strings
    "short string": TEXT,
    "string of a length": {"type": "string", "minLength": 3, "maxLength": 5},
    "pattern": {"type": "string", "pattern": "^[A-Z][a-z]{2}-[0-9]{3}$"},
    "pattern of alternatives": {"type": "string", "pattern": "^(cat|dog|bird)s?$"},
    "pattern of accents": {"type": "string", "pattern": "^[äöüß]{2,4}$"},
    "pattern with a quote": {"type": "string", "pattern": '^"[ab]{1,3}\\\\\\\\$'},
    "date": {"type": "string", "format": "date"},
    "time": {"type": "string", "pattern": "^([01][0-9]|2[0-3]):[0-5][0-9]$"},
    "uuid": {"type": "string", "format": "uuid"},
    "ipv4": {"type": "string", "format": "ipv4"},
    # arrays
    "array of a length": some(INT, 3, 3),
    "array with bounds": some({"type": "boolean"}, 1, 4),
    "empty array": some(INT, 0, 0),
    "array of arrays": some(some(INT, 1, 2), 1, 2),
    "array of enums": some({"enum": ["x", "y"]}, 2, 5),
    "tuple": {"type": "array", "prefixItems": [INT, WORD, {"type": "null"}], "items": False, "minItems": 3},
    "tuple with more": {"type": "array", "prefixItems": [INT], "items": {"type": "boolean"}, "maxItems": 3},
    # objects
    "object": of(a=INT, b=WORD),
    "object with optional parts": of(["b"], a=INT, b={"type": "boolean"}, c={"type": "null"}),
    "only optional parts": of([], a=INT, b=INT),
    "empty object": of(),
    "nested": of(outer=of(inner=of(core={"type": "boolean"}))),
    "names with accents": of(**{"größe": INT, "名前": {"enum": ["太郎"]}}),
    "names with spaces and quotes": of(**{'a "b"': INT, "c d": {"type": "null"}}),
    "nullable": of(a={"type": ["integer", "null"], "minimum": 1, "maximum": 9}),
    "several types": {"type": ["boolean", "null"]},
    "open keys": {
        "type": "object",
        "patternProperties": {"^k[0-9]$": {"type": "boolean"}},
        "additionalProperties": False,
        "maxProperties": 2,
        "minProperties": 1,
    },
    "object of arrays": of(tags=some(WORD, 1, 2), scores=some({"type": "integer", "minimum": 0, "maximum": 5}, 2, 3)),
    "array of objects": some(of(id=INT, ok={"type": "boolean"}), 1, 2),
    "many parts": of(**{f"p{number}": {"type": "boolean"} for number in range(8)}),
    # combinations
    "anyOf": {"anyOf": [INT, WORD, {"type": "null"}]},
    "anyOf of objects": {"anyOf": [of(kind={"const": "circle"}, r=INT), of(kind={"const": "square"}, side=INT)]},
    "oneOf by kind": {"oneOf": [of(type={"const": "a"}, x=INT), of(type={"const": "b"}, y=WORD)]},
    "allOf": {"allOf": [{"type": "integer", "minimum": 5}, {"maximum": 9}]},
    "anyOf in an array": some({"anyOf": [{"type": "boolean"}, {"enum": ["maybe"]}]}, 2, 3),
    # references and recursion
    "reference": {"$ref": "#/$defs/point", "$defs": {"point": of(x=INT, y=INT)}},
    "two references": {**of(a={"$ref": "#/$defs/w"}, b={"$ref": "#/$defs/w"}), "$defs": {"w": WORD}},
    "list by recursion": {"$ref": "#/$defs/node", "$defs": {"node": NODE, "leaf": LEAF}},
    "tree by recursion": {"$ref": "#/$defs/tree", "$defs": {"tree": TREE}},
    "mutual recursion": {
        "$ref": "#/$defs/menu",
        "$defs": {
            "menu": of(["n"], n=INT, sub={"$ref": "#/$defs/entry"}),
            "entry": {"anyOf": [{"type": "null"}, of(menu=MENU)]},
        },
    },
    "root recursion": of(["v"], v={"enum": [0, 1]}, more={"$ref": "#"}),
    # a whole record
    "person": of(
        ["name", "age", "roles"],
        name={"type": "string", "minLength": 1, "maxLength": 8},
        age={"type": "integer", "minimum": 0, "maximum": 120},
        roles=some({"enum": ["admin", "user", "guest"]}, 1, 3),
        home={"anyOf": [of(city=WORD, zip={"type": "string", "pattern": "^[0-9]{5}$"}), {"type": "null"}]},
    ),
}
assert len(SCHEMAS) == NUM_SCHEMAS, len(SCHEMAS)
