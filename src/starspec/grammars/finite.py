"""Whether a finite text fits a JSON schema: none fits an object that needs another one like it, and so on without end.

What this file does not understand it takes to fit a text. So it finds not every such schema, but what it finds is one.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final

NOTHING_FITS: Final = "no text fits it: it needs itself without end, or allows nothing"
INDEX: Final = re.compile("[0-9]{1,9}")  # in a JSON pointer, as llguidance takes it
BASES: Final = ("$id", "id")  # keywords that change what the references below them mean


def has_finite_text(schema: dict[str, Any]) -> bool:
    """False only if no text fits the schema, or only one without end."""
    unmet: dict[int, set[int]] = {}  # id of a subschema -> its needs for which no finite part is known
    users = defaultdict[int, list[tuple[int, int]]](list)  # id of a part -> id of a subschema, and which of its needs
    found: list[Any] = [schema]
    finite: list[int] = []  # whose users do not know it yet
    while found:
        each = found.pop()
        if id(each) in unmet:
            continue
        needs = list(_needs(each, schema)) if isinstance(each, dict) else []
        unmet[id(each)] = set(range(len(needs)))
        finite += [] if needs else [id(each)]
        for number, part in ((number, part) for number, parts in enumerate(needs) for part in parts):
            users[id(part)].append((id(each), number))
            found.append(part)
    while finite:
        for user, number in users[finite.pop()]:
            if number in unmet[user]:
                unmet[user].remove(number)
                finite += [] if unmet[user] else [user]
    return not unmet[id(schema)]


def _needs(schema: dict[str, Any], root: dict[str, Any]) -> Iterator[list[Any]]:
    """Lists of parts. A finite text that fits the schema fits a part of each list itself, or holds one that does."""
    if schema is not root and _has_base(schema):
        return
    if "$ref" in schema:  # in old drafts, nothing beside it counts
        yield [referred(root, schema["$ref"])]
        return
    yield from filter(None, (_list(schema.get(key)) for key in ("anyOf", "oneOf")))
    parts = _list(schema.get("allOf"))
    match schema.get("type"):
        case "object" | ["object"]:
            parts = parts + _needed_values(schema)
        case "array" | ["array"]:
            parts = parts + _needed_items(schema)
    yield from ([part] for part in parts)


def _needed_values(schema: dict[str, Any]) -> list[Any]:
    properties = schema.get("properties")
    others = None if "patternProperties" in schema else schema.get("additionalProperties")
    names = [each for each in _list(schema.get("required")) if isinstance(each, str)]
    return [properties.get(name, others) if isinstance(properties, dict) else others for name in names]


def _needed_items(schema: dict[str, Any]) -> list[Any]:
    items, num = schema.get("items"), schema.get("minItems")
    num = max(0, num) if isinstance(num, int) else 0
    first = _list(schema.get("prefixItems", items))
    return first[:num] + [items] * (num > len(first))


def referred(root: dict[str, Any], reference: object) -> Any:
    """What is at that place in the schema; None if the reference leads elsewhere, or is written unusually."""
    if not isinstance(reference, str) or "%" in reference or not f"{reference}/".startswith("#/"):
        return None
    here: Any = root
    for name in reference.split("/")[1:]:
        if isinstance(here, list) and INDEX.fullmatch(name):
            here = here[int(name)] if int(name) < len(here) else None
        else:
            here = here.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(here, dict) else None
        if isinstance(here, dict) and _has_base(here):
            return None
    return here


def _has_base(schema: dict[str, Any]) -> bool:
    return any(isinstance(schema.get(key), str) for key in BASES)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
